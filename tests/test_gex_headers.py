"""The headers of weft-gex compile alone and in any order, in every standard, and have the interface's values."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "crates/weft-gex-c/include"
PROGRAMS = ROOT / "tests/gex"
# Those that clients include.
HEADERS = [
    "gasnet.h",
    "gasnet_coll.h",
    "gasnet_fwd.h",
    "gasnet_mk.h",
    "gasnet_portable_platform.h",
    "gasnet_ratomic.h",
    "gasnet_tools.h",
    "gasnet_vis.h",
    "gasnet_weft.h",
    "gasnetex.h",
]
# The headers that need no mode.
FREE = ["gasnet_fwd.h", "gasnet_portable_platform.h", "gasnet_tools.h"]
C = ["c99", "c11", "c2x"]
CXX = ["c++11", "c++20"]
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
MODES = {"seq": "-DGASNET_SEQ", "par": "-DGASNET_PAR"}


def compilers() -> list[tuple[str, str]]:
    """Pairs of a C and a C++ compiler that this machine has."""
    pairs = [("gcc", "g++"), ("clang", "clang++")]
    return [pair for pair in pairs if shutil.which(pair[0]) and shutil.which(pair[1])]


def compile_(standard: str, flags: list[str], arguments: list[str], source: str | None = None, cc: int = 0) -> str:
    """Compiles files, or a text, and returns what the compiler prints if it fails."""
    pair = compilers()[cc]
    is_cxx = standard.startswith("c++")
    command = [pair[1] if is_cxx else pair[0], f"-std={standard}", *STRICT, "-D_GNU_SOURCE=1", *flags, f"-I{INCLUDE}"]
    if source is not None:
        arguments = ["-fsyntax-only", "-x", "c++" if is_cxx else "c", "-", *arguments]
    elif is_cxx:
        arguments = ["-x", "c++", *arguments]
    done = subprocess.run([*command, *arguments], input=source, text=True, capture_output=True, timeout=60)
    return "" if done.returncode == 0 else f"{' '.join(done.args)}\n{source or ''}{done.stderr}"


def includes(names: list[str]) -> str:
    """A translation unit that includes headers."""
    return "".join(f"#include <{name}>\n" for name in names) + "int gex_weft_unit;\n"


def all_of(jobs: list[tuple]) -> None:
    """Compiles everything, two at a time, and fails with the first message."""
    with ThreadPoolExecutor(2) as pool:
        failures = [text for text in pool.map(lambda job: compile_(*job), jobs) if text]
    assert not failures, f"{len(failures)} of {len(jobs)} fail; the first:\n{failures[0]}"


def flags(mode: str, conduit: str = "SMP") -> list[str]:
    """The defines of a makefile fragment."""
    return [MODES[mode], f"-DGASNET_CONDUIT_{conduit}=1"]


def test_each_header_stands_alone() -> None:
    """Each header compiles first in a unit, in each standard, without warnings."""
    jobs = [
        (standard, flags("par" if index % 2 else "seq"), [], includes([header]), cc)
        for cc in range(len(compilers()))
        for index, (standard, header) in enumerate(itertools.product(C + CXX, HEADERS))
    ]
    jobs += [(standard, [], [], includes([header])) for standard in ("c99", "c++11") for header in FREE]
    all_of(jobs)


def test_headers_have_no_order() -> None:
    """Any order compiles: forwards, backwards, and each header in front of and behind all others."""
    orders = [HEADERS, HEADERS[::-1]]
    orders += [[header, *(other for other in HEADERS if other != header)] for header in HEADERS]
    orders += [[*(other for other in HEADERS if other != header), header, header] for header in HEADERS]
    modes = [("c11", "seq"), ("c++11", "par")]
    jobs = [(standard, flags(mode), [], includes(order)) for order in orders for standard, mode in modes]
    all_of(jobs)


@pytest.mark.parametrize(
    ("defines", "message"),
    [
        (["-DGASNET_CONDUIT_SMP=1"], "neither GASNET_SEQ nor GASNET_PAR"),
        (["-DGASNET_SEQ", "-DGASNET_PAR", "-DGASNET_CONDUIT_SMP=1"], "both defined"),
        (["-DGASNET_PARSYNC", "-DGASNET_CONDUIT_SMP=1"], "GASNET_PARSYNC is not offered"),
        (["-DGASNET_SEQ"], "no conduit"),
        (["-DGASNET_SEQ", "-DGASNET_CONDUIT_SMP=1", "-DGASNET_CONDUIT_OFI=1"], "both defined"),
        (["-DGASNET_SEQ", "-DGASNET_CONDUIT_SMP=1", "-DGASNET_DEBUG=1", "-DGASNET_NDEBUG=1"], "both defined"),
    ],
)
def test_wrong_settings_are_refused(defines: list[str], message: str) -> None:
    """Settings that no library has end the compilation with a message."""
    assert message in compile_("c11", defines, [], includes(["gasnetex.h"]))


@pytest.mark.parametrize("program", ["values.c", "counts.c"])
def test_programs_without_library(program: str, tmp_path: Path) -> None:
    """Values and layouts are the interface's, and calls pass their arguments, in C and C++ and both modes."""
    standards = [standard for standard in C + CXX if standard != "c99" or program != "values.c"]
    for standard, (mode, conduit) in zip(standards, itertools.cycle([("seq", "SMP"), ("par", "OFI")])):
        binary = tmp_path / f"program-{standard}"
        failure = compile_(standard, flags(mode, conduit), [str(PROGRAMS / program), "-o", str(binary)])
        assert not failure, failure
        done = subprocess.run([binary], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stdout


def test_mixed_modes_do_not_link(tmp_path: Path) -> None:
    """An object of SEQ and the archive of PAR do not become a program. The linker names the mode."""
    unit = includes(["gasnetex.h"]) + "int main(void) { return 0; }\n"
    (tmp_path / "unit.c").write_text(unit)
    archive = tmp_path / "archive.c"
    archive.write_text('#include <gasnetex.h>\nconst char GEX_WEFT_LINK[] = "archive";\n')
    objects = {}
    for mode in MODES:
        objects[mode] = [str(tmp_path / f"{name}-{mode}.o") for name in ("unit", "archive")]
        for source, target in zip(("unit.c", "archive.c"), objects[mode]):
            failure = compile_("c11", flags(mode), ["-c", str(tmp_path / source), "-o", target])
            assert not failure, failure
    binary = ["-o", str(tmp_path / "program")]
    assert not compile_("c11", [], [*objects["seq"], *binary])
    assert "gex_weft_link_SMP_SEQ" in compile_("c11", [], [objects["seq"][0], objects["par"][1], *binary])
