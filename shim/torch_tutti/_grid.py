"""Grids of ranks: which of them work together in tensor, pipeline, data, context and expert parallelism, by c_api's
tutti_grid, and torch's groups and device meshes of them. torch is imported by what makes groups only."""
from __future__ import annotations

import ctypes
import math
from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, Sequence

from torch_tutti._library import _check, _library, fits

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

_AXES, _NAME = 8, 8
ORDER = "tp-cp-ep-dp-pp"


class _Grid(ctypes.Structure):
    _fields_ = [("ranks", c_int), ("axes", c_int), ("size", c_int * _AXES), ("name", (ctypes.c_char * _NAME) * _AXES)]


class Layout:
    """Ranks as points of a grid with named axes; the first name of the order varies fastest. Pure data, the same on
    every rank. Raises ValueError for what cannot be."""

    def __init__(self, order: str, sizes: dict[str, int], ranks: int, _made: _Grid | None = None) -> None:
        self._grid = _Grid() if _made is None else _made
        if _made is None:
            fits("ranks", ranks)
            words = ",".join(f"{name}={size}" for name, size in sizes.items())
            _check(_library().tutti_grid_make(byref(self._grid), order.encode(), words.encode(), ranks))
        self.ranks = self._grid.ranks
        self.names = tuple(self._grid.name[axis].value.decode() for axis in range(self._grid.axes))
        self.sizes = dict(zip(self.names, self._grid.size))

    def experts(self, tp: int, ep: int) -> Layout:
        """The experts' grid over the same ranks: tp ranks share an expert, ep have different ones, dp is the rest."""
        made = _Grid()
        fits("grid", tp, ep)
        _check(_library().tutti_grid_experts(byref(made), byref(self._grid), tp, ep))
        return Layout("", {}, 0, made)

    def index(self, rank: int) -> dict[str, int]:
        """A rank's coordinate on each axis."""
        fits("a rank", rank)
        found = (c_int * _AXES)()
        _check(_library().tutti_grid_index(byref(self._grid), rank, found))
        return dict(zip(self.names, found))

    def groups(self, names: str) -> list[list[int]]:
        """All groups of ranks that differ in these axes alone, "tp" or "dp-cp": each ascending, numbered by the other
        axes."""
        count, size = c_int(), c_int()
        _check(_library().tutti_grid_groups(byref(self._grid), names.encode(), byref(count), byref(size)))
        found, member = [], (c_int * size.value)()
        for group in range(count.value):
            _check(_library().tutti_grid_group(byref(self._grid), names.encode(), group, member))
            found.append(list(member))
        return found

    def find(self, names: str, rank: int) -> tuple[int, int]:
        """Which of these groups the rank is in, and its place there."""
        fits("a rank", rank)
        group, place = c_int(), c_int()
        _check(_library().tutti_grid_find(byref(self._grid), names.encode(), rank, byref(group), byref(place)))
        return group.value, place.value

    def straddles(self, names: str, hosts: Sequence[int]) -> tuple[int, int]:
        """hosts: of each rank. The first group that is on several, or -1, and the most hosts that one is on."""
        if len(hosts) != self.ranks:
            raise ValueError(f"grid: hosts are given for {len(hosts)} ranks, but there are {self.ranks}")
        fits("grid", *hosts)
        group, most = c_int(), c_int()
        _check(_library().tutti_grid_straddles(byref(self._grid), names.encode(), (c_int * self.ranks)(*hosts),
                                               byref(group), byref(most)))
        return group.value, most.value

    def check_inside(self, names: str, hosts: Sequence[int]) -> None:
        """Raises ValueError where a group of these leaves its host, with what would keep all inside, if anything."""
        group, most = self.straddles(names, hosts)
        if group < 0:
            return
        ranks = self.groups(names)[group]
        raise ValueError(f"grid: {names} group {group} has ranks {_shown(ranks)}, on hosts "
                         f"{_shown(sorted({hosts[rank] for rank in ranks}))}; {self._advice(names, hosts)}")

    def _advice(self, names: str, hosts: Sequence[int]) -> str:
        chosen = [name for name in self.names if name in names.split("-")]
        order = "-".join([*chosen, *(name for name in self.names if name not in chosen)])
        if Layout(order, self.sizes, self.ranks).straddles(names, hosts)[0] < 0:
            return f"order=\"{order}\" would keep them inside"
        size = math.prod(self.sizes[name] for name in chosen)
        here = min(hosts.count(host) for host in set(hosts))
        return (f"a group has {size} ranks, but a host as few as {here}: a group stays inside if its size divides "
                "the ranks of each host and its name is first in the order")


def check_inside(layout: Layout, experts: Layout | None, names: str, hosts: Sequence[int]) -> None:
    """Of the grid that has these axes: ep is the experts'."""
    of = experts if experts is not None and "ep" in names.split("-") else layout
    of.check_inside(names, hosts)


def _shown(numbers: Sequence[int]) -> str:
    """At most eight of them."""
    shown = ", ".join(map(str, numbers[:8 if len(numbers) == 8 else 7]))
    return shown if len(numbers) <= 8 else f"{shown} … {numbers[-1]}"


_made: dict[tuple[Any, str, tuple[int, ...]], Any] = {}                # by default group, backend, and ranks


def _is_alive(group: Any) -> bool:
    import torch.distributed as dist
    try:
        return dist.get_backend(group) is not None
    except ValueError:                  # somebody has destroyed it
        return False


class Grid:
    """The ranks of the default group as a grid, with torch's groups, made when they are first asked for, by their ranks
    together, and once where several axes have the same ranks. `experts` has the grid of experts, or None."""

    def __init__(self, layout: Layout, experts: Layout | None, backend: str | None) -> None:
        import torch.distributed as dist
        self.layout, self._backend, self.rank = layout, backend, dist.get_rank()
        self.experts = None if experts is None else Grid(experts, None, backend)

    def ranks(self, names: str) -> list[int]:
        """Those of this rank's group, by their global numbers."""
        return self.layout.groups(names)[self.layout.find(names, self.rank)[0]]

    def index(self, names: str) -> int:
        """This rank's place in that group: its coordinate, for one name."""
        return self.layout.find(names, self.rank)[1]

    def size(self, names: str) -> int:
        return len(self.ranks(names))

    def group(self, names: str) -> dist.ProcessGroup:
        """This rank's group of ranks that differ in these axes alone. Collective over its ranks the first time, and
        all ask for different groups in the same order."""
        import torch.distributed as dist

        from torch_tutti._extension import backend_of
        ranks, world, usual = tuple(self.ranks(names)), dist.group.WORLD, dist.get_backend()
        backend = self._backend or usual
        if len(ranks) == self.layout.ranks and backend == usual:
            return world
        for key in [key for key in _made if key[0] is not world]:
            del _made[key]              # of a job that has ended
        key = (world, backend, ranks)
        if key not in _made or not _is_alive(_made[key]):
            ours = backend_of(world)
            _made[key] = dist.new_group(list(ranks), backend=self._backend, use_local_synchronization=True,
                                        timeout=ours.options.timeout if ours is not None else None,
                                        group_desc=f"grid {names}")
        return _made[key]

    def mesh(self, *names: str, device: str = "cpu") -> DeviceMesh:
        """A DeviceMesh of these axes, the slowest first: ("pp", "dp", "tp") for FSDP2, DTensor and pipelining, of the
        ranks that have this one's place on all other axes. A name may have several axes, "dp-cp"."""
        import torch
        from torch.distributed.device_mesh import DeviceMesh
        axes = [name for part in names for name in part.split("-")]
        if not names or len(set(axes)) < len(axes):
            raise ValueError(f"grid: a mesh of {names}; each axis may appear once")
        inside = self.ranks("-".join(axes))
        places = [[self.layout.find(part, rank)[1] for part in names] for rank in inside]
        table = torch.full([self.size(part) for part in names], -1, dtype=torch.int)
        for rank, place in zip(inside, places):
            table[tuple(place)] = rank
        groups = [self.group(part) for part in names]
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], device, mesh_dim_names=names)
        return DeviceMesh.from_group(groups, device, mesh=table, mesh_dim_names=names)

    def hosts(self) -> list[int]:
        """Of each rank: a number for its host, in the order of their first ranks."""
        import torch.distributed as dist

        from torch_tutti._extension import backend_of, hosts_of
        backend = backend_of(dist.group.WORLD)
        if backend is None:
            raise ValueError("grid: only groups of tutti know which ranks share a host; the default group is "
                             f"{dist.get_backend()}'s")
        return hosts_of(backend, self.layout.ranks)


def grid(*, tp: int = 1, pp: int = 1, dp: int | None = None, cp: int = 1, ep: int = 1, expert_tp: int | None = None,
         order: str = ORDER, inside: str | None = None, backend: str | None = None) -> Grid:
    """The ranks of the default group as a grid of tensor (tp), context (cp), data (dp) and pipeline (pp) parallelism,
    and, with ep or expert_tp, one of experts over the same ranks.

    dp: None, what the others leave. order: the first name varies fastest; rank = the sum of each index times the
    product of the sizes before it, as in Megatron-Core. ep: ranks with different experts, expert_tp: that share one,
    None: tp; the experts' dp is the rest, their pp is that of the grid. inside: names whose groups must stay on one
    host, "tp". backend: of the groups that are made; None, the default group's. Raises ValueError, on all ranks."""
    import torch.distributed as dist
    if not dist.is_initialized():
        raise ValueError("grid: call init_process_group first")
    layout, experts = layouts(dist.get_world_size(), order, {"tp": tp, "cp": cp, "dp": dp, "pp": pp}, ep, expert_tp)
    made = Grid(layout, experts, backend)
    if inside is not None:
        check_inside(layout, experts, inside, made.hosts())
    return made


def layouts(ranks: int, order: str, sizes: dict[str, int | None], ep: int,
            expert_tp: int | None) -> tuple[Layout, Layout | None]:
    """The dense grid, in which dp None is what the others leave, and that of experts, if they have one of their own."""
    fits("grid", ranks, ep, expert_tp or 1, *(size for size in sizes.values() if size is not None))
    rest = math.prod(size for size in sizes.values() if size is not None)
    if sizes["dp"] is None:
        if rest < 1 or ranks % rest:
            known = " x ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
            raise ValueError(f"grid: {known} are {rest} ranks, which do not divide the {ranks} ranks of the job")
        sizes = {**sizes, "dp": ranks // rest}
    layout = Layout(order, {name: size for name, size in sizes.items() if size is not None}, ranks)
    if ep == 1 and expert_tp is None:
        return layout, None
    return layout, layout.experts(layout.sizes["tp"] if expert_tp is None else expert_tp, ep)
