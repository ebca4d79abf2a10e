"""Grids of ranks: which ranks work together in tensor, pipeline, data, context and expert parallelism (tutti_grid of
include/tutti_groups.h), and torch's groups and device meshes for them. Only functions that make groups import torch."""
from __future__ import annotations

import ctypes
import hashlib
import math
from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, Sequence

from torch_tutti._library import _check, _library, check_int32

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

# The sizes of the arrays of tutti_grid.
_MAX_AXES, _NAME_BYTES = 8, 8
ORDER = "tp-cp-ep-dp-pp"


class _Grid(ctypes.Structure):
    """tutti_grid of include/tutti_groups.h."""
    _fields_ = [("ranks", c_int), ("axes", c_int), ("size", c_int * _MAX_AXES),
                ("name", (ctypes.c_char * _NAME_BYTES) * _MAX_AXES)]


class Layout:
    """Ranks as points of a grid with named axes; the first name of the order varies fastest. Pure data, the same on
    every rank. Raises ValueError for invalid arguments."""

    def __init__(self, order: str, sizes: dict[str, int], ranks: int, _existing: _Grid | None = None) -> None:
        """order: names of axes, the fastest varying first. sizes: by axis. ranks: their product. _existing: a grid of
        the library, which is used instead."""
        self._grid = _Grid() if _existing is None else _existing
        if _existing is None:
            check_int32("ranks", ranks)
            sizes_text = ",".join(f"{name}={size}" for name, size in sizes.items())
            _check(_library().tutti_grid_make(byref(self._grid), order.encode(), sizes_text.encode(), ranks))
        self.ranks = self._grid.ranks
        self.names = tuple(self._grid.name[axis].value.decode() for axis in range(self._grid.axes))
        self.sizes = dict(zip(self.names, self._grid.size))

    def experts(self, tp: int, ep: int) -> Layout:
        """Returns the grid of experts over the same ranks: tp ranks share an expert, ep ranks have different experts,
        and dp is the remaining factor."""
        grid = _Grid()
        check_int32("grid", tp, ep)
        _check(_library().tutti_grid_experts(byref(grid), byref(self._grid), tp, ep))
        return Layout("", {}, 0, grid)

    def index(self, rank: int) -> dict[str, int]:
        """Returns a rank's coordinate on each axis, by the name of the axis."""
        check_int32("a rank", rank)
        coordinates = (c_int * _MAX_AXES)()
        _check(_library().tutti_grid_index(byref(self._grid), rank, coordinates))
        return dict(zip(self.names, coordinates))

    def groups(self, names: str) -> list[list[int]]:
        """Returns all groups of ranks that differ only in these axes, for example "tp" or "dp-cp". The ranks of a group
        ascend; the groups are numbered by the other axes."""
        count, size = c_int(), c_int()
        _check(_library().tutti_grid_groups(byref(self._grid), names.encode(), byref(count), byref(size)))
        groups, members = [], (c_int * size.value)()
        for group in range(count.value):
            _check(_library().tutti_grid_group(byref(self._grid), names.encode(), group, members))
            groups.append(list(members))
        return groups

    def find(self, names: str, rank: int) -> tuple[int, int]:
        """Returns (number of the rank's group among groups(names), index of the rank in that group)."""
        check_int32("a rank", rank)
        group, index = c_int(), c_int()
        _check(_library().tutti_grid_find(byref(self._grid), names.encode(), rank, byref(group), byref(index)))
        return group.value, index.value

    def straddles(self, names: str, hosts: Sequence[int]) -> tuple[int, int]:
        """Returns (first of these groups that is on several hosts, or -1; largest number of hosts that a group is on).
        hosts: the number of the host of each rank."""
        if len(hosts) != self.ranks:
            raise ValueError(f"grid: hosts are given for {len(hosts)} ranks, but there are {self.ranks}")
        check_int32("grid", *hosts)
        group, most_hosts = c_int(), c_int()
        _check(_library().tutti_grid_straddles(byref(self._grid), names.encode(), (c_int * self.ranks)(*hosts),
                                               byref(group), byref(most_hosts)))
        return group.value, most_hosts.value

    def check_inside(self, names: str, hosts: Sequence[int]) -> None:
        """Raises ValueError if one of these groups is on several hosts. The text names the group and says what to
        change. hosts: the number of the host of each rank."""
        group, most_hosts = self.straddles(names, hosts)
        if group < 0:
            return
        ranks = self.groups(names)[group]
        raise ValueError(f"grid: {names} group {group} has ranks {_shown(ranks)}, on hosts "
                         f"{_shown(sorted({hosts[rank] for rank in ranks}))}; {self._advice(names, hosts)}")

    def _advice(self, names: str, hosts: Sequence[int]) -> str:
        """Returns what to change so that these groups stay on their hosts: an order of axes if one does, else a rule
        for sizes."""
        chosen = [name for name in self.names if name in names.split("-")]
        order = "-".join([*chosen, *(name for name in self.names if name not in chosen)])
        if Layout(order, self.sizes, self.ranks).straddles(names, hosts)[0] < 0:
            return f"order=\"{order}\" would keep them inside"
        group_size = math.prod(self.sizes[name] for name in chosen)
        ranks_of_host = min(hosts.count(host) for host in set(hosts))
        return (f"a group has {group_size} ranks, but a host as few as {ranks_of_host}: a group stays inside if its "
                "size divides the ranks of each host and its name is first in the order")


def check_inside(layout: Layout, experts: Layout | None, names: str, hosts: Sequence[int]) -> None:
    """Raises ValueError if a group of these axes is on several hosts. Axes with ep are those of the grid of experts, if
    there is one; all others are those of `layout`."""
    chosen = experts if experts is not None and "ep" in names.split("-") else layout
    chosen.check_inside(names, hosts)


def _shown(numbers: Sequence[int]) -> str:
    """Returns the numbers as text: all of up to eight, else the first seven and the last."""
    shown = ", ".join(map(str, numbers[:8 if len(numbers) == 8 else 7]))
    return shown if len(numbers) <= 8 else f"{shown} … {numbers[-1]}"


# The groups that grids have made, and how often each was made, by default group, backend and ranks.
_made_groups: dict[tuple[Any, str, tuple[int, ...]], tuple[Any, int]] = {}


def _is_alive(group: Any) -> bool:
    """Returns whether torch knows the group: False if the program has destroyed it."""
    import torch.distributed as dist
    try:
        return dist.get_backend(group) is not None
    except ValueError:                  # the program has destroyed the group
        return False


def _make_group(ranks: tuple[int, ...], backend: str, desc: str, count: int) -> dist.ProcessGroup:
    """Makes torch's group of these ranks. Collective over these ranks. count: how many groups of these ranks and this
    backend grids have made before. A name of its own makes the group independent of other groups: new_group with local
    synchronization names a group by the number of groups that the rank is in, and ranks with different numbers would
    wait for each other."""
    import torch.distributed as dist

    from torch_tutti._extension import backend_of
    c10d, world = dist.distributed_c10d, dist.group.WORLD
    tutti_backend = backend_of(world)
    timeout = tutti_backend.options.timeout if tutti_backend is not None else c10d._get_default_timeout(backend)
    digest = hashlib.sha256(str(ranks).encode()).hexdigest()[:16]
    group, _ = c10d._new_process_group_helper(
        len(ranks), ranks.index(dist.get_rank()), list(ranks), dist.Backend(backend), c10d._world.pg_map[world][1],
        f"grid {digest} {backend} {count}", timeout=timeout, group_desc=desc)
    c10d._world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
    return group


class Grid:
    """The ranks of the default group as a grid, with torch's groups. The ranks of a group make it together when they
    first ask for it; axes with the same ranks share a group. `experts` has the grid of experts, or None."""

    def __init__(self, layout: Layout, experts: Layout | None, backend: str | None) -> None:
        import torch.distributed as dist
        self.layout, self._backend, self.rank = layout, backend, dist.get_rank()
        self.experts = None if experts is None else Grid(experts, None, backend)

    def ranks(self, names: str) -> list[int]:
        """Returns the global ranks of the group that has this rank and whose ranks differ only in these axes,
        ascending."""
        return self.layout.groups(names)[self.layout.find(names, self.rank)[0]]

    def index(self, names: str) -> int:
        """Returns this rank's index in its group of these axes; for one axis its coordinate."""
        return self.layout.find(names, self.rank)[1]

    def size(self, names: str) -> int:
        """Returns the number of ranks in this rank's group of these axes."""
        return len(self.ranks(names))

    def group(self, names: str) -> dist.ProcessGroup:
        """Returns torch's group of the ranks that differ from this one only in these axes. Collective over these ranks
        the first time; all ranks must ask for different groups in the same order."""
        import torch.distributed as dist
        ranks, world, default_backend = tuple(self.ranks(names)), dist.group.WORLD, dist.get_backend()
        backend = self._backend or default_backend
        if len(ranks) == self.layout.ranks and backend == default_backend:
            return world
        for key in [key for key in _made_groups if key[0] is not world]:
            del _made_groups[key]       # its default group has been destroyed
        key = (world, backend, ranks)
        group, count = _made_groups.get(key, (None, 0))
        if group is None or not _is_alive(group):
            group = _make_group(ranks, backend, f"grid {names}", count)
            _made_groups[key] = group, count + 1
        return group

    def mesh(self, *names: str, device: str = "cpu") -> DeviceMesh:
        """Returns a DeviceMesh with a dimension for each name, the slowest first: ("pp", "dp", "tp") for FSDP2, DTensor
        and pipelining. It has the ranks that share this rank's coordinates on all other axes. A name may join several
        axes, as "dp-cp" does."""
        import torch
        from torch.distributed.device_mesh import DeviceMesh
        axes = [axis for name in names for axis in name.split("-")]
        if not names or len(set(axes)) < len(axes):
            raise ValueError(f"grid: a mesh of {names}; each axis may appear once")
        ranks = self.ranks("-".join(axes))
        indices = [[self.layout.find(name, rank)[1] for name in names] for rank in ranks]
        table = torch.full([self.size(name) for name in names], -1, dtype=torch.int)
        for rank, index in zip(ranks, indices):
            table[tuple(index)] = rank
        groups = [self.group(name) for name in names]
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], device, mesh_dim_names=names)
        return DeviceMesh.from_group(groups, device, mesh=table, mesh_dim_names=names)

    def hosts(self) -> list[int]:
        """Returns the number of the host of each rank. Hosts are numbered in the order of their first ranks. Raises
        ValueError if the default group is not tutti's."""
        import torch.distributed as dist

        from torch_tutti._extension import backend_of, hosts_of
        backend = backend_of(dist.group.WORLD)
        if backend is None:
            raise ValueError("grid: only groups of tutti know which ranks share a host; the default group is "
                             f"{dist.get_backend()}'s")
        return hosts_of(backend, self.layout.ranks)


def grid(*, tp: int = 1, pp: int = 1, dp: int | None = None, cp: int = 1, ep: int = 1, expert_tp: int | None = None,
         order: str = ORDER, inside: str | None = None, backend: str | None = None) -> Grid:
    """Returns the ranks of the default group as a grid of tensor (tp), context (cp), data (dp) and pipeline (pp)
    parallelism, and, with ep or expert_tp, a grid of experts over the same ranks.

    dp: None: the remaining factor. order: the first name varies fastest; a rank is the sum of each index times the
    product of the sizes before it, as in Megatron-Core. ep: the number of ranks with different experts. expert_tp: the
    number of ranks that share an expert; None: tp. The experts' dp is the remaining factor, and their pp is the pp of
    the grid. inside: axes whose groups must stay on one host, for example "tp". backend: of the groups that are made;
    None: the default group's. Raises ValueError, on all ranks.
    """
    import torch.distributed as dist
    if not dist.is_initialized():
        raise ValueError("grid: call init_process_group first")
    layout, experts = layouts(dist.get_world_size(), order, {"tp": tp, "cp": cp, "dp": dp, "pp": pp}, ep, expert_tp)
    result = Grid(layout, experts, backend)
    if inside is not None:
        check_inside(layout, experts, inside, result.hosts())
    return result


def layouts(ranks: int, order: str, sizes: dict[str, int | None], ep: int,
            expert_tp: int | None) -> tuple[Layout, Layout | None]:
    """Returns the grid of all ranks, and the grid of experts or None. sizes: of tp, cp, dp and pp; dp None: the
    remaining factor. There is a grid of experts unless ep is 1 and expert_tp None."""
    check_int32("grid", ranks, ep, expert_tp or 1, *(size for size in sizes.values() if size is not None))
    product = math.prod(size for size in sizes.values() if size is not None)
    if sizes["dp"] is None:
        if product < 1 or ranks % product:
            known = " x ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
            raise ValueError(f"grid: {known} are {product} ranks, which do not divide the {ranks} ranks of the job")
        sizes = {**sizes, "dp": ranks // product}
    layout = Layout(order, {name: size for name, size in sizes.items() if size is not None}, ranks)
    if ep == 1 and expert_tp is None:
        return layout, None
    return layout, layout.experts(layout.sizes["tp"] if expert_tp is None else expert_tp, ep)
