"""An attacker on the network of a job, which sees all traffic but does not know the key. As `watch` it runs where all
packets pass, and writes the first bytes that each connecting process sends. As `attack` it runs on its own host, and
connects to every port that it has seen: it holds connections, sends another version, repeats bytes that it has seen,
and sends random bytes, as fast as it can. The job may answer with an opening, and with a refusal or nothing.

    stranger.py watch FILE                    until it is killed
    stranger.py attack FILE SECONDS           prints what it did as JSON
"""
import contextlib
import json
import os
import random
import socket
import struct
import sys
import time

ETH_P_ALL, FIRST_BYTES = 3, 400
# The kernel chooses ports from here on; the store's port is below.
LEAST_PORT = 32768
# These are from backend/processes/handshake.h.
OPENING_BYTES, HELLO_BYTES, ANSWER_BYTES, HEAD_BYTES = 32, 176, 56, 16
MAGICS, OPENING, REFUSED = (b"tutti-l\0", b"tutti-t\0"), 1, 5
# The connections to each port that are held without sending.
HELD = 150


# ---- the watcher ----
def payload_of(packet):
    """Returns (sender, receiver, whether it is the first packet of a connection, bytes) of a packet of TCP over IPv4,
    or None for another packet."""
    if len(packet) < 54 or packet[12:14] != b"\x08\x00" or packet[23] != 6:
        return None
    at = 14 + (packet[14] & 15) * 4
    end = 14 + struct.unpack("!H", packet[16:18])[0]
    here, there = struct.unpack("!HH", packet[at:at + 4])
    addresses = socket.inet_ntoa(packet[26:30]), socket.inet_ntoa(packet[30:34])
    return ((addresses[0], here), (addresses[1], there), packet[at + 13] & 0x12 == 2,
            packet[at + (packet[at + 12] >> 4) * 4:end])


def watch(path):
    # {(caller, called): the first bytes of the caller}
    sent = {}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as wire, open(path, "w") as out:
        while True:
            packet, about = wire.recvfrom(65536)
            found = payload_of(packet)
            # Each packet passes twice, in and out.
            if not found or about[2] == socket.PACKET_OUTGOING:
                continue
            here, there, is_first, data = found
            if is_first and there[1] >= LEAST_PORT and (here, there) not in sent:
                sent[here, there] = b""
            before = sent.get((here, there))
            if before is None or len(before) >= FIRST_BYTES or (before and not data):
                continue
            sent[here, there] = before + data
            out.write(json.dumps([*there, sent[here, there].hex()]) + "\n")
            out.flush()


# ---- the attacker ----
class Attack:
    def __init__(self, path):
        self.path, self.at, self.seen, self.held, self.learned = path, 0, {}, {}, []
        self.counts = {"connected": 0, "repeated a hello": 0, "refused": 0, "closed": 0}
        self.chance = random.Random(1)

    def look(self):
        """Reads what the watcher has written since the last call."""
        with contextlib.suppress(FileNotFoundError), open(self.path) as lines:
            lines.seek(self.at)
            for line in lines:
                if not line.endswith("\n"):
                    break
                self.at += len(line)
                address, port, sent = json.loads(line)
                self.seen.setdefault((address, port), set()).add(bytes.fromhex(sent))

    def connect(self, target):
        one = socket.socket()
        one.settimeout(0.2)
        try:
            one.connect(target)
        except OSError:
            one.close()
            # The process that listened there has ended.
            self.seen.pop(target, None)
            for held in self.held.pop(target, []):
                held.close()
            return None
        self.counts["connected"] += 1
        return one

    def judge(self, came):
        """Counts an answer, and adds it to `learned` if it has more than an attacker may learn: that a version of tutti
        listens there, a random number, and the refusal."""
        opening, answer = came[:OPENING_BYTES], came[OPENING_BYTES:]
        head = struct.unpack("8sII", opening[:HEAD_BYTES]) if len(opening) == OPENING_BYTES else None
        right = not came or (head and head[0] in MAGICS and head[2] == OPENING)
        if answer:
            refusal = struct.unpack("8sII", answer[:HEAD_BYTES]) if len(answer) == ANSWER_BYTES else None
            right = right and refusal and refusal[2] == REFUSED and not any(answer[HEAD_BYTES:])
            self.counts["refused"] += 1
        else:
            self.counts["closed"] += 1
        if not right:
            self.learned.append(came.hex())

    def send(self, target, data):
        """Sends data over a new connection, and judges the answer."""
        one = self.connect(target)
        if not one:
            return
        came = b""
        with one, contextlib.suppress(OSError):
            one.sendall(data)
            while len(came) < 4096 and (more := one.recv(4096)):
                came += more
        self.counts["repeated a hello"] += len(data) >= HELLO_BYTES
        self.judge(came)

    def hold(self, target):
        """Makes a connection that sends nothing, and closes the oldest one if there are more than HELD."""
        held = self.held.setdefault(target, [])
        if one := self.connect(target):
            held.append(one)
        if len(held) > HELD:
            held.pop(0).close()

    def round(self, target):
        another_version = struct.pack("8sI", MAGICS[self.chance.randrange(2)], self.chance.randrange(20) + 1000)
        self.send(target, another_version)
        seen = sorted(self.seen.get(target, ()), key=len)
        for data in [*seen[-1:], *self.chance.sample(seen, min(3, len(seen)))]:
            self.send(target, data)
        self.send(target, os.urandom(self.chance.randrange(1, 500)))
        for _ in range(20):
            self.hold(target)

    def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            for target in list(self.seen):
                self.round(target)
            if not self.seen:
                time.sleep(0.01)
        return {**self.counts, "learned": self.learned[:5]}


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(sys.argv[2])
    print(json.dumps(Attack(sys.argv[2]).run(float(sys.argv[3]))))
