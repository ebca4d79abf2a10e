"""A cluster, the traffic of groups of its devices, and its time. There are two levels of links: inside a host each
device has its own; all devices of a host share the link to other hosts.

Volumes are exact: a reduce-scatter or an all-gather of n bytes sends n (p - 1) / p from each of p ranks, an all-reduce
twice that, in ⌈log₂ p⌉ messages each (Rabenseifner 2004; Thakur et al. 2005). Over H hosts slices are reduced on the
host first, so a host sends 2 (H - 1) / H n for each group that has one slice or more there. A message takes T = α + nβ
(Hockney 1994)."""
from __future__ import annotations

import math
from typing import NamedTuple

from torch_tutti._planning.units import Link

REGIMES = ((0.2, "severely communication-bound"), (0.8, "communication-bound"), (1.2, "near the ridge"),
           (math.inf, "compute-bound"))
ADVICE = {"severely communication-bound": "another division, a faster link, or fewer bytes",
          "communication-bound": "more tokens, if there is a critical number of them",
          "near the ridge": "sending takes as long as computing", "compute-bound": "computing takes longer"}


class Device(NamedTuple):
    """flops: operations a second at most, in the precision of training; efficiency: the share that products of matrices
    reach, an assumption; memory: bytes; bandwidth: bytes a second of it; local, across: what links a device to others
    of its host, and its part of what links the host to others; overlap: the share of computing behind which
    data-parallel communication may go on."""
    flops: float
    efficiency: float
    memory: float
    bandwidth: float
    local: Link
    across: Link
    overlap: float


# h100: NVIDIA H100 Tensor Core GPU datasheet (2023), SXM: 989.4 TFLOP/s of bf16 without sparsity, HBM3, NVLink of 900
# GB/s both ways together; DGX H100 datasheet: a 400 Gbit/s port for each. a100: NVIDIA A100 datasheet (2021), SXM of 80
# GB: 312 TFLOP/s, NVLink of 600 GB/s; DGX A100: 200 Gbit/s for each. cpu: a core with two units of 512 bits (Intel 64
# Optimization Reference Manual: 64 operations of float32 in a cycle) at 2.5 GHz, its part of a socket's memory and of
# 25 Gbit/s; nothing is hidden where computing keeps all cores busy. Latencies and efficiencies are round assumptions.
DEVICES = {
    "h100": Device(989.4e12, 0.5, 80e9, 3.35e12, Link(450e9, 5e-6), Link(50e9, 15e-6), 1.0),
    "a100": Device(312e12, 0.6, 80e9, 2.039e12, Link(300e9, 5e-6), Link(25e9, 15e-6), 1.0),
    "cpu": Device(160e9, 0.6, 8e9, 10e9, Link(5e9, 2e-6), Link(0.1e9, 20e-6), 0.0),
}


class Traffic(NamedTuple):
    """local: bytes that a device sends to others of its host; across: bytes that a host sends to other hosts; and the
    numbers of messages, one after the other."""
    local: float = 0.0
    across: float = 0.0
    local_messages: float = 0.0
    across_messages: float = 0.0

    def times(self, count: float) -> Traffic:
        return Traffic(*(count * part for part in self))

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(self, other)))


class Cluster(NamedTuple):
    """across: the link of a host to others, shared by its devices."""
    device: Device
    devices: int
    hosts: int
    local: Link
    across: Link

    @property
    def per_host(self) -> int:
        return self.devices // self.hosts

    @property
    def rate(self) -> float:
        """Operations per second that a device achieves."""
        return self.device.flops * self.device.efficiency

    def seconds(self, traffic: Traffic) -> float:
        """The time of the traffic, with both levels one after the other."""
        return (traffic.local / self.local.speed + traffic.local_messages * self.local.latency
                + traffic.across / self.across.speed + traffic.across_messages * self.across.latency)

    def ridge(self, level: str) -> float:
        """The operations per byte above which computing takes longer than sending (roofline)."""
        return (self.device.flops / self.local.speed if level == "local"
                else self.device.flops * self.per_host / self.across.speed)


class Group(NamedTuple):
    """A group of `size` ranks at equal distances. hosts: that it spans; here: its ranks on a host; alike: the number of
    such groups that a host takes part in."""
    size: int
    hosts: int
    here: int
    alike: float


def group(cluster: Cluster, size: int, stride: int) -> Group:
    """The group of `size` ranks whose numbers differ by `stride`. Ranks fill one host after the other."""
    per_host = cluster.per_host
    if size * stride <= per_host and per_host % (size * stride) == 0:
        return Group(size, 1, size, per_host / size)
    here = max(1, min((size + 1) // 2 if cluster.hosts > 1 else size, per_host // stride))   # two hosts or more
    return Group(size, min(cluster.hosts, math.ceil(size / here)), here, per_host / here)


def rounds(count: int) -> int:
    return math.ceil(math.log2(count)) if count > 1 else 0


def half(of: Group, amount: float) -> Traffic:
    """A reduce-scatter or an all-gather of so many bytes."""
    return Traffic((of.here - 1) / of.here * amount, of.alike * (of.hosts - 1) / of.hosts * amount, rounds(of.here),
                   rounds(of.hosts))


def all_reduce(of: Group, amount: float) -> Traffic:
    return half(of, amount).times(2)


def all_to_all(of: Group, amount: float) -> Traffic:
    """amount: bytes that a rank has for all, itself as well."""
    across = (of.size - of.here) / of.size * amount * of.here * of.alike if of.hosts > 1 else 0.0
    return Traffic((of.here - 1) / of.size * amount, across, of.here - 1, of.size - of.here)


# ---- roofline: Williams et al. 2009, with the bytes that are communicated for those of memory ----
def regime(ratio: float) -> str:
    """ratio: operations for each byte, by those of the ridge."""
    return next(name for limit, name in REGIMES if ratio < limit)


class Roof(NamedTuple):
    """Of one kind of communication at one level, in a step. intensity: operations for each byte (CCR). critical: tokens
    of a step at which it would be the ridge's; None: more tokens send more."""
    kind: str
    level: str
    sent: float
    intensity: float
    ridge: float
    critical: float | None

    @property
    def ratio(self) -> float:
        return self.intensity / self.ridge


def roofs(cluster: Cluster, kinds: dict[str, Traffic], flops: float, tokens: int, fixed: set[str]) -> list[Roof]:
    """flops: of a device in a step. fixed: kinds that send as much for any number of tokens."""
    found = []
    for kind, traffic in kinds.items():
        of_host = flops * cluster.per_host
        for level, sent, done in (("local", traffic.local, flops), ("across", traffic.across, of_host)):
            if sent:
                ridge, intensity = cluster.ridge(level), done / sent
                found.append(Roof(kind, level, sent, intensity, ridge,
                                  tokens * ridge / intensity if kind in fixed else None))
    return found
