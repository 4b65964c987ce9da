"""Starts a command in a terminal of its own, and takes one of the two away when the command has printed READY.

    hang_up.py terminal|command COMMAND ARGUMENT...

`terminal`: the terminal is closed, so the kernel sends SIGHUP to the command, which leads its session. `command`: the
command is killed. Then all processes of its job must end; those that are left are printed.
"""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 10.0


def others() -> list[str]:
    """The command lines of all other processes, except for the ancestors of this one."""
    mine = set()
    pid = os.getpid()
    while pid > 0:
        mine.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in mine:
            try:
                line = (entry / "cmdline").read_text().replace("\0", " ")
                is_running = (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            except OSError:
                continue
            if line and is_running:
                found.append(line)
    return found


how, *command = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # A caller under nohup(1) ignores it.
    os.execvp(command[0], command)
output = b""
while b"READY" not in output:
    output += os.read(terminal, 4096)
if how == "terminal":
    os.close(terminal)
else:
    os.kill(pid, signal.SIGKILL)
end = time.monotonic() + PATIENCE_S
while (left := others()) and time.monotonic() < end:
    time.sleep(0.05)
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
print("left:", left)
sys.exit(bool(left))
