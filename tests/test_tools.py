"""libfabric's own tools of Debian with weft, and the weft command."""

from __future__ import annotations

import json
import re
import subprocess

import harness
import jobs
import pytest

WEFT = jobs.DIST / "weft"
PINGPONG = """
fi_pingpong -p "$1" -e rdm -I 200 -S all >/dev/null & server=$!
sleep 0.5
fi_pingpong -p "$1" -e rdm -I 200 -S all 127.0.0.1
wait $server
"""


def test_fi_info(runner: harness.Runner) -> None:
    """fi_info lists the provider with a reliable-datagram endpoint, and its variables."""
    env = jobs.environment(harness.PROVIDER)
    listed = runner.run(["fi_info", "-p", harness.PROVIDER], env, 20).check().output
    assert f"provider: {harness.PROVIDER}" in listed and "FI_EP_RDM" in listed, listed
    if harness.PROVIDER == "weft":
        variables = runner.run(["fi_info", "-e", "-g", "weft"], env, 20).check().output
        table = json.loads(subprocess.check_output([WEFT, "info", "--params", "--json"], text=True, timeout=20))
        assert {f"FI_WEFT_{row['name']}" for row in table} <= set(re.findall(r"FI_WEFT_\w+", variables)), variables


def test_fi_pingpong(runner: harness.Runner) -> None:
    """fi_pingpong runs with all its sizes."""
    env = jobs.environment(harness.PROVIDER)
    outcome = runner.run(["bash", "-c", PINGPONG, "pingpong", harness.PROVIDER], env, 60).check()
    sizes = re.findall(r"^(\d+[kmg]?)\s+200\s", outcome.output, re.MULTILINE)
    assert len(sizes) >= 15, outcome.output
    if outcome.left is not None:
        assert outcome.left.nothing(), outcome.left


def test_weft_info(runner: harness.Runner) -> None:
    """`weft info` describes this machine as a table and as JSON."""
    env = jobs.environment("weft")
    assert "shm" in runner.run([str(WEFT), "info"], env, 20).check().output
    facts = json.loads(runner.run([str(WEFT), "info", "--json"], env, 20).check().output)
    assert {path["name"] for path in facts["paths"]} == {"shm", "tcp"}


def test_weft_doctor(runner: harness.Runner) -> None:
    """`weft doctor` finds that the host's libfabric loads the provider. Its exit status tells success from
    failure."""
    outcome = runner.run([str(WEFT), "doctor", "--json"], jobs.environment("weft"), 30)
    findings = {finding["what"]: finding for finding in json.loads(outcome.output)["findings"]}
    libraries = [finding for what, finding in findings.items() if what.endswith("libfabric.so.1")]
    assert any(finding["state"] == "good" and "lists weft" in finding["detail"] for finding in libraries), findings
    assert outcome.status == (1 if any(finding["state"] == "bad" for finding in findings.values()) else 0)


def test_weft_doctor_names_the_cause(runner: harness.Runner) -> None:
    """If FI_PROVIDER names another provider and no path is set, the doctor names both with their remedies and
    exits with 1."""
    env = jobs.environment("tcp", FI_PROVIDER_PATH="/nonexistent")
    outcome = runner.run([str(WEFT), "doctor", "--json"], env, 30)
    assert outcome.status == 1
    bad = {finding["what"]: finding for finding in json.loads(outcome.output)["findings"] if finding["state"] == "bad"}
    assert "FI_PROVIDER" in bad and "FI_PROVIDER_PATH" in bad, bad
    assert all(finding["remedy"] for finding in bad.values())


BAD_VARIABLES = {"FI_WEFT_IFCE": "eth0", "FI_WEFT_INJECT_BYTES": "99G", "FI_WEFT_MATCH": "foo"}


def test_bad_variables_are_reported_once(runner: harness.Runner) -> None:
    """The provider prints a line for each bad value and unknown name, at the default log level. The doctor has them."""
    env = jobs.environment("weft", **BAD_VARIABLES)
    env.pop("FI_LOG_LEVEL", None)
    printed = runner.run(["fi_info", "-p", "weft"], env, 20).check().output
    for name in BAD_VARIABLES:
        assert len(re.findall(rf"^weft: {name}\b.*; ", printed, re.MULTILINE)) == 1, printed
    findings = json.loads(runner.run([str(WEFT), "doctor", "--json"], env, 30).output)["findings"]
    assert set(BAD_VARIABLES) <= {finding["what"] for finding in findings if finding["state"] == "degraded"}, findings


UNCONFIRMED = """
ip link add v0 type veth peer name v1
sysctl -qw net.ipv6.conf.v0.dad_transmits=100
ip link set v1 up; ip link set v0 up
ip addr add 2001:db8::7/64 dev v0
exec "$1" "$2" --json
"""


def test_doctor_reports_an_address_that_cannot_be_bound(runner: harness.Runner) -> None:
    """During duplicate address detection an interface lists its IPv6 address, but no socket can be bound to it."""
    harness.need_sandbox()
    run = ["bash", "-c", UNCONFIRMED, "unconfirmed", str(WEFT)]
    env = jobs.environment("weft", FI_WEFT_IFACE="v0")
    findings = json.loads(runner.run([*run, "doctor"], env, 30).output)["findings"]
    address = next(finding for finding in findings if finding["what"] == "address for TCP")
    assert address["state"] == "degraded" and "2001:db8::7" in address["detail"], address
    paths = json.loads(runner.run([*run, "info"], env, 30).output)["paths"]
    assert not next(path for path in paths if path["name"] == "tcp")["available"], paths


def test_man_page_is_current() -> None:
    """man/fi_weft.7 is the output of `weft man`, with the table of variables in the source."""
    printed = subprocess.check_output([WEFT, "man"], text=True, timeout=20)
    assert (jobs.ROOT / "man/fi_weft.7").read_text() == printed, "run: make man"


