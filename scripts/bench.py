"""`make bench`: measures weft beside its peers, and renews the documents that show the results.

    scripts/bench.py                     measures all parts, prints the results, and renews the documents
    scripts/bench.py --only mpi,rate     measures only these parts and prints the results
    scripts/bench.py --stored            renews the documents from the stored results of the last run

The documents are README.md, docs/benchmarking.md and docs/plots. `weft-lab bench` runs most parts. The MPI parts
are jobs of MPICH's wheel over weft, over its own shared memory and over UCX. They take turns, and the medians
of the rounds count. All samples are stored in target/bench. The machine must be idle. A run takes some twelve
minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import bench_report
import jobs

STORE = jobs.TARGET / "bench"
PLOTS = jobs.ROOT / "docs/plots"

ALL = "weft,shm,sm2,tcp,weft:FI_WEFT_SHM=0"
TRUST = ",".join(["tcp", *bench_report.TRUST])
COUNTING = ",".join(bench_report.COUNTING)
MAPPED = ",".join(bench_report.MAPPED)
# The parts of `weft-lab bench`: the arguments, and whether the document has a plot of the part.
PARTS: dict[str, tuple[str, bool]] = {
    "pingpong": (f"pingpong --providers {ALL} --sizes 8,64,1K,4K,16K,64K,256K,1M --rounds 5", True),
    "remote": (f"pingpong --providers {ALL} --sizes 8,64K --op write,read,fetch-add --rounds 5", False),
    "rate": (f"rate --providers {ALL} --op tagged,write --rounds 5", False),
    "bandwidth": (f"bandwidth --providers {ALL} --sizes 4K,16K,64K,1M --op tagged,write,read --rounds 5", True),
    "progress-latency": ("pingpong --providers weft --progress auto,manual --sizes 8 --rounds 15", False),
    "progress-bandwidth": ("bandwidth --providers weft --progress auto,manual --sizes 32K,64K --rounds 15", False),
    "threads": ("rate --providers weft --threads 1,2 --bind pair --rounds 9", False),
    "overlap": (
        "overlap --providers weft,shm,tcp --progress auto --bind apart --wait yield --sizes 64K,256K,1M,4M --rounds 5",
        False,
    ),
    "peers": ("peers --providers weft,shm,tcp,weft:FI_WEFT_SHM=0 --peers 1,16,64,256 --rounds 9", True),
    "match": ("match --providers weft,shm,tcp --depths 0,16,256,4096 --rounds 3 --sample-ms 80", True),
    "memory": ("memory --providers weft,shm,tcp,weft:FI_WEFT_SHM=0 --peers 256 --rounds 3", False),
    "counter": (
        "counter --providers weft,shm,tcp;ofi_rxm,weft:FI_WEFT_SHM=0 --wait yield --adders 1,2,4,8,16 --rounds 7",
        False,
    ),
    "trust-latency": (f"pingpong --providers {TRUST} --sizes 8,4K,64K,1M --rounds 7", False),
    "trust-bandwidth": (f"bandwidth --providers {TRUST} --sizes 64K,1M --rounds 7", False),
    "counting-latency": (f"pingpong --providers {COUNTING} --sizes 8,4K --rounds 15", False),
    "counting-rate": (f"rate --providers {COUNTING} --op tagged,write --rounds 15", False),
    "mapped-latency": (f"pingpong --mapped --providers {MAPPED} --sizes 8 --op read,fetch-add --rounds 7", False),
    "mapped-rate": (f"rate --mapped --delivery --providers {MAPPED} --op write --rounds 7", False),
    "mapped-bandwidth": (
        f"bandwidth --mapped --delivery --providers {MAPPED} --sizes 16K,64K,1M --op write,read --rounds 7",
        False,
    ),
    "mapped-counter": (
        f"counter --mapped --providers {MAPPED} --wait yield --adders 1,2,4,8,16 --rounds 5",
        False,
    ),
    "oversubscribe": ("oversubscribe --providers weft,shm,sm2 --rounds 3", False),
}

MPI_SIZES = "0,1,8,64,512,4096,16384,65536,262144,1048576,4194304"
MPI_MORE = ["allreduce:65536,262144,1048576", "put:8", "get:8"]
BY_TCP = {"FI_WEFT_SHM": "0", "UCX_TLS": "tcp"}
# MPI jobs: ranks, rounds, milliseconds for one measurement, providers, arguments of scripts/mpi_bench.c, and variables.
MPI_PARTS: dict[str, tuple[int, int, int, tuple[str, ...], list[str], dict[str, str]]] = {
    "mpi": (2, 7, 40, ("weft", "own", "ucx"), [f"pingpong:{MPI_SIZES}", f"bandwidth:{MPI_SIZES}"], {}),
    "mpi-more": (2, 7, 40, ("weft", "shm", "sm2", "ucx"), MPI_MORE, {}),
    "mpi-tcp": (2, 7, 40, ("weft", "tcp", "ucx"), MPI_MORE, BY_TCP),
    "mpi-crowd": (16, 3, 300, ("weft", "shm", "sm2", "own"), ["barrier:0", "allreduce:8"], {}),
}
MPI_TIMEOUT_S = 180


def mpi_job(over: str, ranks: int, budget_ms: int, kinds: list[str], variables: dict[str, str]) -> dict[str, float]:
    """Runs one job. Returns microseconds by kind and size."""
    program = str(jobs.TARGET / "demo/mpi_bench")
    bound = ["-bind-to", "core"] if ranks == 2 else []
    line = jobs.mpich(ranks, [program, str(budget_ms), *kinds], *bound)
    job = jobs.run(line, jobs.mpich_over(over) | variables, MPI_TIMEOUT_S).check()
    names = {kind.partition(":")[0] for kind in kinds}
    words = [line.split() for line in job.output.splitlines()]
    times = {f"{row[0]} {row[1]}": float(row[2]) for row in words if len(row) == 3 and row[0] in names}
    reported = jobs.mpich_provider(job.output)
    if reported is not None and reported != over:
        raise RuntimeError(f"MPICH used {reported} instead of {over}")
    return times


def measure_mpi(name: str) -> None:
    """Measures all rounds of one part, and stores every sample."""
    ranks, rounds, budget_ms, subjects, kinds, variables = MPI_PARTS[name]
    samples: dict[str, dict[str, list[float]]] = {over: {} for over in subjects}
    for turn in range(rounds):
        for over in subjects if turn % 2 == 0 else reversed(subjects):
            print(f"\r{name}: round {turn + 1} of {rounds}: {over:6}", end="", file=sys.stderr, flush=True)
            for what, microseconds in mpi_job(over, ranks, budget_ms, kinds, variables).items():
                samples[over].setdefault(what, []).append(microseconds)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    medians = {over: {what: statistics.median(all_) for what, all_ in of.items()} for over, of in samples.items()}
    stored = {"ranks": ranks, "rounds": rounds, "samples": samples, "medians": medians}
    (STORE / f"{name}.json").write_text(json.dumps(stored, indent=1))
    print(f"\n{name}\n{bench_report.mpi_table(medians)}")


def measure_weft(name: str, drawn: bool) -> None:
    """Measures one part of `weft-lab bench`, which prints its table."""
    line = [str(jobs.DIST / "weft-lab"), "bench", *PARTS[name][0].split(), "--json", str(STORE / f"{name}.json")]
    if PARTS[name][1]:
        line += ["--plot", str((PLOTS if drawn else STORE) / f"{name}.svg")]
    print(f"\nweft-lab {' '.join(line[1:])}", flush=True)
    subprocess.run(line, cwd=jobs.ROOT, check=True, timeout=900)


def stored(name: str) -> object:
    """The results of the last run of a part, or None."""
    file = STORE / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def main() -> None:
    """Measures the requested parts. Renews the documents after a full run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="measure only these parts, separated by commas: " + ", ".join([*PARTS, *MPI_PARTS]))
    parser.add_argument("--stored", action="store_true", help="measure nothing")
    options = parser.parse_args()
    names = [*PARTS, *MPI_PARTS]
    only = options.only.split(",") if options.only else names
    unknown = [name for name in only if name not in names]
    if unknown:
        parser.error(f"unknown part {unknown[0]}; use one of {', '.join(names)}")
    for directory in (STORE, PLOTS):
        directory.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    measure: dict[str, Callable[[], None]] = {
        **{name: lambda name=name: measure_weft(name, options.only is None) for name in PARTS},
        **{name: lambda name=name: measure_mpi(name) for name in MPI_PARTS},
    }
    for name in [] if options.stored else only:
        measure[name]()
    results = {name: stored(name) for name in names}
    print("\n" + bench_report.acceptance(results))
    if options.only is None:
        bench_report.renew(jobs.ROOT, results)
        print(f"\nREADME.md and docs/benchmarking.md are renewed after {(time.monotonic() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
