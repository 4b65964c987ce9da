"""`make demo`: one unmodified MPI program over weft, over libfabric's shm and tcp, and over what MPICH uses by itself.

The jobs take turns, and each figure is the median of the rounds. A passing disturbance of the machine thus
favours no subject.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import jobs

# The subjects with their heads in the table.
PROVIDERS = {"weft": "weft us", "shm": "shm us", "tcp": "tcp us"}
ALONE = {"own": "own us", "ucx": "UCX us"}
SUBJECTS = {**PROVIDERS, **ALONE}
TIMEOUT_S = 60


def measure(subject: str, budget_ms: int) -> tuple[str | None, dict[tuple[str, int], float]]:
    """Runs one job. Returns the provider that MPICH reports, and times in microseconds by kind and size."""
    program = str(jobs.TARGET / "demo/mpi_bench")
    job = jobs.run(jobs.mpich(2, [program, str(budget_ms)]), jobs.mpich_over(subject), TIMEOUT_S).check()
    times = {}
    for line in job.output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in ("pingpong", "allreduce"):
            times[words[0], int(words[1])] = float(words[2])
    return jobs.mpich_provider(job.output), times


def size_text(size: int) -> str:
    """Formats a size for readers."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def table(medians: dict[str, dict[tuple[str, int], float]]) -> str:
    """Formats the table."""
    others = [name for name in SUBJECTS if name != "weft"]
    heads = ["", "size", *SUBJECTS.values(), *(f"{SUBJECTS[name].split()[0]}/weft" for name in others)]
    rows = [heads]
    for kind, size in medians["weft"]:
        times = {name: medians[name][kind, size] for name in SUBJECTS}
        ratios = [f"{times[name] / times['weft']:.2f}" for name in others]
        rows.append([kind, size_text(size), *(f"{time:.2f}" for time in times.values()), *ratios])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def main() -> None:
    """Runs the rounds and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds for each subject")
    parser.add_argument("--budget-ms", type=int, default=40, help="the time of one measurement in milliseconds")
    args = parser.parse_args()
    samples: dict[str, dict[tuple[str, int], list[float]]] = {name: {} for name in SUBJECTS}
    reported: dict[str, str | None] = {}
    for turn in range(args.rounds):
        for subject in SUBJECTS:
            print(f"\rround {turn + 1} of {args.rounds}: {subject:6}", end="", file=sys.stderr, flush=True)
            reported[subject], times = measure(subject, args.budget_ms)
            for key, time in times.items():
                samples[subject].setdefault(key, []).append(time)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    medians = {name: {key: statistics.median(times) for key, times in of.items()} for name, of in samples.items()}
    print("MPICH 5.0.2, two ranks on this machine. weft, shm, tcp: all messages through this provider of libfabric.")
    print("own: MPICH with nothing set, which is its own shared memory here. UCX: all messages through UCX.")
    print("Half round trip of a ping-pong; time of an allreduce (sum of doubles). Microseconds, lower is better;")
    print("a ratio above 1 is the factor by which weft is faster.\n")
    print(table(medians))
    wrong = [name for name in PROVIDERS if reported[name] != name]
    if wrong:
        sys.exit(f"MPICH did not use the requested provider: {', '.join(wrong)}")
    print("\nYour own program over weft, with MPICH:\n")
    print(f"    FI_PROVIDER=weft FI_PROVIDER_PATH={jobs.DIST} \\")
    print("      MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 mpiexec -n 2 ./a.out\n")
    print("`make` builds the weft command, too, which sets what each MPI library needs:\n")
    print(f"    {jobs.DIST}/weft run mpiexec -n 2 ./a.out")


if __name__ == "__main__":
    main()
