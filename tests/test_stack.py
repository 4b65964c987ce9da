"""No call takes much of its caller's stack. Clients call from threads with stacks of 16 KiB.

The release library is measured, since a debug build takes more.
"""

from __future__ import annotations

import harness
import jobs
import pytest

DATA_BYTES = 4 << 10
CONTROL_BYTES = 8 << 10
PATHS = {
    "shm": {},
    "tcp": {"FI_WEFT_SHM": "0"},
    "encrypted": {"FI_WEFT_SHM": "0", "FI_WEFT_TCP_ENCRYPT": "1"},
}


def limit(name: str, kind: str, path: str) -> int:
    """The largest stack of a function in bytes. The key exchange of encrypted connections runs inside calls
    that read."""
    exchanges = path == "encrypted" and name == "fi_cq_read(connecting)"
    return CONTROL_BYTES if kind == "control" or exchanges else DATA_BYTES


@pytest.mark.parametrize(
    ("path", "logged"),
    [("shm", False), ("shm", True), ("tcp", False), ("encrypted", False), ("encrypted", True)],
)
def test_stack(runner: harness.Runner, path: str, logged: bool) -> None:
    """Every call on a painted stack over one path, without log lines and with all of them."""
    if harness.PROVIDER != "weft":
        pytest.skip("a property of weft alone")
    program = harness.compile_c("stack", "-lfabric")
    argv = [str(program)] + (["log"] if logged else [])
    # Lazy binding would take 3 KB more in the first call that needs a symbol.
    soon = {"LD_BIND_NOW": "1", "FI_WEFT_CONNECT_RETRY_MS": "20", "FI_WEFT_CLOSE_TIMEOUT_MS": "50"}
    # The program lowers the soft limit of descriptors.
    env = jobs.environment("weft", FI_WEFT_RAISE_DESCRIPTORS="no", **soon, **PATHS[path])
    output = runner.run(argv, env, 60).check().output
    # The provider prints the cause of a failed call, which the program provokes.
    lines = [line.split() for line in output.splitlines() if not line.startswith("weft: ")]
    assert len(lines) > 80, lines
    # The host library formats log lines below the provider's frames. That share is not the provider's.
    host = next((int(most) for name, _, _, most in lines if name == "fi_log"), 0)
    assert (host > 0) == logged
    over = [
        f"{name} ({kind}): {silent} bytes, {telling} with lines of the log"
        for name, kind, silent, telling in lines
        if name != "fi_log" and (int(silent) > limit(name, kind, path) or int(telling) > limit(name, kind, path) + host)
    ]
    assert not over, over
