"""Memory that peers map (fi_open_ops "weft_memory"): accesses complete without the owner, and end with the region."""

from __future__ import annotations

import json

import harness
import jobs
import pytest


@pytest.mark.parametrize("way", ["mapped", "messages"])
def test_mapped_memory(runner: harness.Runner, way: str) -> None:
    """Two processes. With FI_WEFT_MAP=no the accesses are messages, which the owner must take."""
    if harness.PROVIDER != "weft":
        pytest.skip("an extension of weft")
    program = harness.compile_c("mapped", "-lfabric")
    env = jobs.environment("weft", FI_WEFT_MAP="no" if way == "messages" else "yes")
    output = runner.run([str(program), way, str(jobs.DIST / "weft")], env, 60).check().output
    assert "mapped: good" in output, output
    if way == "mapped":
        owner, initiator = endpoints(output)
        assert owner["mapped_bytes"] > 0 and initiator["mapped_bytes"] == 0, (owner, initiator)
        (granted,), (reached,) = owner["peer_list"], initiator["peer_list"]
        assert (granted["regions_mapped"], granted["regions_shared"], granted["accesses_mapped"]) == (0, 1, 0), granted
        assert (reached["regions_mapped"], reached["regions_shared"]) == (1, 0), reached
        assert reached["accesses_mapped"] > 10_000, reached


def endpoints(output: str) -> list[dict]:
    """The only endpoint of each process in outputs of `weft stat --json`."""
    decoder, found = json.JSONDecoder(), []
    while "{" in output:
        output = output[output.index("{") :]
        look, end = decoder.raw_decode(output)
        (endpoint,) = look["endpoints"]
        found.append(endpoint)
        output = output[end:]
    return found
