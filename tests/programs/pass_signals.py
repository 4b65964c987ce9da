"""Starts `weft run` with a program that notes its signals, sends each one, and checks what arrives.

    pass_signals.py WEFT
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SIGNALS = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT"]
# A handler of Python would run too late if its signal arrived just before a read; sigwait misses none.
NOTE = """
import os, signal, sys, threading
noted = {getattr(signal, name) for name in sys.argv[1:]}
signal.pthread_sigmask(signal.SIG_BLOCK, noted)
print("READY", sys.stdin.readline().strip(), flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(9)), daemon=True).start()
while True:
    print(signal.Signals(signal.sigwait(noted)).name, flush=True)
"""


def state(pid: int) -> str:
    """The state of a process, as in /proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


for name in SIGNALS:
    # Ignored signals would stay ignored.
    signal.signal(getattr(signal, name), signal.SIG_DFL)
command = [sys.argv[1], "run", sys.executable, "-c", NOTE, *SIGNALS]
# SIGTSTP does not stop a group whose parents are all outside its session.
run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
run.stdin.write("input\n")
run.stdin.flush()
assert run.stdout.readline() == "READY input\n"
for name in SIGNALS:
    os.kill(run.pid, getattr(signal, name))
    assert run.stdout.readline() == f"{name}\n", name
    if name == "SIGTSTP":
        end = time.monotonic() + 10
        while state(run.pid) != "T" and time.monotonic() < end:
            time.sleep(0.01)
        assert state(run.pid) == "T", state(run.pid)
run.stdin.close()
assert run.stdout.read() == "", "a signal arrived twice"
assert run.wait() == 9
print("signals: good")
