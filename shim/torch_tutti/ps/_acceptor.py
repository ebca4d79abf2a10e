"""Takes late workers on a server while it serves: a thread looks for requests in the store, and a thread for each late
worker makes the group and agrees on the push with which the worker begins.

In mode "sync" all slices of all servers must count a late worker from the same step on. When its group is made, each
shard counts it as present, with the pushes of the slowest worker. So no shard makes a further step until the late
worker begins. The late worker gets these numbers from all servers, and begins after the highest one. A shard that is
behind makes its steps up to there without the late worker."""
from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Iterable

from torch import Tensor

from torch_tutti.ps._link import JOIN, Header, Link
from torch_tutti.ps._meeting import POLL_S, Meeting

if TYPE_CHECKING:
    from torch_tutti.ps._server import Server

CONNECT_S = 60.0                        # how long a server waits until a late worker joins their group


class Acceptor:
    """The late workers of a server. meeting: the keys of its run. rank: the server's. untrained: the tensors that a
    late worker gets from this server, besides slices."""

    def __init__(self, meeting: Meeting, rank: int, untrained: Iterable[Tensor]) -> None:
        self._meeting, self._rank, self._untrained = meeting, rank, list(untrained)
        self._closed = threading.Event()

    def start(self, server: Server) -> None:
        """Begins to look for late workers."""
        self._server = server
        self._thread = threading.Thread(target=self._look, name="tutti ps", daemon=True)
        self._thread.start()

    def end(self, reason: str) -> None:
        """Takes no more workers. reason: the answer to late workers from now on."""
        self._closed.set()
        self._thread.join()
        with suppress(RuntimeError):                    # the store is gone, so late workers cannot ask either
            self._meeting.end(self._rank, reason)

    def _look(self) -> None:
        """The thread that looks for requests, until end() or until the store is gone."""
        ticket = 0
        with suppress(RuntimeError):
            while not self._closed.wait(POLL_S):
                while self._meeting.is_claimed(ticket):
                    threading.Thread(target=self._admit, args=(ticket,), name="tutti ps", daemon=True).start()
                    ticket += 1

    def _admit(self, ticket: int) -> None:
        """The thread of one late worker until it is a worker like others."""
        problem = self._server.begin_admission()
        if problem:
            with suppress(RuntimeError):                # the store is gone, so the late worker cannot read the answer
                self._meeting.answer(ticket, self._rank, problem)
            return
        number, link, comes = self._meeting.number_of(ticket), None, False
        try:
            comes = self._meeting.answer(ticket, self._rank, "")
            if comes:
                link = self._meeting.connect(ticket, self._rank, True, CONNECT_S)
                self._agree(link)
        except Exception as error:
            self._server.drop_worker(number, str(error))
            if link is not None:
                link.destroy()
        finally:
            self._server.end_admission(comes)

    def _agree(self, link: Link) -> None:
        """Sends a late worker the tensors that are not trained, and agrees with it on the pushes with which it
        begins."""
        for tensor in self._untrained:
            link.send_untrained(tensor)
        link.receive()                                  # JOIN: it has the tensors; from now on steps wait for it
        link.send(Header(JOIN, clock=self._server.add_worker(link.peer)))
        self._server.start_worker(link, link.receive().clock)
