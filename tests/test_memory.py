"""Memory that peers map (fi_open_ops "weft_memory"): accesses complete without the owner, and end with the region."""

from __future__ import annotations

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
    output = runner.run([str(program), way], env, 60).check().output
    assert "mapped: good" in output, output
