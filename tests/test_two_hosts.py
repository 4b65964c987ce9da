"""Two hosts in network namespaces share memory, files and the host name, but no network. One MPI job runs over
both, with shared memory inside each host and TCP between them."""

from __future__ import annotations

import json
import re
import shutil

import harness
import jobs
import pytest
import test_coll

LIBFABRIC = jobs.MPICH / "lib/mpich/libfabric.so.1"
LINK = re.compile(r"^\[(\d+)\].*link (?:to|from) (\S+) over (shm|tcp)\b", re.MULTILINE)


def host(peer: str) -> str:
    """The peer's address in log lines: address, port and the head of its identity."""
    return peer.rpartition(":")[0]


@pytest.mark.parametrize("per_host", [1, 2])
def test_paths(runner: harness.Runner, per_host: int) -> None:
    """The job's data is right. Each rank has the number of links of each device that its place in the job demands."""
    harness.need_sandbox()
    ranks = 2 * per_host
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", str(per_host), "-prepend-rank"]
    command = jobs.mpich(ranks, [harness.PYTHON, str(harness.PROGRAMS / "all_pairs.py")], *launcher, *place)
    env = jobs.mpich_environment(harness.PROVIDER, FI_LOG_LEVEL="info", FI_LOG_PROV="weft")
    if harness.PROVIDER == "tcp":
        del env["FI_TCP_IFACE"]  # loopback does not reach the other host
    outcome = runner.run([str(harness.SUPPORT / "two-hosts.sh"), *command], env, timeout_s=120).check()
    assert "all pairs: good" in outcome.output
    assert jobs.mpich_provider(outcome.output) == harness.PROVIDER
    if harness.PROVIDER != "weft":
        pytest.skip("the data is right; only weft logs its paths")
    # Two ranks that connect to each other at once have two links for a moment, so peers count and not links.
    links = {(int(rank), peer, device) for rank, peer, device in LINK.findall(outcome.output)}
    for rank in range(ranks):
        near = {peer for who, peer, device in links if (who, device) == (rank, "shm")}
        far = {peer for who, peer, device in links if (who, device) == (rank, "tcp")}
        assert len(far) == per_host, f"rank {rank} should reach each rank of the other host by TCP: {links}"
        assert len(near) >= per_host - 1, f"rank {rank} should reach its neighbour by shared memory: {links}"
        assert not {host(peer) for peer in near} & {host(peer) for peer in far}, f"rank {rank}: {links}"


LEFT_OUT = re.compile(r"interfaces for other hosts: (.*)")


@pytest.mark.parametrize("kind", ["cold", "vpn", "apart", "crowd"])
def test_odd_interfaces(runner: harness.Runner, kind: str) -> None:
    """The default route leads to an interface that does not reach the other host: one without carrier, a tunnel, or one
    of another network. The first two are not chosen. Of the third, peers try the second address, also among many
    bridges. The log names the choice."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("other providers choose addresses by other rules")
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", "1", "-prepend-rank"]
    command = jobs.mpich(2, [harness.PYTHON, str(harness.PROGRAMS / "all_pairs.py")], *launcher, *place)
    env = jobs.mpich_environment(harness.PROVIDER, FI_LOG_LEVEL="info", FI_LOG_PROV="weft")
    hosts = [str(harness.SUPPORT / "two-hosts.sh"), str(harness.SUPPORT / "odd-interfaces.sh"), kind]
    outcome = runner.run([*hosts, *command], env, timeout_s=60).check()
    assert "all pairs: good" in outcome.output
    named = {host(peer) for _, peer, device in LINK.findall(outcome.output) if device == "tcp"}
    network = "10.88.0." if kind in ("apart", "crowd") else "10.77.0."
    assert named and all(peer.startswith(network) for peer in named), named
    choice = LEFT_OUT.search(outcome.output)
    assert choice, outcome.output[-3000:]
    used, _, left = choice[1].partition("; left out: ")
    assert "eth0 (10.77.0." in used, choice[1]
    reasons = {
        "cold": ["docker0", "has no carrier"],
        "vpn": [],
        "apart": [],
        "crowd": ["more (is a bridge: other hosts may have its address)", "cold0", "has no carrier"],
    }
    assert all(reason in left for reason in reasons[kind]), choice[1]


def test_the_choice_among_interfaces_is_shown(runner: harness.Runner) -> None:
    """Among twenty bridges, `weft info` names the interfaces in use and why others are left out, and weft's own client
    reaches the other host."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("a command of weft")
    weft = str(jobs.DIST / "weft")
    script = f"""
ip netns exec h2 {weft} bench serve --libfabric {LIBFABRIC} --cores 1 &
for try in $(seq 100); do ip netns exec h2 ss -ltn | grep -q ":18717 " && break; sleep 0.1; done
ip netns exec h1 {weft} bench pingpong --to 10.77.0.2 --providers weft --sizes 8 --rounds 1 --sample-ms 20 \
  --libfabric {LIBFABRIC} --cores 0 --json /dev/fd/3 3>&1 >/dev/null
echo ====
ip netns exec h1 {weft} info --json
kill %1
"""
    env = {name: value for name, value in jobs.environment("weft").items() if name != "FI_PROVIDER"}
    hosts = [str(harness.SUPPORT / "two-hosts.sh"), str(harness.SUPPORT / "odd-interfaces.sh"), "crowd"]
    outcome = runner.run([*hosts, "bash", "-c", script], env, timeout_s=60).check()
    measured, _, info = outcome.output.partition("====")
    found = [json.loads(line.rstrip(",")) for line in measured.splitlines() if line.startswith("  {")]
    rows = [row for row in found if row["provider"] == "weft" and row["metric"] == "latency"]
    assert rows and all(row["status"] == "ok" for row in rows), outcome.output[-3000:]
    usage = {row["name"]: row["usage"] for row in json.loads(info[info.index("{") : info.rindex("}") + 1])["interfaces"]}
    assert (usage["odd0"], usage["eth0"], usage["cold0"]) == ("first", "second", "has no carrier"), usage
    assert "other hosts may have its address" in usage["docker7"], usage


@pytest.mark.parametrize("encrypt", ["0", "1"])
def test_connections_that_break(runner: harness.Runner, encrypt: str) -> None:
    """A job succeeds although its TCP connections, plain or encrypted, are reset repeatedly and its link is
    down for two seconds."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("only weft replaces broken connections")
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", "1", "-prepend-rank"]
    command = jobs.mpich(2, [harness.PYTHON, str(harness.PROGRAMS / "all_pairs.py"), "8"], *launcher, *place)
    env = jobs.mpich_environment(
        harness.PROVIDER, FI_LOG_LEVEL="info", FI_LOG_PROV="weft", FI_WEFT_TCP_ENCRYPT=encrypt
    )
    hosts, breaking = (str(harness.SUPPORT / name) for name in ("two-hosts.sh", "breaking.sh"))
    outcome = runner.run([hosts, breaking, *command], env, timeout_s=120).check()
    assert "all pairs: good" in outcome.output
    resumed = len(re.findall("the connection with .* is restored", outcome.output))
    assert resumed >= 5, f"{resumed} connections were replaced"


def test_collectives(runner: harness.Runner) -> None:
    """Collectives of an MPI program over two hosts give what the MPI library alone gives. Members of a host share
    memory, and the hosts exchange messages."""
    harness.need_sandbox()
    test_coll.need("mpich")
    program = test_coll.program("mpich")
    alone = runner.run(jobs.mpich(4, [program]), jobs.mpich_environment("weft"), 60).check()
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", "2", "-genv", "LD_PRELOAD", test_coll.SHIM]
    env = jobs.mpich_environment("weft", FI_WEFT_COLL_REPORT="1")
    command = jobs.mpich(4, [program], *launcher, *place)
    outcome = runner.run([str(harness.SUPPORT / "two-hosts.sh"), *command], env, timeout_s=120).check()
    digests = test_coll.digests(alone.output)
    assert len(digests) == 4 and test_coll.digests(outcome.output) == digests, outcome.output[-3000:]
    expected = re.search(r"expected: (\d+ collectives by weft, \d+ by the MPI library)", outcome.output)
    assert expected and f"weft-coll: {expected[1]}" in outcome.output, outcome.output[-3000:]


def test_bench(runner: harness.Runner) -> None:
    """`weft bench` measures between the hosts, with the rows of a local run, and TCP below every provider."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("a command of weft")
    weft = str(jobs.DIST / "weft")
    script = f"""
ip netns exec h2 {weft} bench serve --libfabric {LIBFABRIC} --cores 1 &
for try in $(seq 100); do ip netns exec h2 ss -ltn | grep -q ":18717 " && break; sleep 0.1; done
for kind in pingpong bandwidth rate; do
  ip netns exec h1 {weft} bench $kind --to 10.77.0.2 --providers weft --sizes 8,64K --rounds 1 --sample-ms 20 \
    --libfabric {LIBFABRIC} --cores 0 --json /dev/fd/3 3>&1 >/dev/null
done
kill %1
"""
    env = {name: value for name, value in jobs.environment("weft").items() if name != "FI_PROVIDER"}
    outcome = runner.run([str(harness.SUPPORT / "two-hosts.sh"), "bash", "-c", script], env, timeout_s=120).check()
    found = [json.loads(line.rstrip(",")) for line in outcome.output.splitlines() if line.startswith("  {")]
    rows = [row for row in found if row["provider"] == "weft" and row["metric"] in ("latency", "bandwidth", "rate")]
    assert [row["kind"] for row in rows] == ["pingpong"] * 2 + ["bandwidth"] * 2 + ["rate"] * 2, outcome.output
    assert all(row["status"] == "ok" and row["to"] == "10.77.0.2:18717" for row in rows), rows
    assert all(row["p50"] <= row["p99"] <= row["p99_9"] for row in rows if row["kind"] == "pingpong"), rows
    floors = {row["provider"] for row in found if row["floor"] and row["status"] == "ok"}
    assert floors == {"floor tcp"}, found


def test_doctor_examines_the_path(runner: harness.Runner) -> None:
    """`weft doctor --to` finds an open path good, and names the firewall of each side."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("a command of weft")
    weft = str(jobs.DIST / "weft")
    script = f"""
ip netns exec h2 {weft} bench serve --libfabric {LIBFABRIC} &
for try in $(seq 100); do ip netns exec h2 ss -ltn | grep -q ":18717 " && break; sleep 0.1; done
ip netns exec h1 {weft} doctor --json --to 10.77.0.2 || true
echo ====
ip netns exec h2 iptables -A INPUT -p tcp --dport 18717 -j ACCEPT
ip netns exec h2 iptables -A INPUT -p tcp --syn -j REJECT
ip netns exec h1 iptables -A INPUT -p tcp --syn -j REJECT
ip netns exec h1 {weft} doctor --json --to 10.77.0.2 || true
echo ====
ip netns exec h1 {weft} doctor --json --to 10.77.0.2:99 || true
kill %1
"""
    outcome = runner.run([str(harness.SUPPORT / "two-hosts.sh"), "bash", "-c", script], jobs.environment("weft"), timeout_s=90)
    documents = [text[text.index("{") : text.rindex("}") + 1] for text in outcome.check().output.split("====")]
    opened, closed, absent = ({row["what"]: row for row in json.loads(text)["findings"]} for text in documents)
    ports = [next(what for what in opened if what.startswith("ports of ") and "this" not in what), "ports of this host"]
    assert opened["route"]["state"] == "good" and "(eth0" in opened["route"]["detail"], opened
    assert all(opened[what]["state"] == "good" for what in ports) and "Mbit/s" in opened["rate"]["detail"], opened
    if shutil.which("iptables"):
        assert [closed[what]["state"] for what in ports] == ["bad", "degraded"], closed
        assert all("firewall" in closed[what]["remedy"] for what in ports), closed
    row = absent["path to 10.77.0.2:99"]
    assert row["state"] == "bad" and "weft bench serve" in row["remedy"], absent


RATE = re.compile(r"^(?:\[\d+\] )?(send|put|get): ([\d.]+) MB/s", re.MULTILINE)
INTERFACE = re.compile(r"interface (eth[12]): (\d+) received, (\d+) sent")


def run_streams(runner: harness.Runner, rate: str, *arguments: str, **env: str) -> harness.Outcome:
    """Runs programs/streams.py between two hosts that two networks of a limited rate join."""
    return stream_over(runner, ["two-rails.sh", rate], *arguments, **env)


def stream_over(runner: harness.Runner, network: list[str], *arguments: str, **env: str) -> harness.Outcome:
    """Runs programs/streams.py between two hosts, in a network that a script of support/ changes."""
    harness.need_sandbox()
    if harness.PROVIDER != "weft":
        pytest.skip("only weft distributes a link over several connections")
    launcher = ["-launcher", "ssh", "-launcher-exec", str(harness.SUPPORT / "netns-ssh.sh")]
    place = ["-iface", "wbr0", "-hosts", "h1,h2", "-ppn", "1", "-prepend-rank"]
    program = [harness.PYTHON, str(harness.PROGRAMS / "streams.py"), *arguments]
    command = jobs.mpich(2, program, *launcher, *place)
    env = jobs.mpich_environment("weft", FI_LOG_LEVEL="info", FI_LOG_PROV="weft", **env)
    hosts = [str(harness.SUPPORT / "two-hosts.sh")]
    hosts += [str(harness.SUPPORT / network[0]), *network[1:]] if network else []
    outcome = runner.run([*hosts, *command], env, timeout_s=120).check()
    assert "streams: good" in outcome.output
    return outcome


def rates(outcome: harness.Outcome) -> dict[str, float]:
    """The rate of each kind in MB/s."""
    return {kind: float(rate) for kind, rate in RATE.findall(outcome.output)}


def traffic(outcome: harness.Outcome) -> dict[str, int]:
    """Bytes received and sent on each network."""
    return {name: int(received) + int(sent) for name, received, sent in INTERFACE.findall(outcome.output)}


def test_two_rails(runner: harness.Runner) -> None:
    """Long messages, puts and gets over two networks reach nearly twice the rate of one, and use both alike."""
    one, two = (run_streams(runner, "100mbit", "4", FI_WEFT_IFACE=name) for name in ("eth1", "eth1,eth2"))
    single, double = traffic(one), traffic(two)
    assert single["eth2"] < 100_000 < single["eth1"], single
    assert 0.6 < double["eth1"] / double["eth2"] < 1.6, double
    slow, fast = rates(one), rates(two)
    assert set(slow) == set(fast) == {"send", "put", "get"}, one.output[-3000:]
    # A machine under load is the reason for the margin.
    assert all(fast[kind] > 1.4 * slow[kind] for kind in slow), f"{slow} {fast}"


@pytest.mark.parametrize("encrypt", ["0", "1"])
def test_a_rail_that_fails(runner: harness.Runner, encrypt: str) -> None:
    """One of two networks fails during a job and comes back. The other carries all data meanwhile, and all is right."""
    outcome = run_streams(
        runner,
        "200mbit",
        "3",
        "check",
        FI_WEFT_IFACE="eth1,eth2",
        FI_WEFT_TCP_ENCRYPT=encrypt,
        RAIL_DOWN="1",
    )
    assert "a connection for the long messages" in outcome.output, outcome.output[-3000:]
    assert all(count > 10_000_000 for count in traffic(outcome).values()), traffic(outcome)


SETTLED = re.compile(r"long messages reach \S+ over (\d+) connections")


def test_connections_follow_the_limit_of_a_flow(runner: harness.Runner) -> None:
    """Each connection is limited to 40 Mbit/s, and four together to 160 Mbit/s. The number of connections grows to four
    while rank 0 sends, and the rate to that of four. The other direction uses the same connections."""
    if not shutil.which("iptables"):
        pytest.skip("no iptables")
    outcome = stream_over(runner, ["flow-caps.sh", "40"], "2")
    assert SETTLED.findall(outcome.output)[:1] == ["4"], outcome.output[-3000:]
    found = rates(outcome)
    assert found["send"] > 2 * 5 and min(found["put"], found["get"]) > 0.8 * 4 * 5, found


def test_without_a_limit_there_are_no_more_connections(runner: harness.Runner) -> None:
    """Where one connection uses the network, the number stays."""
    outcome = stream_over(runner, [], "1")
    assert set(SETTLED.findall(outcome.output)) <= {"1"}, outcome.output[-3000:]
