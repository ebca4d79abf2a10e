"""Waits until all ranks have made a call that is for all ranks. If only some ranks make it, they get an error within
seconds; a collective would wait for the group's timeout, and end the group."""
from __future__ import annotations

import uuid
from datetime import timedelta

import torch.distributed as dist

# How long a rank waits for the others at a call for all ranks, unless the program sets `optimizer.arrival_timeout`.
ARRIVAL_TIMEOUT = timedelta(seconds=30)


class Arrivals:
    """Counts in the group's store the ranks that have come to a call. Each call is a round, whose number is the same on
    all ranks. The first rank that decides a round sets its outcome for all ranks: "all", or why it failed. After a
    failed round the program can still use the group, because no rank has sent anything on the group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Gives the keys of this object a prefix of their own. Collective."""
        prefix = [f"torch_tutti.zero/{uuid.uuid4()}"]
        dist.broadcast_object_list(prefix, group=group, group_src=0)
        self._store = dist.PrefixStore(prefix[0], dist.distributed_c10d._world.pg_map[group][1])
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._round = 0
        self._last_keys: list[str] = []         # of the last round that all ranks have come to

    def wait(self, call: str, advice: str, timeout: timedelta) -> None:
        """Returns when all ranks have made this call. Raises RuntimeError if a rank has not come within the timeout.
        call: its name, which the text of the error shows; a rank with another name has made another call. advice: what
        the text of the error recommends."""
        if timeout <= timedelta(0):
            raise ValueError(f"zero: arrival_timeout is {timeout}; it must be positive")
        if self._ranks == 1:
            return
        # skips the rounds that other ranks have ended by a timeout before this rank came
        while self._store.check([f"{self._round}/outcome"]):
            self._round += 1
        key, self._round = str(self._round), self._round + 1
        self._store.set(f"rank/{self._rank}", f"{key} {call}")
        if self._store.add(f"{key}/{call}", 1) == self._ranks:
            outcome = self._decide(key, "all")
            # all ranks have read the outcomes of the rounds before this one
            for last_key in self._last_keys:
                self._store.delete_key(last_key)
        else:
            outcome = self._await_outcome(key, timeout)
        if outcome != "all":
            raise RuntimeError(f"zero: {call} is for all ranks, but {outcome}. {advice} If correct ranks come that "
                               "late, raise optimizer.arrival_timeout")
        self._last_keys = [f"{key}/{call}", f"{key}/outcome"]

    def _decide(self, key: str, outcome: str) -> str:
        """Sets the outcome of a round unless another rank has set it. Returns the outcome that holds."""
        return self._store.compare_set(f"{key}/outcome", "", outcome).decode()

    def _await_outcome(self, key: str, timeout: timedelta) -> str:
        """Returns the outcome of a round, which fails at the end of the timeout."""
        try:
            self._store.wait([f"{key}/outcome"], timeout)
        except RuntimeError:
            return self._decide(key, f"after {timeout.total_seconds():g} s {self._describe(key)}")
        return self._store.get(f"{key}/outcome").decode()

    def _describe(self, key: str) -> str:
        """Returns the calls that the ranks have made in a round, and which ranks have made none."""
        ranks_in: dict[str, list[int]] = {}
        for rank in range(self._ranks):
            name = f"rank/{rank}"
            at, _, call = self._store.get(name).decode().partition(" ") if self._store.check([name]) else ("", "", "")
            ranks_in.setdefault(call if at == key else "no such function", []).append(rank)
        return ", ".join(f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))} had called {call}"
                         for call, ranks in ranks_in.items())
