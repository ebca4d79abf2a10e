"""A cable with delay and loss, for kernels without netem: a process that sends the frames of one interface through
another.

    python cable.py join A B 2ms 1% PARENT      delays the frames from A to B by 2 ms, and drops 1 % of them
    python cable.py join A B 0ms 1-9,700-799 PARENT
                                                drops only new TCP connections to these ports, in both directions
    python cable.py plain A                     turns off A's offloads, so that it sends whole frames with checksums

`join` ends when the process with the number PARENT has ended.
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

# Commands of ethtool that turn off checksum offload, scatter-gather, TSO and GSO.
SIOCETHTOOL, PLAIN = 0x8946, (0x17, 0x19, 0x1f, 0x24)
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
            except OSError:                             # not every kernel has all of these commands
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
    except OSError:                                     # the interface is down or full: the frame is lost
        pass


def connects_to(frame):
    """Returns the port to which a frame opens a TCP connection (SYN without ACK), or None."""
    four, six = frame[12:14] == b"\x08\x00", frame[12:14] == b"\x86\xdd"
    if not (four and frame[23:24] == b"\x06") and not (six and frame[20:21] == b"\x06"):
        return None
    tcp = frame[14 + (frame[14] & 15) * 4 if four else 54:]
    return int.from_bytes(tcp[2:4], "big") if len(tcp) > 13 and tcp[13] & 0x12 == 0x02 else None


def join(one, other, delay, loss, ports, parent):
    """Passes frames between two interfaces until the parent ends. Those from `one` are delayed by `delay` seconds, and
    dropped with the probability `loss`. Drops new TCP connections to `ports` in both directions."""
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
        ends = [part.split("-") for part in sys.argv[5].split(",")] if "-" in sys.argv[5] else []
        ports = {port for first, last in ends for port in range(int(first), int(last) + 1)}
        lost = 0 if ends else float(sys.argv[5].rstrip("%")) / 100
        join(sys.argv[2], sys.argv[3], seconds(sys.argv[4]), lost, ports, int(sys.argv[6]))
