"""Starts two processes of a program on pair.h, `PROGRAM receiver` and `PROGRAM sender`, and exchanges their
names.

The words before the program run it for the receiver: environment (NAME=VALUE), and a tool with its options. The
output is one JSON object with `status`, `out` and `err` of each process.
"""

import json
import os
import subprocess
import sys

LIMIT_S = 40
*tool, program = sys.argv[1:]
variables = {}
while tool and "=" in tool[0] and not tool[0].startswith("-"):
    name, value = tool.pop(0).split("=", 1)
    variables[name] = value
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
receiver = subprocess.Popen([*tool, program, "receiver"], env=os.environ | variables, **pipes)
sender = subprocess.Popen([program, "sender"], **pipes)
lines = [process.stdout.readline() for process in (receiver, sender)]
found = {}
for process, line in ((sender, lines[0]), (receiver, lines[1])):
    process.stdin.write(line.removeprefix("name "))
    process.stdin.flush()
for role, process in (("receiver", receiver), ("sender", sender)):
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    found[role] = {"status": process.returncode, "out": out, "err": err}
print(json.dumps(found))
