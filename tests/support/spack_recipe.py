"""Runs the recipe of Spack with a stand-in for Spack's own modules.

    spack_recipe.py RECIPE PREFIX VARIANT...      in the directory of the sources

A variant is written as +NAME.

The recipe's class is made with the functions of `spack.package` that it uses, and its `install` runs. Prints the
variables that the installed package sets at run time.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Prefix(str):
    """A directory, whose attributes are the directories below it."""

    def __getattr__(self, name: str) -> Prefix:
        return Prefix(f"{self}/{name}")


class Spec:
    """What the user has asked for."""

    def __init__(self, variants: list[str]) -> None:
        self.variants = variants

    def satisfies(self, variant: str) -> bool:
        return variant in self.variants


class Environment:
    """The changes to the environment of a program."""

    def prepend_path(self, name: str, path: str) -> None:
        print(f"{name}={path}")


def command(name: str) -> Callable[..., None]:
    """A program as a function."""

    def run(*words: str) -> None:
        subprocess.run([name, *words], check=True)

    return run


def nothing(*_: Any, **__: Any) -> None:
    """A directive, such as a dependency."""


def main() -> None:
    """Runs the recipe."""
    recipe, prefix, *variants = sys.argv[1:]
    module = types.ModuleType("spack.package")
    module.__dict__.update(
        Package=object,
        depends_on=nothing,
        license=nothing,
        make=command("make"),
        variant=nothing,
        version=nothing,
    )
    sys.modules |= {"spack": types.ModuleType("spack"), "spack.package": module}
    scope: dict[str, Any] = {}
    exec(compile(Path(recipe).read_text(), recipe, "exec"), scope)  # pylint: disable=exec-used
    package = scope["Weft"]()
    package.prefix = Prefix(prefix)
    package.install(Spec(variants), package.prefix)
    package.setup_run_environment(Environment())


if __name__ == "__main__":
    main()
