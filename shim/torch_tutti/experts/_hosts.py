"""The hosts of a group's ranks, and the tokens that a rank sends to the other hosts. Nothing here communicates.

A rank has one *receiver* on each other host, which gets all its messages to that host: the rank there with the same
index (the position among the ranks of its host), counted round if that host has fewer ranks. The receiver passes the
rows on to the ranks of its host, and sums the results of that host before they go back.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Hosts:
    """The hosts of a group's ranks, as rank `rank` uses them.

    of_rank: the host of each rank. index: each rank's position among the ranks of its host. others: the hosts without
    this rank. receivers: for each of `others`, the rank there that gets this rank's messages. sources: the ranks of
    other hosts whose messages this rank gets. most: the most ranks of a host."""

    def __init__(self, of_rank: list[int], rank: int) -> None:
        members: list[list[int]] = [[] for _ in set(of_rank)]
        for member, host in enumerate(of_rank):
            members[host].append(member)
        self.of_rank, self.rank, self.own = of_rank, rank, of_rank[rank]
        self.count, self.most = len(members), max(len(ranks) for ranks in members)
        self.index = [members[host].index(member) for member, host in enumerate(of_rank)]
        self.others = [host for host in range(self.count) if host != self.own]
        self.receivers = [self._receiver(rank, members[host]) for host in self.others]
        self.sources = [member for member, host in enumerate(of_rank)
                        if host != self.own and self._receiver(member, members[self.own]) == rank]

    def _receiver(self, sender: int, members: list[int]) -> int:
        """Returns the rank that gets a sender's messages to the host with these members."""
        return members[self.index[sender] % len(members)]


class Sends(NamedTuple):
    """The tokens that a rank sends to other hosts. The tensors are int64 on the CPU.

    tokens: for each of `others` of Hosts, the numbers of the tokens that go there, [tokens sent]. choices: for each of
    `others`, the experts of these tokens on that host, or -1, int32 [tokens sent, choices]. counts: tokens that go to
    each host, [hosts]; 0 for the own one. local: the choices on the own host, else -1, [tokens, choices]. targets,
    places: [tokens, choices + others]: as `chosen` and `placed` of Layout, where the message to other host number j is
    expert number experts + j, and choices on other hosts are -1."""
    tokens: list[Tensor]
    choices: list[Tensor]
    counts: Tensor
    local: Tensor
    targets: Tensor
    places: Tensor


def plan_sends(hosts: Hosts, chosen: Tensor, placed: Tensor, experts: int) -> Sends:
    """Chooses the tokens that this rank sends: each token once to each other host that has one of its experts. chosen,
    placed: as in Layout."""
    host_of_expert = torch.tensor(hosts.of_rank).repeat_interleave(experts // len(hosts.of_rank))
    host_of_choice = torch.where(placed >= 0, host_of_expert[chosen.clamp(min=0)], -1)
    local = torch.where(host_of_choice == hosts.own, chosen, -1)
    tokens, choices, targets, places = [], [], [local], [placed]
    counts = torch.zeros(hosts.count, dtype=torch.int64)
    for number, host in enumerate(hosts.others):
        is_there = host_of_choice == host
        goes = is_there.any(1)
        tokens.append(goes.nonzero().flatten())
        choices.append(torch.where(is_there, chosen, -1)[tokens[-1]].int())
        counts[host] = len(tokens[-1])
        targets.append(torch.where(goes, experts + number, -1)[:, None])
        places.append((goes.cumsum(0) - 1)[:, None])
    return Sends(tokens, choices, counts, local, torch.cat(targets, 1), torch.cat(places, 1))
