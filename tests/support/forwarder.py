"""Stands between the two hosts of two-hosts.sh in the place of their bridge, and mishandles what passes.

    forwarder.py SEED < orders

Prints `ready` once it forwards. Orders, a line each:
`lossy SHARE MILLISECONDS`: of all frames, that share is lost; the others are late by up to so long, each by another time, so that they
come in another order.
`forget`: as a middle box does that has lost its table: frames of TCP connections that have passed before are dropped from now on without a word.
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
VIRTIO = 10  # bytes of the header that says which checksum, and which cutting into segments, is still to be done
FRAME_MAX = VIRTIO + 14 + 65536
TCP = 6


def tap(interface: str) -> socket.socket:
    """All frames that come out of an interface, and into it; as the kernel has them, which may be many packets in one."""
    subprocess.run(["ip", "link", "set", interface, "nomaster"], check=True)
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERYTHING))
    frames.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    frames.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    frames.bind((interface, 0))
    return frames


def connection(frame: bytes) -> frozenset[bytes] | None:
    """The two ends of the TCP connection to which a frame belongs."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and frame[23] == TCP:
        start, source, sink = 14 + 4 * (frame[14] & 15), frame[26:30], frame[30:34]
    elif kind == b"\x86\xdd" and frame[20] == TCP:
        start, source, sink = 54, frame[22:38], frame[38:54]
    else:
        return None
    return frozenset((source + frame[start : start + 2], sink + frame[start + 2 : start + 4]))


class Forwarder:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.share, self.late_s = 0.0, 0.0
        self.known: set[frozenset[bytes]] = set()
        self.forgotten: set[frozenset[bytes]] = set()
        self.waiting: list[tuple[float, int, socket.socket, bytes]] = []
        self.count = 0

    def order(self, line: str) -> None:
        """Does what is asked."""
        word, *rest = line.split()
        if word == "lossy":
            self.share, self.late_s = float(rest[0]), float(rest[1]) / 1e3
        elif word == "forget":
            self.forgotten |= self.known

    def take(self, data: bytes, out: socket.socket) -> None:
        """One frame has come."""
        ends = connection(data[VIRTIO:])
        if ends is not None:
            self.known.add(ends)
            if ends in self.forgotten or self.random.random() < self.share:
                return
        self.count += 1
        due = time.monotonic() + self.random.uniform(0, self.late_s)
        heapq.heappush(self.waiting, (due, self.count, out, data))

    def send(self) -> float | None:
        """Sends what is due; how long it is until there is more."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            _, _, out, data = heapq.heappop(self.waiting)
            try:
                out.send(data)
            except OSError:  # the other side is down, or full: so it is lost
                pass
        return None


def main() -> None:
    """Forwards until there are no more orders to come."""
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
