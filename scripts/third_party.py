#!/usr/bin/env python3
"""Writes the licences of the projects whose code is in the built files.

    scripts/third_party.py OUT

The projects are the dependencies of the shipped crates, as cargo resolved them for this build. Crates that run while
the build runs (procedural macros, build scripts) have no code in the files. The texts come from the sources that cargo
compiled. Where a project lets its users choose a licence and MIT is among them, its MIT text alone is included.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = {"weft-provider", "weft-cli", "weft-coll", "weft-gex-c"}
LICENCE_FILE = re.compile(r"licen[cs]e|copying|copyright|notice|\bofl\b|\bufl\b", re.IGNORECASE)
RULE = "=" * 78
# Code that comes with the tools of the build, with its licence. `make packages` links the last one.
OF_TOOLS = {
    "the Rust standard library": ("MIT OR Apache-2.0", "https://github.com/rust-lang/rust"),
    "LLVM's libunwind (packages)": ("Apache-2.0 WITH LLVM-exception", "https://github.com/llvm/llvm-project"),
}


def target() -> str:
    """The target of the build."""
    if triple := os.environ.get("CARGO_BUILD_TARGET"):
        return triple
    versions = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    return re.search(r"^host: (.*)$", versions, re.MULTILINE)[1]


def cargo(*arguments: str) -> str:
    """The output of cargo."""
    command = ["cargo", *arguments, "--quiet", "--locked"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def metadata() -> dict:
    """The resolved dependencies of the whole workspace."""
    return json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", target()))


def compiled() -> set[tuple[str, str]]:
    """The name and version of each dependency of the shipped crates alone: others have more features."""
    shipped = [word for name in sorted(SHIPPED) for word in ("-p", name)]
    lines = cargo("tree", "-e", "normal", "--prefix", "none", "-f", "{p}", "--target", target(), *shipped).splitlines()
    return {(words[0], words[1].removeprefix("v")) for line in lines if len(words := line.split()) > 1}


def linked(resolved: dict) -> list[dict]:
    """The packages of others whose code is linked, by name and version."""
    built = compiled()
    packages = {package["id"]: package for package in resolved["packages"]}
    needs = {node["id"]: node["deps"] for node in resolved["resolve"]["nodes"]}
    pending = [key for key, package in packages.items() if package["name"] in SHIPPED]
    found: dict[str, dict] = {}
    while pending:
        key = pending.pop()
        package = packages[key]
        if key in found or any("proc-macro" in target["kind"] for target in package["targets"]):
            continue
        found[key] = package
        pending += [need["pkg"] for need in needs[key] if any(kind["kind"] is None for kind in need["dep_kinds"])]
    found = {key: p for key, p in found.items() if p["source"] and (p["name"], p["version"]) in built}
    return sorted(found.values(), key=lambda p: (p["name"], p["version"]))


def texts(package: dict) -> list[str]:
    """The licence texts of a package."""
    top = Path(package["manifest_path"]).parent
    files = sorted(file for file in top.rglob("*") if file.is_file() and LICENCE_FILE.search(file.name))
    files = [file for file in files if file.suffix in ("", ".txt", ".md", ".0_WITH_LLVM-exception") and "tests" not in file.parts]
    choices = re.split(r"\s+OR\s+|/", package["license"] or "")
    chosen = [file for file in files if re.search(r"[-_]MIT\b", file.name)] if "MIT" in choices else []
    found = [file.read_text(errors="replace").strip() for file in chosen or files]
    if not found:
        raise SystemExit(f"{package['name']} {package['version']} ({package['license']}) has no licence text in {top}")
    return found


def document(packages: list[dict]) -> str:
    """The whole text."""
    users: dict[str, list[str]] = {}
    rows = [("project", "licence", "source")]
    for package in packages:
        name = f"{package['name']} {package['version']}"
        rows.append((name, package["license"], package["repository"] or ""))
        for text in texts(package):
            users.setdefault(text, []).append(name)
    rows += [(name, *described) for name, described in OF_TOOLS.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)
    parts = [f"The files of weft contain code of these projects:\n\n{table}\n"]
    parts += [f"{RULE}\nLicence of {', '.join(names)}\n{RULE}\n\n{text}\n" for text, names in users.items()]
    return "\n".join(parts)


def main() -> int:
    """Writes the file. It is replaced only when it is complete."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    fresh = out.with_name(f".{out.name}")
    fresh.write_text(document(linked(metadata())))
    fresh.replace(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
