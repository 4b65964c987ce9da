"""Runs one command in a sandbox and reports the resources that it leaves behind.

`unshare` starts this process as the first one of new mount, network and process namespaces (see harness.py).
/dev/shm, /tmp and /run are empty, and loopback is the only network interface. Everything found there afterwards
was left by the command. No error reaches the machine outside: when this process ends, the kernel kills all
others in the sandbox, and its mounts, sockets and namespaces vanish.

    sandbox.py KEEP REPORT COMMAND ARGUMENT...

KEEP is a directory that stays visible even if it lies under /tmp. REPORT becomes a JSON object: the command's
`status`, and the `files`, `sockets` and `processes` that exist a moment after its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 2.0
EMPTIED = ("/dev/shm", "/tmp", "/run")


def mount(*words: str, inherited: tuple[int, ...] = ()) -> None:
    """Mounts, or exits with the reason. `inherited` are descriptors that the words name."""
    subprocess.run(["mount", *words], check=True, pass_fds=inherited)


def empty_world(keep: Path) -> None:
    """Mounts empty directories in the sandbox, and `keep` in its place."""
    handle = os.open(keep, os.O_PATH)
    for directory in EMPTIED:
        mount("-t", "tmpfs", "tmpfs", directory)
    if not keep.exists():
        keep.mkdir(parents=True)
        # The path behind the descriptor is hidden now, so mount(8) must not resolve it.
        mount("--no-canonicalize", "--bind", f"/proc/self/fd/{handle}", str(keep), inherited=(handle,))
    os.close(handle)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def reap() -> None:
    """Collects the statuses of orphans, which the first process inherits."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def files_below(top: str, keep: Path) -> list[str]:
    """All files and directories below a directory, without those of `keep`."""
    found = []
    for place, directories, names in os.walk(top):
        directories[:] = [name for name in directories if Path(place, name) != keep]
        found += [f"{place}/{name}" for name in [*directories, *names]]
    return found


def present(keep: Path) -> dict[str, list[str]]:
    """Lists all resources of the kinds that a job may leave."""
    files = [file for top in EMPTIED[:2] for file in files_below(top, keep)]
    sockets = []
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        words = line.split()
        if len(words) > 7:
            sockets.append(words[7])
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            processes.append(f"{entry.name} {line}")
    return {"files": files, "sockets": sockets, "processes": processes}


def main() -> int:
    """Runs the command and writes the report."""
    keep, report, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    empty_world(keep)
    before = present(keep)
    status = subprocess.run(command, start_new_session=True, check=False).returncode
    deadline = time.monotonic() + GRACE_S
    while True:
        reap()
        left = {kind: sorted(set(found) - set(before[kind])) for kind, found in present(keep).items()}
        if not any(left.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    report.write_text(json.dumps({"status": status, **left}))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
