"""Connections between the hosts of `tutti doctor`: a listener that tells the time and counts bytes, and its callers."""
from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import struct
import threading
import time
from typing import Sequence

# The first byte that a caller sends.
_TIME, _DATA = b"t", b"d"
_TIME_REPLY, _DATA_REPLY = struct.Struct("!d"), struct.Struct("!Qd")
# A new connection that a firewall drops has been tried again by then; a caller sends data for so long; the listener
# then tells how many have come, at the latest after so many seconds.
CONNECT_S, _SEND_S, _COUNT_S = 4.0, 0.3, 3.0
_REPLY_S = _COUNT_S + 2
# Fewer bytes than this have fitted into small packets.
_LEAST_BYTES = 65536
_PIECE_BYTES = 1 << 20
_BACKLOG = 128
# Options of a socket that Python does not name (linux/in.h, linux/in6.h).
_IP_MTU, _IPV6_MTU = 14, 24


class Listener:
    """Listens at ports of an address until it is closed. ports: those at which it listens."""

    def __init__(self, address: str, wanted: Sequence[int]) -> None:
        """Listens at those of the wanted ports that are free; 0 is any free port."""
        self._selector = selectors.DefaultSelector()
        self.ports: list[int] = []
        for port in wanted:
            with contextlib.suppress(OSError):
                listening = socket.create_server(_address_of(address, port), family=_family_of(address),
                                                 backlog=_BACKLOG)
                listening.setblocking(False)
                self.ports.append(listening.getsockname()[1])
                self._selector.register(listening, selectors.EVENT_READ)
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                with contextlib.suppress(OSError):
                    connection, _ = key.fileobj.accept()
                    threading.Thread(target=_answer, args=[connection], daemon=True).start()

    def close(self) -> None:
        """Ends the thread and closes the ports."""
        self._waker.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()


def _answer(connection: socket.socket) -> None:
    """Serves one caller."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_REPLY_S)
        request = connection.recv(1)
        if request == _TIME:
            connection.sendall(_TIME_REPLY.pack(time.time()))
        elif request == _DATA:
            connection.sendall(_DATA_REPLY.pack(*_count(connection)))
            connection.shutdown(socket.SHUT_WR)
            # Closing a connection with unread bytes would destroy the reply.
            while connection.recv(_PIECE_BYTES):
                pass


def _count(connection: socket.socket) -> tuple[int, float]:
    """Receives until the caller has sent all, for at most _COUNT_S. Returns the bytes, and the seconds that they
    took."""
    buffer, begin, count = bytearray(_PIECE_BYTES), time.monotonic(), 0
    connection.settimeout(_COUNT_S)
    with contextlib.suppress(TimeoutError):
        while (received := connection.recv_into(buffer)) and time.monotonic() - begin < _COUNT_S:
            count += received
    return count, time.monotonic() - begin


# ---- callers ----
def _address_of(address: str, port: int) -> tuple:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]


def _family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def try_ports(address: str, ports: Sequence[int], limit_s: float = CONNECT_S) -> dict[int, str]:
    """Connects to all ports of an address at once. Returns for each port "", or why no connection came about within
    limit_s: "no answer", or the error of the system."""
    results, waiting = dict.fromkeys(ports, "no answer"), {}
    poller, until = select.poll(), time.monotonic() + limit_s
    for port in ports:
        connection = socket.socket(_family_of(address), socket.SOCK_STREAM)
        connection.setblocking(False)
        error = connection.connect_ex(_address_of(address, port))
        if error in (0, errno.EINPROGRESS):
            waiting[connection.fileno()] = (port, connection)
            poller.register(connection, select.POLLOUT)
        else:
            results[port] = os.strerror(error)
            connection.close()
    while waiting and (left_s := until - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(1000 * left_s):
            port, connection = waiting.pop(descriptor)
            poller.unregister(descriptor)
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            results[port] = os.strerror(error) if error else ""
            connection.close()
    for _, connection in waiting.values():
        connection.close()
    return results


def _call(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_S)
    connection.settimeout(_REPLY_S)
    return connection


def ask_clock_difference(address: str, port: int) -> float | None:
    """Returns by how many seconds the clock of another host is ahead of this one's, or None without an answer."""
    with contextlib.suppress(OSError, struct.error), _call(address, port) as connection:
        begin = time.time()
        connection.sendall(_TIME)
        theirs, = _TIME_REPLY.unpack(connection.recv(_TIME_REPLY.size, socket.MSG_WAITALL))
        return theirs - (begin + time.time()) / 2
    return None


def read_path_mtu(address: str, port: int) -> int | None:
    """Returns the MTU of the path to another host as the kernel knows it, or None."""
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if ":" in address else (socket.IPPROTO_IP, _IP_MTU)
    with contextlib.suppress(OSError), _call(address, port) as connection:
        return connection.getsockopt(level, option)
    return None


def measure_mbit(address: str, port: int) -> float | None:
    """Sends data for a moment. Returns how many Mbit/s have arrived, or None if only small packets arrive."""
    with contextlib.suppress(OSError, struct.error), _call(address, port) as connection:
        _send_data(connection)
        count, seconds = _DATA_REPLY.unpack(connection.recv(_DATA_REPLY.size, socket.MSG_WAITALL))
        return 8e-6 * count / seconds if count >= _LEAST_BYTES else None
    return None


def _send_data(connection: socket.socket) -> None:
    """Sends the request and then data for _SEND_S, as much as the connection takes."""
    piece, until = bytes(_PIECE_BYTES), time.monotonic() + _SEND_S
    connection.sendall(_DATA)
    with contextlib.suppress(TimeoutError):
        while (left_s := until - time.monotonic()) > 0:
            connection.settimeout(left_s)
            connection.send(piece)
    connection.settimeout(_REPLY_S)
    connection.shutdown(socket.SHUT_WR)
