#!/usr/bin/env python3
"""Counts the instructions of operations in weft and in libfabric's shm and tcp.

    scripts/icount.py [--json] [--rounds N] [SUBJECT…]   prints a table (subjects: weft-shm weft-tcp shm tcp weft-scale)
    scripts/icount.py --renew                            writes tests/icount.toml and docs/benchmarking.md

`make icount` and `make icount-baseline` build the program and run this script. docs/benchmarking.md describes
the counts. tests/test_icount.py compares weft with the baseline.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import jobs

PROGRAM = jobs.TARGET / "release" / "weft-icount"
BASELINE = jobs.ROOT / "tests" / "icount.toml"
DOCUMENT = jobs.ROOT / "docs" / "benchmarking.md"
ROUNDS = 1000
TIMEOUT_S = 120

# Publishing for `weft stat` depends on the clock, so a slow process would count it too often.
STEADY = {"FI_WEFT_STATS": "no"}
# The provider and its variables for each subject.
SUBJECTS = {
    "weft-shm": ("weft", STEADY),
    "weft-tcp": ("weft", STEADY | {"FI_WEFT_SHM": "0", "FI_WEFT_IFACE": "lo"}),
    "shm": ("shm", {}),
    "tcp": ("tcp", {}),
}
# The simulation of collectives, `weft sim scale`.
SCALE = "weft-scale"
SCALE_RANKS = 65_536
WEFT = [*(name for name, (provider, _) in SUBJECTS.items() if provider == "weft"), SCALE]

# glibc chooses memcpy and similar functions by the processor's features, most of which valgrind passes on.
# Without these features it chooses the SSE2 variants, which every x86-64 processor has.
FEATURES = "AVX_Fast_Unaligned_Load AVX2 AVX512F AVX512VL AVX512BW ERMS FSRM RTM SSSE3 SSE4_1 SSE4_2 BMI2 MOVBE"
TUNABLES = "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in FEATURES.split())

VALGRIND = [
    "valgrind",
    "--tool=callgrind",
    "--toggle-collect=weft_icount::counted::*",
    "--dump-after=weft_icount::measured",
    "--dump-instr=yes",
    "--compress-strings=no",
    "--compress-pos=no",
]


@dataclass(frozen=True)
class Count:
    """The average costs of one operation over all rounds."""

    instructions: float
    syscalls: float
    calls: float  # of libfabric functions


def refusal() -> str | None:
    """The reason why counting is impossible here, or None."""
    if platform.machine() != "x86_64":
        return f"instructions are counted on x86_64 only, and this machine is {platform.machine()}"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed (make deps)"
    if not PROGRAM.exists():
        return f"{PROGRAM} is missing (make icount-program)"
    return None


@functools.cache
def host_library() -> Path:
    """The newest libfabric of this machine: MPICH's, or the system's."""
    mpich = jobs.MPICH / "lib/mpich/libfabric.so.1"
    if mpich.exists():
        return mpich
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=20, check=True).stdout
    found = re.search(r"libfabric\.so\.1 .*=> (\S+)", known)
    if found is None:
        raise RuntimeError("libfabric is not installed (make deps)")
    return Path(found[1])


def count(subject: str, rounds: int = ROUNDS) -> dict[str, Count]:
    """Counts every operation of a subject."""
    if subject == SCALE:
        return {"event": count_event()}
    provider, variables = SUBJECTS[subject]
    env = jobs.environment(provider, GLIBC_TUNABLES=TUNABLES, LD_BIND_NOW="1", **variables)
    with tempfile.TemporaryDirectory(dir=jobs.TARGET) as directory:
        out = Path(directory) / "callgrind"
        program = [str(PROGRAM), str(host_library()), provider, str(rounds)]
        said = jobs.run([*VALGRIND, f"--callgrind-out-file={out}", *program], env, TIMEOUT_S).check().output
        lines = re.findall(r"^([a-z-]+) (\d+) (\d+)$", said, re.MULTILINE)
        if not lines:
            raise RuntimeError(f"{subject}: nothing was counted:\n{said}")
        result = {}
        for number, (operation, times, calls) in enumerate(lines, 1):
            totals = *spent(out.with_name(f"{out.name}.{2 * number}")), int(calls)
            result[operation] = Count(*(total / int(times) for total in totals))
        return result


def count_event() -> Count:
    """Counts an event of a simulated barrier: the difference between one barrier and two. With one processor each:
    as many threads as processors prepare the programs, and the memory that they share makes the count vary."""

    def simulated(iterations: int, processor: int) -> tuple[int, int]:
        weft = [str(jobs.TARGET / "release" / "weft"), "sim", "scale", "--json", f"--ranks={SCALE_RANKS}"]
        valgrind = ["taskset", "-c", str(processor), "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        program = [*valgrind, *weft, f"--iterations={iterations}"]
        said = jobs.run(program, jobs.environment("weft", GLIBC_TUNABLES=TUNABLES), 2 * TIMEOUT_S).check().output
        found = [re.search(pattern, said) for pattern in (r"Collected : (\d+)", r'"events": (\d+)')]
        if None in found:
            raise RuntimeError(f"{SCALE}: nothing was counted:\n{said}")
        instructions, events = (int(match[1]) for match in found if match)
        return instructions, events

    with ThreadPoolExecutor() as pool:
        processors = sorted(os.sched_getaffinity(0))
        one, two = pool.map(simulated, (1, 2), (processors[0], processors[-1]))
    return Count((two[0] - one[0]) / (two[1] - one[1]), 0, 0)


def count_all(subjects: list[str], rounds: int = ROUNDS) -> dict[str, dict[str, Count]]:
    """Counts several subjects. Skips a peer that lacks an operation, such as RMA in an old tcp provider, with a
    message."""
    counts = {}
    for subject in subjects:
        try:
            counts[subject] = count(subject, rounds)
        except RuntimeError as error:
            if subject in WEFT:
                raise
            reason = re.search(r"^weft-icount: .*", str(error), re.MULTILINE)
            print(f"{subject} is left out: {reason[0] if reason else error}", file=sys.stderr)
    return counts


def spent(dump: Path) -> tuple[int, int]:
    """The instructions and system calls in a callgrind file outside the program itself: those of the provider,
    libfabric and libc.

    A clock read does not count as a system call, since the kernel answers it in user space outside of valgrind.
    """
    instructions = syscalls = 0
    ours = called = clock = False
    code = Code(PROGRAM)
    for line in dump.read_text().splitlines():
        if line.startswith("ob="):
            ours = line == f"ob={PROGRAM}"
            code = Code(Path(line[3:]))
        elif line.startswith("fn="):
            clock = "clock_gettime" in line
        elif line.startswith("calls="):
            called = True  # the next line is what the function called has spent, which has lines of its own
        elif line.startswith("0x"):
            if not ours and not called:
                address, _, times = line.split()
                instructions += int(times)
                if not clock and code.is_syscall(int(address, 16)):
                    syscalls += int(times)
            called = False
    return instructions, syscalls


@functools.cache
class Code:
    """The machine code in an ELF file."""

    def __init__(self, path: Path) -> None:
        self.file = path.read_bytes() if path.exists() else b""  # the kernel's own pages have no file
        self.segments = []
        if self.file[:5] == b"\x7fELF\x02":
            start, size, number = struct.unpack_from("<Q14xHH", self.file, 32)
            for header in range(start, start + size * number, size):
                kind, flags, offset, address = struct.unpack_from("<IIQQ", self.file, header)
                length = struct.unpack_from("<Q", self.file, header + 32)[0]
                if kind == 1 and flags & 1:  # PT_LOAD, PF_X
                    self.segments.append((address, length, offset))

    def is_syscall(self, at: int) -> bool:
        """Whether the instruction at an address is `syscall`."""
        for address, length, offset in self.segments:
            if address <= at < address + length:
                where = at - address + offset
                return self.file[where : where + 2] == b"\x0f\x05"
        return False


def compiler() -> str:
    """The compiler's version, which determines the machine code."""
    said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, timeout=20, check=True, cwd=jobs.ROOT)
    return said.stdout.split()[1]


def baseline() -> dict:
    """The stored counts and their compiler."""
    return tomllib.loads(BASELINE.read_text())


def renew() -> None:
    """Stores weft's counts in the baseline, and all subjects' counts in the document."""
    counts = count_all([*SUBJECTS, SCALE])
    lines = [
        "# Instructions and system calls of each operation, as described in docs/benchmarking.md. tests/test_icount.py",
        "# compares weft with them. `make icount-baseline` renews them. The commit that changes a count explains the change.",
        f'rustc = "{compiler()}"',
    ]
    for subject in WEFT:
        lines += ["", f"[{subject}]"]
        for operation, one in counts[subject].items():
            lines.append(f"{operation} = {{ instructions = {one.instructions:.0f}, syscalls = {one.syscalls:.2f} }}")
    BASELINE.write_text("\n".join(lines) + "\n")
    head, begin, rest = DOCUMENT.read_text().partition("<!-- instruction counts -->\n")
    _, end, tail = rest.partition("<!-- end of instruction counts -->\n")
    if not end:
        raise RuntimeError(f"{DOCUMENT} has no marks for the table; restore them")
    DOCUMENT.write_text(f"{head}{begin}{table({name: row for name, row in counts.items() if name != SCALE})}\n{end}{tail}")


def table(counts: dict[str, dict[str, Count]]) -> str:
    """Formats a Markdown table with a row for each operation and a column for each subject."""
    operations = dict.fromkeys(operation for row in counts.values() for operation in row)
    lines = ["| | " + " | ".join(counts) + " |", "|---|" + "---:|" * len(counts)]
    for operation in operations:
        cells = (cell(row[operation]) if operation in row else "–" for row in counts.values())
        lines.append(f"| {operation} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(one: Count) -> str:
    """Formats the instructions, and the system calls if they do not round to 0."""
    syscalls = f"{one.syscalls:.1f}".removesuffix(".0")
    return f"{one.instructions:.0f}" + (f" + {syscalls} sys" if syscalls != "0" else "")


def main() -> None:
    """Counts, and prints or stores the counts."""
    parser = argparse.ArgumentParser(description="Counts the instructions of operations.")
    parser.add_argument("subjects", nargs="*", help=f"the subjects to count: {' '.join([*SUBJECTS, SCALE])} (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the number of repetitions of each operation")
    parser.add_argument("--renew", action="store_true", help="write tests/icount.toml and the table in docs/benchmarking.md")
    options = parser.parse_args()
    known = [*SUBJECTS, SCALE]
    subjects = options.subjects or known
    unknown = [name for name in subjects if name not in known]
    if unknown:
        parser.error(f"unknown subject {unknown[0]}; use one of {' '.join(known)}")
    why_not = refusal()
    if why_not is not None:
        sys.exit(f"icount: {why_not}")
    if options.renew:
        renew()
        return
    counts = count_all(subjects, options.rounds)
    if options.json:
        rows = {subject: {name: asdict(one) for name, one in row.items()} for subject, row in counts.items()}
        print(json.dumps({"rustc": compiler(), "library": str(host_library()), "counts": rows}, indent=2))
    else:
        print(table(counts))


if __name__ == "__main__":
    main()
