#!/usr/bin/env python3
"""Draws the screen of `weft top` beside a running job as SVG, for README.md.

    scripts/top_picture.py OUT.svg SECONDS COMMAND ARGUMENT...

The command is the job. `weft top` runs on a pseudoterminal that pyte (from PyPI) emulates. The picture shows the screen
after the given time, when the job is stopped. Two hosts, as root:

    unshare --mount --net --pid --fork --mount-proc tests/support/two-hosts.sh scripts/top_picture.py …
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from html import escape
from itertools import groupby
from pathlib import Path

import jobs
import pyte

COLUMNS, LINES = 100, 16
CELL, LINE, MARGIN = 8.4, 19, 12
BACK, FORE = "#1d2126", "#d8dee6"
COLOURS = {
    "black": "#5c6370",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "yellow": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#d8dee6",
}


def colour(name: str, default: str) -> str:
    """The colour of pyte's name, which may be six digits."""
    if name == "default":
        return default
    return COLOURS.get(name.removeprefix("bright"), f"#{name}")


def drawing(screen: pyte.Screen) -> str:
    """The screen as SVG. Each run of one style has its place, so no font moves the columns."""
    width, height = COLUMNS * CELL + 2 * MARGIN, LINES * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" xml:space="preserve">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
    ]
    for row in range(LINES):
        cells = [(column, screen.buffer[row][column]) for column in range(COLUMNS)]
        for style, run in groupby(cells, key=lambda cell: (cell[1].fg, cell[1].bg, cell[1].reverse, cell[1].bold)):
            places = list(run)
            text = "".join(cell.data for _, cell in places)
            fore, back = colour(style[0], FORE), colour(style[1], BACK)
            if style[2]:
                fore, back = back, fore
            x, y = MARGIN + places[0][0] * CELL, MARGIN + row * LINE
            if back != BACK:
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{len(text) * CELL:.1f}" height="{LINE}" fill="{back}"/>')
            shown = text.rstrip()
            if shown:
                weight = ' font-weight="bold"' if style[3] else ""
                span = f'textLength="{len(shown) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
                parts.append(f'<text x="{x:.1f}" y="{y + 14}" fill="{fore}"{weight} {span}>{escape(shown)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def watch(seconds: float) -> pyte.Screen:
    """The screen of `weft top` after some seconds."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.execve(jobs.DIST / "weft", ["weft", "top"], {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            stream.feed(os.read(terminal, 65536))
    os.kill(child, signal.SIGKILL)
    os.close(terminal)
    os.waitpid(child, 0)
    return screen


def main() -> None:
    """Runs the job and writes the picture."""
    out, seconds, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        screen = watch(seconds)
        print("\n".join(screen.display))
    finally:
        jobs.kill_tree(job.pid)
        job.wait()
    out.write_text(drawing(screen))


if __name__ == "__main__":
    main()
