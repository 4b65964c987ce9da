"""The results of `make bench` as tables: for the terminal, README.md and docs/benchmarking.md.

The rows of `weft bench` have its JSON format (docs/benchmarking.md, "JSON"). MPI results are medians in
microseconds by provider, kind and size. A ratio above 1 always means that weft is better.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Container

BEGIN, END = "<!-- {} -->\n", "<!-- end of {} -->\n"
NEAR, FAR = ("shm", "sm2"), ("tcp", "tcp;ofi_rxm", "sockets")
OVER_TCP = "weft:FI_WEFT_SHM=0"
# The providers for the costs of authentication and encryption.
KEY = ":FI_WEFT_JOB_KEY=secret"
TRUST = ("weft", f"weft{KEY}", OVER_TCP, f"{OVER_TCP}{KEY}", f"{OVER_TCP}{KEY}:FI_WEFT_TCP_ENCRYPT=1")
# The providers for the costs of the counters of `weft stat`: with counters (the default) and without.
SILENT = ":FI_WEFT_STATS=no"
COUNTING = ("weft", f"weft{SILENT}", OVER_TCP, f"{OVER_TCP}{SILENT}")
# The providers for memory that peers map: with mapping, and with messages instead.
MAPPED = ("weft", "weft:FI_WEFT_MAP=no", "shm")
OPERATIONS = {"tagged": "tagged", "write": "write", "read": "read", "fetch-add": "fetch-and-add"}
SUBJECTS = {"own": "MPICH's own shared memory", "ucx": "UCX", "shm": "shm", "sm2": "sm2", "tcp": "tcp", "weft": "weft"}

# The sizes of MPI's ping-pongs and bandwidths in the document.
SHOWN = (8, 512, 4 << 10, 64 << 10, 1 << 20)

Results = dict[str, Any]


def value(rows: Any, provider: str, **wanted: Any) -> float | None:
    """The median of the one matching row, or None."""
    for row in rows or []:
        if row["provider"] == provider and all(row.get(key) == one for key, one in wanted.items()):
            return row["median"]
    return None


def best(rows: Any, providers: tuple[str, ...], less: bool, **wanted: Any) -> float | None:
    """The best matching median among providers."""
    values = [one for name in providers if (one := value(rows, name, **wanted)) is not None]
    return (min if less else max)(values) if values else None


def size_text(size: int) -> str:
    """Formats a size for readers."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def amount(number: float | None, unit: str) -> str:
    """Formats a value with its unit, in three digits."""
    if number is None:
        return "–"
    steps = {
        "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")),
        "MB/s": ((1e3, "GB/s"), (1, "MB/s")),
        "Mop/s": ((1, "M/s"), (1e-3, "k/s")),
        "B": ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")),
        "%": ((1, "%"),),
    }[unit]
    divisor, name = next((step for step in steps if number >= step[0]), steps[-1])
    scaled = number / divisor
    digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f} {name}"


def ratio(weft: float | None, peer: float | None, less: bool) -> str:
    """Formats the factor by which weft is better."""
    if not weft or not peer:
        return ""
    return f"{(peer / weft if less else weft / peer):.2f}"


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """Formats a table whose first column is text."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def first_page(results: Results) -> str:
    """The table of the first page: five rows, in each weft and the best other way."""
    rows: list[list[str]] = []

    def add(title: str, part: str, over: str, others: tuple[str, ...], unit: str, **wanted: Any) -> None:
        measured, less = results.get(part), unit == "ns"
        pair = value(measured, over, **wanted), best(measured, others, less, **wanted)
        rows.append([title, *(amount(one, unit) for one in pair), ratio(*pair, less)])

    near, far = "inside a host", "by TCP"
    add(f"half round trip, 8 B, {near}", "pingpong", "weft", NEAR, "ns", op="tagged", size=8)
    add(f"bandwidth, 1 MiB, {near}", "bandwidth", "weft", NEAR, "MB/s", op="tagged", size=1 << 20)
    add(f"half round trip, remote write of 8 B, {near}", "remote", "weft", NEAR, "ns", op="write", size=8)
    add(f"half round trip, 1 MiB, {far}", "pingpong", OVER_TCP, FAR, "ns", op="tagged", size=1 << 20)
    crowd = (results.get("mpi-crowd") or {}).get("medians") or {}
    weft = crowd.get("weft", {}).get("allreduce 8")
    others = [of["allreduce 8"] for name, of in crowd.items() if name != "weft" and "allreduce 8" in of]
    other = min(others) if others else None
    times = [amount(one and one * 1e3, "ns") for one in (weft, other)]
    rows.append(["MPICH, allreduce of 8 B, 16 ranks on 2 cores", *times, ratio(weft, other, True)])
    return markdown(["", "weft", "best other", "ratio"], rows)


def figures(results: Results) -> str:
    """The table of all providers: weft and the best peer, inside a host and over TCP."""
    rows: list[list[str]] = []

    def add(title: str, part: str, unit: str, sockets: bool = True, **wanted: Any) -> None:
        measured, less = results.get(part), unit == "ns"
        near = value(measured, "weft", **wanted), best(measured, NEAR, less, **wanted)
        far = value(measured, OVER_TCP, **wanted), best(measured, FAR, less, **wanted)
        if near[0] is None:
            return
        cells = [amount(near[0], unit), amount(near[1], unit), ratio(*near, less)]
        cells += [amount(far[0], unit), amount(far[1], unit), ratio(*far, less)] if sockets else [""] * 3
        rows.append([title, *cells])

    for size in (8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20):
        add(f"half round trip, tagged, {size_text(size)}", "pingpong", "ns", op="tagged", size=size)
    for op, what in (("write", "half round trip"), ("read", "time"), ("fetch-add", "time")):
        add(f"{what}, {OPERATIONS[op]}, 8 B", "remote", "ns", op=op, size=8)
    for op in ("tagged", "write"):
        add(f"rate, {op}, 8 B", "rate", "Mop/s", op=op, size=8, metric="rate")
    for op in ("tagged", "write", "read"):
        for size in (16 << 10, 64 << 10, 1 << 20):
            add(f"bandwidth, {op}, {size_text(size)}", "bandwidth", "MB/s", op=op, size=size)
    for adders in (1, 2, 4, 8, 16):
        add(f"fetch-and-adds to one number, {adders} adding", "counter", "Mop/s", adders=adders)
    for op in ("barrier", "allreduce"):
        add(f"16 ranks, {op}", "oversubscribe", "ns", sockets=False, op=op)
    heads = ["", "weft", "best of shm, sm2", "ratio", "weft over TCP", "tcp", "ratio"]
    return markdown(heads, rows)


def mpi_rows(medians: dict[str, dict[str, float]], shown: Container[int] | None = None) -> tuple[list[str], list[list[str]]]:
    """The heads and rows: operation, weft's time, and each other subject's time and ratio. `shown`: the sizes of
    ping-pongs and bandwidths, by default all."""
    others = [name for name in medians if name != "weft"]
    heads = ["", "weft", *(head for name in others for head in (SUBJECTS[name], "ratio"))]
    rows = []
    for what, weft in medians["weft"].items():
        kind, size = what.split()
        if shown is not None and kind in ("pingpong", "bandwidth") and int(size) not in shown:
            continue
        title = kind if kind == "barrier" else f"{kind}, {size_text(int(size))}"
        row = [title, amount(weft * 1e3, "ns")]
        for name in others:
            other = medians[name].get(what)
            row += [amount(other and other * 1e3, "ns"), ratio(weft, other, True)]
        rows.append(row)
    return heads, rows


def mpi_table(medians: dict[str, dict[str, float]]) -> str:
    """The table for the terminal."""
    heads, rows = mpi_rows(medians)
    lines = [heads, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in lines)


# A requirement's measured text and whether it holds, or None if it was not measured.
Finding = tuple[str, bool] | None


def within(results: Results) -> Finding:
    """The difference between automatic and manual progress."""
    found = []
    latency, bandwidth = results.get("progress-latency"), results.get("progress-bandwidth")
    for part, size, less in ((latency, 8, True), (bandwidth, 32 << 10, False), (bandwidth, 64 << 10, False)):
        auto, manual = value(part, "weft auto", size=size), value(part, "weft manual", size=size)
        if not auto or not manual:
            return None
        found.append((size, auto / manual if less else manual / auto))
    text = ", ".join(f"{size_text(size)}: {100 * (times - 1):+.1f} %" for size, times in found)
    return text, all(times <= 1.05 for _, times in found)


def idle_peers(results: Results) -> Finding:
    """The effect of idle peers on the latency."""
    found = []
    for title, provider in (("shared memory", "weft"), ("TCP", OVER_TCP)):
        one, many = (value(results.get("peers"), provider, peers=peers) for peers in (1, 256))
        if not one or not many:
            return None
        found.append((title, many / one))
    return ", ".join(f"{title}: {times:.2f}" for title, times in found), all(times <= 1.2 for _, times in found)


def threads(results: Results) -> Finding:
    """The rate of two threads relative to one."""
    rows = results.get("threads")
    one, two = (value(rows, "weft", threads=threads, metric="rate") for threads in (1, 2))
    if not one or not two:
        return None
    waits = [value(rows, "weft", threads=2, metric=metric) for metric in ("lock waits", "lock waits, target")]
    text = f"{two / one:.2f}, {sum(one or 0 for one in waits):.0f} waits for locks"
    return text, two / one >= 1.9 and waits == [0, 0]


def overlap(results: Results) -> Finding:
    """The share of a transfer's time that is left to the receiver."""
    found = []
    for size in (64 << 10, 256 << 10, 1 << 20, 4 << 20):
        wanted = {"op": "receiver", "size": size}
        sandia = value(results.get("overlap"), "weft", metric="availability", **wanted)
        if sandia is None:
            return None
        found.append((size, sandia))
    return ", ".join(f"{size_text(size)}: {share:.0f} %" for size, share in found), all(one >= 90 for _, one in found)


def idle_memory(results: Results) -> Finding:
    """The endpoint memory for an idle peer."""
    heap, shared = (value(results.get("memory"), "weft", op="idle peer", metric=metric) for metric in ("heap", "shared"))
    if heap is None:
        return None
    return f"{heap:.0f} B, and {amount(shared, 'B')} of shared memory", heap <= 512


def addresses(results: Results) -> Finding:
    """The cost of a million insertions."""
    time_ns = value(results.get("memory"), "weft", op="av insert", metric="time")
    memory = value(results.get("memory"), "weft", op="av insert", metric="resident")
    if time_ns is None or memory is None:
        return None
    seconds, megabytes = time_ns / 1e3, max(memory, 0)
    return f"{seconds:.2f} s, {megabytes:.0f} MB", seconds < 1 and megabytes < 128


def crowd(results: Results) -> Finding:
    """MPICH with more ranks than cores."""
    medians = (results.get("mpi-crowd") or {}).get("medians")
    if not medians:
        return None
    found = []
    for what in ("barrier 0", "allreduce 8"):
        others = [of[what] for name, of in medians.items() if name != "weft" and what in of]
        found.append((what.split()[0], medians["weft"][what] / min(others)))
    return ", ".join(f"{what}: {times:.3f}" for what, times in found), all(times <= 0.5 for _, times in found)


def mpi_over(other: str) -> Callable[[Results], Finding]:
    """The time of MPICH over weft relative to MPICH over another subject."""

    def find(results: Results) -> Finding:
        medians = (results.get("mpi") or {}).get("medians")
        if not medians or other not in medians:
            return None
        times = {what: medians["weft"][what] / one for what, one in medians[other].items()}
        worst = max(times, key=lambda what: times[what])
        kind, size = worst.split()
        more = [what for what in times if times[what] > 1.0]
        text = f"{len(times) - len(more)} of {len(times)}; the worst: {kind}, {size_text(int(size))}: {times[worst]:.2f}"
        return text, not more

    return find


MUST: list[tuple[str, Callable[[Results], Finding]]] = [
    ("latency with 256 idle peers ≤ 1.2 × that with 1", idle_peers),
    ("automatic progress costs a polling client ≤ 5 % (latency of 8 B; bandwidth)", within),
    ("two threads, each with an endpoint, ≥ 1.9 × the rate of one, and no lock shared", threads),
    ("receiver overlap ≥ 90 % from 64 KiB on, automatic progress, with a free core", overlap),
    ("an idle peer ≤ 512 B of the endpoint's memory", idle_memory),
    ("a million addresses inserted in < 1 s and < 128 MB", addresses),
    ("MPICH, 16 ranks: time ≤ 0.5 × that of the best of shm, sm2, its own shared memory", crowd),
    ("MPICH over weft ≤ 1.0 × the time of its own shared memory, at every size up to 4 MiB", mpi_over("own")),
    ("MPICH over weft ≤ 1.0 × the time of UCX, at every size up to 4 MiB", mpi_over("ucx")),
]


def acceptance(results: Results) -> str:
    """The table of requirements and results."""
    rows = []
    for sentence, find in MUST:
        found = find(results)
        rows.append([sentence, *(("not measured", "") if found is None else (found[0], "yes" if found[1] else "no"))])
    return markdown(["requirement", "measured", "holds"], rows)


def mpi_section(results: Results) -> str:
    """The tables of MPI jobs."""
    tables = []
    titles = {
        "mpi": "2 ranks, each on its core",
        "mpi-more": "2 ranks, collectives and remote access (put and get with a flush)",
        "mpi-tcp": "the same by TCP",
        "mpi-crowd": "16 ranks on these cores",
    }
    for name, title in titles.items():
        medians = (results.get(name) or {}).get("medians")
        if medians:
            tables.append(f"{title}:\n\n{markdown(*mpi_rows(medians, SHOWN))}")
    return "\n".join(tables)


def trust(results: Results) -> str:
    """The costs of a job key and of encryption, as ratios to runs without them."""
    rows: list[list[str]] = []
    for part, what, unit, sizes in (
        ("trust-latency", "half round trip", "ns", (8, 4 << 10, 64 << 10, 1 << 20)),
        ("trust-bandwidth", "bandwidth", "MB/s", (64 << 10, 1 << 20)),
    ):
        measured, less = results.get(part), unit == "ns"
        for size in sizes:
            plain, keyed, over, over_keyed, encrypted = (value(measured, one, size=size) for one in TRUST)
            cells = [amount(plain, unit), ratio(keyed, plain, less), amount(over, unit), ratio(over_keyed, over, less)]
            cells += [amount(encrypted, unit), ratio(encrypted, over, less)]
            rows.append([f"{what}, {size_text(size)}", *cells, amount(value(measured, "tcp", size=size), unit)])
    heads = ["", "weft", "with a job key", "weft over TCP", "with a job key", "encrypted", "to plain", "tcp"]
    return markdown(heads, rows)


def counting(results: Results) -> str:
    """The costs of publishing counters, as ratios to runs without counters."""
    rows: list[list[str]] = []
    cases = [("counting-latency", f"half round trip, {size_text(size)}", "ns", {"size": size}) for size in (8, 4 << 10)]
    for op in ("tagged", "write"):
        cases.append(("counting-rate", f"rate, {OPERATIONS[op]}, 8 B", "Mop/s", {"op": op, "size": 8, "metric": "rate"}))
    for part, what, unit, wanted in cases:
        cells = [what]
        for mine, silent in (COUNTING[:2], COUNTING[2:]):
            one, other = (value(results.get(part), name, **wanted) for name in (mine, silent))
            cells += [amount(one, unit), amount(other, unit), ratio(one, other, unit == "ns")]
        rows.append(cells)
    heads = ["", "weft", "without counters", "ratio", "weft over TCP", "without counters", "ratio"]
    return markdown(heads, rows)


def replace(file: Path, name: str, text: str) -> None:
    """Replaces the text between two marks in a document."""
    begin, end = BEGIN.format(name), END.format(name)
    head, found, rest = file.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise RuntimeError(f"{file} has no marks `{name}`; restore them")
    file.write_text(f"{head}{begin}{text}{end}{tail}")


def mapped(results: Results) -> str:
    """The table of accesses in memory that peers map."""
    rows: list[list[str]] = []

    def add(title: str, part: str, unit: str, **wanted: Any) -> None:
        less = unit == "ns"
        here, *others = (value(results.get(part), provider, **wanted) for provider in MAPPED)
        if here is not None:
            cells = [cell for other in others for cell in (amount(other, unit), ratio(here, other, less))]
            rows.append([title, amount(here, unit), *cells])

    for op in ("read", "fetch-add"):
        add(f"time, {OPERATIONS[op]}, 8 B", "mapped-latency", "ns", op=op, size=8)
    add("rate, write, 8 B", "mapped-rate", "Mop/s", op="write", size=8, metric="rate")
    for op in ("write", "read"):
        for size in (16 << 10, 64 << 10, 1 << 20):
            add(f"bandwidth, {op}, {size_text(size)}", "mapped-bandwidth", "MB/s", op=op, size=size)
    for adders in (1, 2, 4, 8, 16):
        add(f"fetch-and-adds to one number, {adders} adding", "mapped-counter", "Mop/s", adders=adders)
    return markdown(["", "weft, mapped", "weft, messages", "ratio", "shm", "ratio"], rows)


def renew(root: Path, results: Results) -> None:
    """Writes the tables into the documents."""
    document = root / "docs/benchmarking.md"
    replace(root / "README.md", "figures", first_page(results))
    replace(document, "figures", figures(results))
    replace(document, "requirements", acceptance(results))
    replace(document, "figures of mpi", mpi_section(results))
    replace(document, "figures of trust", trust(results))
    replace(document, "figures of counting", counting(results))
    replace(document, "figures of mapped memory", mapped(results))
