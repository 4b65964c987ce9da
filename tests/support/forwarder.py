"""Replaces the bridge between the two hosts of two-hosts.sh, and mishandles frames.

    forwarder.py SEED < orders

Prints `ready` once it forwards. Each line of its input is an order. `lossy SHARE MILLISECONDS`: this share of
all frames is lost. The others are delayed by different times up to the maximum, which reorders them. `forget`:
drops the frames of all TCP connections seen before, like a middle box that has lost its table.
"""

from __future__ import annotations

import heapq
import os
import random
import selectors
import socket
import subprocess
import sys
import time

EVERYTHING = 3  # ETH_P_ALL
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
VIRTIO = 10  # bytes of the header that describes pending checksums and segmentation
FRAME_MAX = VIRTIO + 14 + 65536
TCP = 6


def tap(interface: str) -> socket.socket:
    """Captures all frames from and to an interface. The kernel may deliver many packets as one frame."""
    subprocess.run(["ip", "link", "set", interface, "nomaster"], check=True)
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    frames.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    frames.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    frames.bind((interface, 0))
    return frames


def connection(frame: bytes) -> frozenset[bytes] | None:
    """The two ends of the TCP connection of a frame."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and frame[23] == TCP:
        start, source, sink = 14 + 4 * (frame[14] & 15), frame[26:30], frame[30:34]
    elif kind == b"\x86\xdd" and frame[20] == TCP:
        start, source, sink = 54, frame[22:38], frame[38:54]
    else:
        return None
    return frozenset((source + frame[start : start + 2], sink + frame[start + 2 : start + 4]))


class Forwarder:
    """Forwards frames between two interfaces, with losses and delays."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.share, self.late_s = 0.0, 0.0
        self.known: set[frozenset[bytes]] = set()
        self.forgotten: set[frozenset[bytes]] = set()
        self.waiting: list[tuple[float, int, socket.socket, bytes]] = []
        self.count = 0

    def order(self, line: str) -> None:
        """Executes an order."""
        word, *rest = line.split()
        if word == "lossy":
            self.share, self.late_s = float(rest[0]), float(rest[1]) / 1e3
        elif word == "forget":
            self.forgotten |= self.known

    def take(self, data: bytes, out: socket.socket) -> None:
        """Drops or queues a captured frame."""
        ends = connection(data[VIRTIO:])
        if ends is not None:
            self.known.add(ends)
            if ends in self.forgotten or self.random.random() < self.share:
                return
        self.count += 1
        due = time.monotonic() + self.random.uniform(0, self.late_s)
        heapq.heappush(self.waiting, (due, self.count, out, data))

    def send(self) -> float | None:
        """Sends the due frames. Returns the seconds until the next one is due, or None."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            _, _, out, data = heapq.heappop(self.waiting)
            try:
                out.send(data)
            except OSError:  # the other side is down or full, so the frame is lost
                pass
        return None


def main() -> None:
    """Forwards until its input ends."""
    forwarder = Forwarder(int(sys.argv[1]))
    one, two = tap("wve1"), tap("wve2")
    selector = selectors.DefaultSelector()
    for here, there in ((one, two), (two, one)):
        here.setblocking(False)
        selector.register(here, selectors.EVENT_READ, there)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select(forwarder.send()):
            if key.data is None:
                orders = os.read(0, 4096)
                if not orders:
                    return
                for line in orders.decode().splitlines():
                    forwarder.order(line)
                continue
            try:
                for _ in range(64):
                    forwarder.take(key.fileobj.recv(FRAME_MAX), key.data)
            except BlockingIOError:
                pass


if __name__ == "__main__":
    main()
