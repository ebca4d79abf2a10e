"""A cable with delay and loss, for kernels without netem: frames that come out of one interface go into the other.

    python cable.py join A B 2ms 1% PARENT      delays frames from A, and loses some; ends with that parent
    python cable.py join A B 0ms 700-799 PARENT drops new connections to these ports, both ways, and nothing else
    python cable.py plain A                     A sends whole frames with checksums from now on, and no large ones
"""
import collections
import fcntl
import os
import random
import select
import socket
import struct
import sys
import time

SIOCETHTOOL, PLAIN = 0x8946, (0x17, 0x19, 0x1f, 0x24)   # checksums, scatter and gather, TSO, GSO: off
ETH_P_ALL, SOL_PACKET, PACKET_IGNORE_OUTGOING = 3, 263, 23
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}
AT_ONCE = 64


def make_plain(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for feature in PLAIN:
            import ctypes
            value = ctypes.create_string_buffer(struct.pack("II", feature, 0))
            request = struct.pack("16sP8x", interface.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)
            except OSError:                             # an older or a newer kernel has not all of these
                pass


def seconds(text):
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return float(text[:-len(unit)]) * UNITS[unit]


def opened(interface):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.bind((interface, 0))
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    end.setblocking(False)
    return end


def frames(end):
    """Yields the frames that have arrived, but at most AT_ONCE, so that other work is not delayed."""
    for _ in range(AT_ONCE):
        try:
            yield end.recv(65536)
        except BlockingIOError:
            return


def send(end, frame):
    try:
        end.send(frame)
    except OSError:                                     # its other end is down or full: as on any cable
        pass


def connects_to(frame):
    """The port, of a frame with TCP's SYN and no ACK; or None."""
    four, six = frame[12:14] == b"\x08\x00", frame[12:14] == b"\x86\xdd"
    if not (four and frame[23:24] == b"\x06") and not (six and frame[20:21] == b"\x06"):
        return None
    tcp = frame[14 + (frame[14] & 15) * 4 if four else 54:]
    return int.from_bytes(tcp[2:4], "big") if len(tcp) > 13 and tcp[13] & 0x12 == 0x02 else None


def join(one, other, delay, loss, ports, parent):
    ends = one, other = opened(one), opened(other)
    chance, waiting = random.Random(77), collections.deque()
    print("ready", flush=True)
    while os.path.exists(f"/proc/{parent}"):
        patience = min(1, max(0, waiting[0][0] - time.monotonic())) if waiting else 1
        select.select(ends, [], [], patience)
        for frame in frames(one):
            if chance.random() >= loss and connects_to(frame) not in ports:
                waiting.append((time.monotonic() + delay, frame))
        for frame in frames(other):
            if connects_to(frame) not in ports:
                send(one, frame)
        while waiting and waiting[0][0] <= time.monotonic():
            send(other, waiting.popleft()[1])


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        make_plain(sys.argv[2])
    else:
        first, _, last = sys.argv[5].partition("-")
        ports = range(int(first), int(last) + 1) if last else ()
        lost = 0 if last else float(first.rstrip("%")) / 100
        join(sys.argv[2], sys.argv[3], seconds(sys.argv[4]), lost, ports, int(sys.argv[6]))
