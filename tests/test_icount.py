"""Compares the instructions of weft's hot paths with tests/icount.toml. A change beyond the tolerance fails, in
either direction."""

from __future__ import annotations

import functools
from pathlib import Path

import harness
import icount
import pytest

TOLERANCE = 0.03
# Another compiler generates other code. Its code for the same source may still not be much worse.
TOLERANCE_ELSEWHERE = 0.15
# Polls at a clock tick check more than others. On a slow machine more polls meet a tick.
SYSCALL_TOLERANCE = 0.1
# Noise only adds instructions, so the least of several attempts counts.
ATTEMPTS = 3


def least(some: dict[str, icount.Count], others: dict[str, icount.Count]) -> dict[str, icount.Count]:
    """The smaller of two counts for each operation."""
    return {name: min(some[name], others[name], key=lambda one: one.instructions) for name in some}


def deviations(counts: dict[str, icount.Count], stored: dict[str, dict[str, float]], tolerance: float) -> list[str]:
    """One line for each operation whose count differs from the stored one."""
    lines = [f"{name}: in the program or in the baseline only" for name in sorted(counts.keys() ^ stored.keys())]
    for name in (name for name in counts if name in stored):
        one, before = counts[name], stored[name]
        change = one.instructions / before["instructions"] - 1
        if abs(change) > tolerance:
            lines.append(f"{name}: {one.instructions:.0f} instructions, were {before['instructions']} ({change:+.1%})")
        if abs(one.syscalls - before["syscalls"]) > SYSCALL_TOLERANCE:
            lines.append(f"{name}: {one.syscalls:.2f} system calls, were {before['syscalls']}")
    return lines


@functools.cache
def measure(subject: str) -> tuple[dict[str, icount.Count], list[str], float]:
    """Counts, and repeats deviating counts. Returns the counts, the deviations from the baseline, and the
    tolerance."""
    stored = icount.baseline()
    tolerance = TOLERANCE if stored["rustc"] == icount.compiler() else TOLERANCE_ELSEWHERE
    counts = icount.count(subject)
    for _ in range(1, ATTEMPTS):
        if not deviations(counts, stored[subject], tolerance):
            break
        counts = least(counts, icount.count(subject))
    return counts, deviations(counts, stored[subject], tolerance), tolerance


@pytest.fixture
def countable() -> None:
    """Skips if counting is impossible here."""
    if harness.PROVIDER != "weft":
        pytest.skip("the baseline applies to weft only")
    why_not = icount.refusal()
    if why_not is not None:
        pytest.skip(why_not)


@pytest.mark.usefixtures("countable")
@pytest.mark.parametrize("subject", icount.WEFT)
def test_baseline(subject: str) -> None:
    """Each operation takes the instructions and system calls of the baseline, with a tolerance."""
    counts, wrong, tolerance = measure(subject)
    if wrong:
        seen = "\n  ".join(wrong)
        hint = "If the change is intended, run `make icount-baseline` and explain it in the commit."
        pytest.fail(f"{subject}, beyond ±{tolerance:.0%}:\n  {seen}\n{icount.table({subject: counts})}\n{hint}", pytrace=False)


@pytest.mark.usefixtures("countable")
def test_no_system_calls() -> None:
    """Operations on shared memory make no system call, except rare polls of sockets."""
    counts, _, _ = measure("weft-shm")
    assert all(one.syscalls < SYSCALL_TOLERANCE for one in counts.values()), counts


def test_deviations_are_found() -> None:
    """The comparison tolerates a small rise. It reports a large rise, a large fall, and more system calls."""
    stored = {"one": {"instructions": 1000, "syscalls": 1.0}}

    def wrong(instructions: float, syscalls: float) -> int:
        return len(deviations({"one": icount.Count(instructions, syscalls, 1)}, stored, TOLERANCE))

    assert (wrong(1020, 1.05), wrong(1040, 1.0), wrong(960, 1.0), wrong(1000, 2.0), wrong(2000, 0.0)) == (0, 1, 1, 1, 2)
    assert len(deviations({}, stored, TOLERANCE)) == 1


def test_program_is_left_out(tmp_path: Path) -> None:
    """In a callgrind file only code outside the program counts, and no line counts twice."""
    text = f"""ob={icount.PROGRAM}
fn=weft_icount::counted::read
0x10 1 5
cob=/lib.so
cfn=fi_cq_read
calls=2 0x20 0
0x11 2 70
ob=/lib.so
fn=fi_cq_read
0x20 7 30
0x22 8 40
"""
    (tmp_path / "dump").write_text(text)
    assert icount.spent(tmp_path / "dump") == (70, 0)
