"""Describes a cluster, and computes the traffic of groups of its devices and the time of that traffic. There are two
levels of links: each device has a link to the others of its host; all devices of a host share the link to other hosts.

Volumes are exact: in a reduce-scatter or an all-gather of n bytes each of p ranks sends n (p - 1) / p, in an all-reduce
twice that, in ⌈log₂ p⌉ messages each (Rabenseifner 2004; Thakur et al. 2005). Over H hosts slices are reduced on the
host first, so a host sends 2 (H - 1) / H n for each group that has one slice or more there. A message takes T = α + nβ
(Hockney 1994)."""
from __future__ import annotations

import math
from typing import NamedTuple

from torch_tutti._planning.units import Link

# (upper limit of Roof.ratio, name)
REGIMES = ((0.2, "severely communication-bound"), (0.8, "communication-bound"), (1.2, "near the ridge"),
           (math.inf, "compute-bound"))
ADVICE = {"severely communication-bound": "another division, a faster link, or fewer bytes",
          "communication-bound": "more tokens, if there is a critical number of them",
          "near the ridge": "sending takes as long as computing", "compute-bound": "computing takes longer"}


class Device(NamedTuple):
    """A device. flops: its most operations per second, in the precision of training. efficiency: the share of flops
    that products of matrices reach, an assumption. memory: bytes. bandwidth: bytes per second of its memory. local: its
    link to others of its host. across: its part of the host's link to other hosts. overlap: the share of computing
    during which data-parallel communication may run."""
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
    """Bytes and messages to send. local: bytes that a device sends to others of its host. across: bytes that a host
    sends to other hosts. local_messages, across_messages: the numbers of messages, one after the other."""
    local: float = 0.0
    across: float = 0.0
    local_messages: float = 0.0
    across_messages: float = 0.0

    def multiplied_by(self, count: float) -> Traffic:
        return Traffic(*(count * part for part in self))

    def added_to(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(self, other)))


class Cluster(NamedTuple):
    """A cluster of equal devices. local: the link of a device. across: the link of a host to others, shared by its
    devices."""
    device: Device
    devices: int
    hosts: int
    local: Link
    across: Link

    @property
    def per_host(self) -> int:
        """Devices of a host."""
        return self.devices // self.hosts

    @property
    def rate(self) -> float:
        """Operations per second that a device achieves."""
        return self.device.flops * self.device.efficiency

    def seconds(self, traffic: Traffic) -> float:
        """Returns the time of the traffic: that of both levels, one after the other."""
        return (traffic.local / self.local.speed + traffic.local_messages * self.local.latency
                + traffic.across / self.across.speed + traffic.across_messages * self.across.latency)

    def ridge(self, level: str) -> float:
        """Returns the operations per byte at which computing at the peak (device.flops, not `rate`) takes as long as
        sending: the ridge of the roofline, peak / bandwidth. level: "local" or "across"."""
        return (self.device.flops / self.local.speed if level == "local"
                else self.device.flops * self.per_host / self.across.speed)


class Group(NamedTuple):
    """A group of `size` ranks at equal distances. hosts: how many it spans. here: its ranks on one host. alike: how
    many such groups have ranks on one host."""
    size: int
    hosts: int
    here: int
    alike: float


def group(cluster: Cluster, size: int, stride: int) -> Group:
    """Returns the group of `size` ranks whose numbers differ by `stride`. Ranks fill one host after the other."""
    per_host = cluster.per_host
    if size * stride <= per_host and per_host % (size * stride) == 0:
        return Group(size, 1, size, per_host / size)
    here = max(1, min((size + 1) // 2 if cluster.hosts > 1 else size, per_host // stride))   # two hosts or more
    return Group(size, min(cluster.hosts, math.ceil(size / here)), here, per_host / here)


def rounds(count: int) -> int:
    """Returns ⌈log₂ count⌉, the messages of a reduce-scatter or an all-gather of `count` ranks."""
    return math.ceil(math.log2(count)) if count > 1 else 0


def half(members: Group, size: float) -> Traffic:
    """Returns the traffic of a reduce-scatter or an all-gather, half of an all-reduce. size: bytes of the whole
    array."""
    return Traffic((members.here - 1) / members.here * size,
                   members.alike * (members.hosts - 1) / members.hosts * size, rounds(members.here),
                   rounds(members.hosts))


def all_reduce(members: Group, size: float) -> Traffic:
    """Returns the traffic of an all-reduce of `size` bytes."""
    return half(members, size).multiplied_by(2)


def all_to_all(members: Group, size: float) -> Traffic:
    """Returns the traffic of an all-to-all. size: bytes that a rank has for all ranks, including itself."""
    across = ((members.size - members.here) / members.size * size * members.here * members.alike
              if members.hosts > 1 else 0.0)
    return Traffic((members.here - 1) / members.size * size, across, members.here - 1, members.size - members.here)


# ---- roofline (Williams et al. 2009), with communicated bytes in place of bytes of memory ----
def regime(ratio: float) -> str:
    """Returns the name of the regime of a Roof.ratio."""
    return next(name for limit, name in REGIMES if ratio < limit)


class Roof(NamedTuple):
    """The roofline of one kind of communication at one level. sent: bytes in a step. intensity: operations for each
    byte. ridge: as in Cluster.ridge(). critical: the tokens of a step at which the intensity would be the ridge's;
    None: more tokens also send more bytes."""
    kind: str
    level: str
    sent: float
    intensity: float
    ridge: float
    critical: float | None

    @property
    def ratio(self) -> float:
        """Intensity divided by the ridge: above 1 computing takes longer than sending."""
        return self.intensity / self.ridge


def roofs(cluster: Cluster, kinds: dict[str, Traffic], flops: float, tokens: int, fixed: set[str]) -> list[Roof]:
    """Returns a Roof for each kind of traffic and each level at which it sends. flops: operations of a device in a
    step. fixed: kinds whose bytes do not depend on the number of tokens."""
    found = []
    for kind, traffic in kinds.items():
        host_flops = flops * cluster.per_host
        for level, sent, flops_there in (("local", traffic.local, flops), ("across", traffic.across, host_flops)):
            if sent:
                ridge, intensity = cluster.ridge(level), flops_there / sent
                found.append(Roof(kind, level, sent, intensity, ridge,
                                  tokens * ridge / intensity if kind in fixed else None))
    return found
