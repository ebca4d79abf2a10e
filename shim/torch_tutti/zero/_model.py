"""The model's side: which parameters are of which unit, where they lie, and hooks that tell the core what happens."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import warnings
import weakref
from types import MethodType
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from torch_tutti._extension import backend_of
from torch_tutti.compression import Compression
from torch_tutti.zero._core import Core, Described
from torch_tutti.zero._direct import sum_rows, write_directly
from torch_tutti.zero._hooks import Hook, clip_ours
from torch_tutti.zero._optimizer import ZeroOptimizer, rule_of
from torch_tutti.zero._sharded import Uses

_managers: Any = WeakTensorKeyDictionary()              # of parameters that are sharded; weak references
_PRECISIONS = {None: None, "bf16": torch.bfloat16}
MANY = 1 << 20                          # buffers: no unit waits for another's, as stage 1 keeps all gradients


class Owned(NamedTuple):
    """A parameter that is the core's, by its number."""
    name: str
    parameter: nn.Parameter
    unit: int


class Settings(NamedTuple):
    """What `shard` was asked for."""
    placement: str
    yields: bool                        # to another placement where this one cannot be
    buffers: int
    ahead: bool
    prefetch: int
    reshard: bool
    init: Callable[[nn.Module], None] | None
    dtype: torch.dtype | None           # of all parameters; None: of each unit its own
    compression: str | Compression | None


def shard(model: nn.Module, optimizer: torch.optim.Optimizer, *, stage: int = 3, hosts: str | None = None,
          units: Iterable[nn.Module] | None = None, group: dist.ProcessGroup | None = None,
          buffers: int = 2, ahead: bool = False, prefetch: int = 1, reshard: bool = True,
          precision: str | None = None, compression: str | Compression | None = None,
          init: Callable[[nn.Module], None] | None = None) -> tuple[nn.Module, ZeroOptimizer]:
    """Has the ranks of a group train the model together; returns it, and the optimizer to use in place of the given
    one. Collective: all begin with rank 0's parameters and buffers.

    stage: 0, nothing is divided, as with DistributedDataParallel; 1, optimizer state is divided among the ranks; 2,
    gradients as well; 3, parameters as well. hosts: how, with stage 3: "shared", the ranks of a host map one copy,
    which each updates in part, so that no byte of parameters moves on a host; "sharded", a rank has its part alone,
    and a unit is gathered when it is used: all ranks use the same units in the same order then, and parameters that are
    not used read as NaN, except in a `with optimizer.whole():` block. None: shared, or sharded where hosts cannot
    share, with a warning. units: modules whose parameters are used together, each summed and updated as one; default:
    the elements of the model's outermost ModuleLists and Sequentials. A parameter is of the innermost unit that has it;
    of the model itself if none has, or several that are not inside each other. group: of tutti's, None: the default
    group.

    buffers: for the gradients of units of one size that are on their way (stages 2 and 3); a backward pass that is
    ahead waits for one. ahead: step() returns when all ranks have come to it, and modules wait for their parameters
    when they compute; what is used first is averaged, updated and sent first. Quicker, above all on a slow network
    with many buffers. But what reads parameters elsewhere than in the forward() of the module that has them must call
    optimizer.wait() first. For sharded parameters, prefetch: how many units are gathered before they are used, in the
    order of the last time; reshard: a unit's memory is given back after its forward(), and it is gathered again to go
    back.

    precision: "bf16", parameters become bfloat16, as gradients do, and floating-point inputs of the model's forward();
    the optimizer keeps float32 values, and begins with those that the model has. None: as they are.

    compression: of gradients on their way, a form ("int8") or a torch_tutti.compression.Compression; where hosts have
    as many ranks each, of what crosses between hosts. What is lost joins the next gradients.

    A model may be on the meta device, the optimizer made of its parameters there: then no rank but 0 ever has all of
    it in memory of its own. init: called on rank 0 with each module that has parameters or buffers of its own there,
    and is to give them their first values; default: the module's reset_parameters().

    Parameters have one type in each unit, float32 or bfloat16, lie in CPU memory, and stay where they are put: what
    moves them (`.to`, an assignment to `.data`) or changes them in place is found at the next step; change them in a
    `with optimizer.edit():` block. After backward() `grad` is None. Buffers are rank 0's at the start, and each
    rank's own from then on. With bfloat16 the optimizer keeps float32 values of its part. AdamW, Adam and SGD run
    in C, with the bits of torch's fused ones; any other optimizer that treats all elements alike runs on flat
    parts.
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError("zero.shard: the model is a DistributedDataParallel, which sums gradients itself; pass its "
                         "module, or use zero.wrap_ddp")
    placement = _placement_of(stage, hosts)
    if placement == "whole" and compression is not None:
        raise NotImplementedError("zero.shard: stage 0 does not compress gradients; DistributedDataParallel does with "
                                  "torch_tutti.compression.compress, and so do stages 1 to 3")
    if precision not in _PRECISIONS:
        raise ValueError(f"zero.shard: precision={precision!r}; it must be 'bf16' or None")
    settings = Settings(placement, stage == 3 and hosts is None, MANY if stage == 1 else buffers, ahead, prefetch,
                        reshard, init, _PRECISIONS[precision], compression)
    manager = Manager(model, optimizer, _units_of(model, units), _group_of(group), settings)
    return model, manager.optimizer


def _placement_of(stage: int, hosts: str | None) -> str:
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero.shard: stage {stage!r}; it must be 0, 1, 2 or 3")
    possible = ("shared", "sharded") if stage == 3 else ("replicated",) if stage else ("whole",)
    if hosts not in (None, *possible):
        raise ValueError(f"zero.shard: hosts={hosts!r} with stage {stage}; it can be "
                         f"{' or '.join(map(repr, possible))}")
    return hosts or possible[0]


def _group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    chosen = dist.GroupMember.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError("zero.shard: this rank is in no such group; call init_process_group first")
    if backend_of(chosen) is None:
        raise ValueError(f"zero.shard: the group's backend for CPU tensors is {dist.get_backend(chosen)}, not tutti")
    return chosen


def _units_of(model: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    """Without the model itself, in the order of modules()."""
    if units is None:
        return _blocks_of(model)
    given, inside = list(units), set(model.modules())
    for unit in given:
        if unit not in inside:
            raise ValueError(f"zero.shard: {type(unit).__name__} is given as a unit, but is not part of the model")
    return [module for module in model.modules() if module in given and module is not model]


def _blocks_of(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        lists = isinstance(module, (nn.ModuleList, nn.Sequential))
        found += ([child] if any(True for _ in child.parameters()) else []) if lists else _blocks_of(child)
    return found


def _own_tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    return (*module.parameters(recurse=False), *module.buffers(recurse=False))


def _unborn(model: nn.Module, init: Callable[[nn.Module], None] | None) -> list[nn.Module]:
    """Modules with tensors of their own on the meta device. All can get first values."""
    found = [module for module in model.modules() if any(t.is_meta for t in _own_tensors(module))]
    for module in found:
        if init is None and not hasattr(module, "reset_parameters"):
            raise ValueError(f"zero.shard: a {type(module).__name__} has tensors on the meta device and no "
                             "reset_parameters(): give it one, or pass init=")
    return found


def _bear_rest(module: nn.Module) -> None:
    """What is not trained, and still on the meta device."""
    for p in module.parameters(recurse=False):
        if p.is_meta:
            torch.utils.swap_tensors(p, nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=False))
    for name, tensor in module.named_buffers(recurse=False):
        if tensor.is_meta:
            setattr(module, name, torch.empty(tensor.shape, dtype=tensor.dtype))


def _give_memory_back() -> None:
    """What the parameters had, which the C library would keep: as much as the model."""
    with contextlib.suppress(AttributeError):              # others than glibc have no such call
        ctypes.CDLL(None).malloc_trim(0)


def _take(manager: Any, number: int, p: nn.Parameter) -> None:
    """A hook that keeps nothing alive: Python's collector does not see those of tensors."""
    if (found := manager()) is not None:
        found.take(number, p)


def _cast_inputs(dtype: torch.dtype, _: nn.Module, arguments: Any, keywords: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (arguments, keywords))


def _zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
    """Of the module that is sharded: what the optimizer's does."""
    type(self).zero_grad(self, set_to_none)
    manager = next((_managers[p]() for p in self.parameters() if p in _managers), None)
    if manager is not None and manager.model is self:
        manager.optimizer.zero_grad()


_zero_grad.__name__ = "zero_grad"       # under which a method is pickled


class Manager:
    """Owns the core, and what it must know of the model."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, modules: list[nn.Module],
                 group: dist.ProcessGroup, settings: Settings) -> None:
        self.model, self.group, self.ahead = model, group, settings.ahead
        self.modules = [model, *modules]                # gradients of the first come last
        self.dtype = settings.dtype
        self.steps = 0                  # taken; a unit that was used since needs no look
        group_of = {p: number for number, g in enumerate(optimizer.param_groups) for p in g["params"]}
        self.owned = self._divide(model, group_of)
        unborn = _unborn(model, settings.init)
        self.used = [-1] * len(self.modules)
        self.written: set[int] = set()  # gradients of this backward pass that are not complete
        self.number_of = {o.parameter: number for number, o in enumerate(self.owned)}
        described = [Described(o.parameter.numel(), o.unit, group_of[o.parameter]) for o in self.owned]
        self.rule = rule_of(type(optimizer), optimizer.param_groups)
        self.core = self._core(described, len(optimizer.param_groups), settings)
        self._move(model, unborn, settings.init)
        self.uses = Uses(self, settings.reshard) if self.core.placement == "sharded" else None
        self._watch(model)
        write_directly(self, model)
        self.optimizer = ZeroOptimizer(self, optimizer)
        clip_ours(lambda p: found() if (found := _managers.get(p)) is not None else None)

    def _core(self, described: list[Described], groups: int, settings: Settings) -> Core:
        backend = backend_of(self.group)
        limit = backend.options.timeout
        make = functools.partial(Core, backend._communicator, described, self._dtypes(), groups, rule=self.rule,
                                 buffers=settings.buffers, prefetch=settings.prefetch,
                                 ahead=settings.ahead, compression=settings.compression,
                                 timeout_ms=math.ceil(limit.total_seconds() * 1000) if limit else 0)
        try:
            return make(placement=settings.placement)
        except NotImplementedError as reason:
            if not settings.yields:
                raise
            warnings.warn(f"zero.shard: parameters are sharded, not shared, on each host: {reason}", stacklevel=4)
        return make(placement="sharded")

    def _divide(self, model: nn.Module, group_of: dict[nn.Parameter, int]) -> list[Owned]:
        unit_of = self._innermost()
        for name, module in model.named_modules():
            if getattr(module, "max_norm", None) is not None and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                raise ValueError(f"zero.shard: {name} is an embedding with max_norm, which changes its weight in "
                                 "forward(), differently on each rank")
        found = []
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            self._check(name, p, group_of)
            if p in _managers:
                raise ValueError(f"zero.shard: parameter {name} is already sharded; a model can be sharded once")
            found.append(Owned(name, p, unit_of.get(p, 0)))
        if not found:
            raise ValueError("zero.shard: the model has no parameter with requires_grad")
        strangers = set(group_of) - {o.parameter for o in found}
        if any(p.requires_grad for p in strangers):
            raise ValueError("zero.shard: the optimizer has parameters that are not in the model")
        used = sorted({o.unit for o in found})             # what has no parameters of its own is no unit
        self.modules = [self.modules[unit] for unit in used]
        return sorted((o._replace(unit=used.index(o.unit)) for o in found), key=lambda o: o.unit)

    def _innermost(self) -> dict[nn.Parameter, int]:
        """Of parameters in one unit, or in units inside each other, the innermost."""
        holders: dict[nn.Parameter, list[int]] = {}
        for number, module in enumerate(self.modules[1:], 1):          # what is inside comes after what is around it
            for p in module.parameters():
                holders.setdefault(p, []).append(number)
        inside = [set(module.modules()) for module in self.modules]
        return {p: units[-1] for p, units in holders.items()
                if all(self.modules[units[-1]] in inside[unit] for unit in units)}

    @staticmethod
    def _check(name: str, p: nn.Parameter, group_of: dict[nn.Parameter, int]) -> None:
        if p not in group_of:
            raise ValueError(f"zero.shard: the parameter {name} is not in the optimizer; pass it all parameters, or "
                             "set requires_grad=False")
        if p.device.type not in ("cpu", "meta") or p.layout != torch.strided:
            raise ValueError(f"zero.shard: parameter {name} is on {p.device}, {p.layout}; it must be an ordinary CPU "
                             "tensor")
        if not p.numel():
            raise ValueError(f"zero.shard: parameter {name} has no elements; set requires_grad=False")
        if p.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"zero.shard: parameter {name} is {p.dtype}; use float32 or bfloat16")

    def _dtypes(self) -> list[torch.dtype]:
        found: list[torch.dtype | None] = [self.dtype] * len(self.modules)
        for name, p, unit in self.owned if self.dtype is None else ():
            if found[unit] not in (None, p.dtype):
                raise ValueError(f"zero.shard: parameter {name} is {p.dtype}, others of its unit are {found[unit]}; "
                                 "a unit must have one type: name it, or its parts, as units of their own")
            found[unit] = p.dtype
        return [dtype or torch.float32 for dtype in found]

    @torch.no_grad()
    def _move(self, model: nn.Module, unborn: list[nn.Module], init: Callable[[nn.Module], None] | None) -> None:
        """Parameters become views of the core's arrays, with rank 0's values."""
        first, exact = dist.get_rank(self.group) == 0, {}
        for number, (_, p, _) in enumerate(self.owned):
            view = self.core.parameter(number).view(p.shape)
            if view.dtype != p.dtype and not p.is_meta:
                exact[number] = p.detach().float()
            if p.is_meta:
                torch.utils.swap_tensors(p, nn.Parameter(view))         # it stays the one that the optimizer has
            else:
                if first:
                    view.copy_(p)
                p.data = view
            _managers[p] = weakref.ref(self)
        _give_memory_back()
        for module in unborn:
            _bear_rest(module)
            if first:
                init(module) if init else module.reset_parameters()
        self.core.begin()
        for number, whole in exact.items():
            dist.broadcast(whole, group=self.group, group_src=0)
            piece = self.core.piece(number)
            piece.value.copy_(whole.reshape(-1)[piece.at: piece.at + piece.value.numel()])
        mine = {o.parameter for o in self.owned}
        for tensor in [*model.buffers(), *(p for p in model.parameters() if p not in mine)]:
            whole = tensor.contiguous()
            dist.broadcast(whole, group=self.group, group_src=0)
            if whole is not tensor:
                tensor.copy_(whole)
        self.note()

    # ---- what happens ----
    def _watch(self, model: nn.Module) -> None:
        """Hooks that say whom they are for: those of a copy of the model do nothing."""
        for unit, module in enumerate(self.modules):
            self._await_units(module, {unit})
        if self.ahead or self.uses:     # whoever computes without its unit's forward
            unit_of = {p: unit for _, p, unit in self.owned}
            for module in model.modules():
                self._await_units(module, {unit_of[p] for p in module.parameters(recurse=False) if p in unit_of})
        for number, (_, p, _) in enumerate(self.owned):
            p.register_post_accumulate_grad_hook(functools.partial(_take, weakref.ref(self), number))
        if self.dtype is not None:
            model.register_forward_pre_hook(functools.partial(_cast_inputs, self.dtype), with_kwargs=True)
        if not self.uses:
            model.register_state_dict_pre_hook(Hook(lambda module, *_: self.use_all() if module is model else None))
        model.register_load_state_dict_pre_hook(Hook(lambda module, *_: self.claim() if module is model else None))
        model.register_load_state_dict_post_hook(Hook(lambda module, *_: self.restart() if module is model else None))
        model.zero_grad = MethodType(_zero_grad, model)

    def _await_units(self, module: nn.Module, units: set[int]) -> None:
        def hook(called: nn.Module, *_: Any) -> None:
            for unit in units if called is module else ():
                self.use(unit)
        if units:                       # before the program's own hooks, which may compute with parameters
            module.register_forward_pre_hook(Hook(hook), prepend=True)

    @torch.compiler.disable
    def use(self, unit: int) -> None:
        if self.uses:
            self.uses.begin(unit)
        elif self.used[unit] != self.steps:
            self.core.use(unit)
            self.used[unit] = self.steps

    def use_all(self) -> None:
        for unit in range(len(self.modules)) if not self.uses else ():
            self.use(unit)

    def claim(self) -> None:
        """Collective: parameters may be written to, until `restart`."""
        self.core.claim()
        self.core.keep(True)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        self.use_all()
        with self.uses.whole() if self.uses else contextlib.nullcontext():
            yield

    @torch.compiler.disable
    @torch.no_grad()
    def take(self, number: int, p: nn.Parameter) -> None:
        gradient = p.grad
        if gradient is not None:
            place, adds = self.core.gradient(number)
            given = (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
            place.add_(given) if adds or number in self.written else place.copy_(given)
            p.grad = None
        elif number not in self.written:
            return
        self.written.discard(number)
        self.core.ready(number)

    def write(self, number: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor | None:
        """The product is a weight's gradient, or a part of it. What of it autograd is to add up: all, when there is one
        of an earlier pass, because that is added last."""
        flat, adds = self.core.gradient(number)
        place = flat.view(self.owned[number].parameter.shape)
        if adds:
            return left.mm(right)
        place.add_(left.mm(right)) if number in self.written else torch.mm(left, right, out=place)
        self.written.add(number)
        return None

    def write_rows(self, number: int, ids: torch.Tensor, rows: torch.Tensor, padding: int) -> torch.Tensor | None:
        """The same for an embedding: its gradient is the sum of rows by their ids, but for that of padding."""
        flat, adds = self.core.gradient(number)
        place = flat.view(self.owned[number].parameter.shape)
        if adds:
            return sum_rows(rows, ids, len(place), padding)
        found, which = ids.long().unique(return_inverse=True)
        sums = sum_rows(rows, which, len(found))
        if padding >= 0:
            found, sums = found[found != padding], sums[found != padding]
        if number in self.written:
            place.index_add_(0, found, sums)
        else:
            place.zero_().index_copy_(0, found, sums)
        self.written.add(number)
        return None

    # ---- steps ----
    def check(self) -> None:
        """Whoever has moved, replaced or changed a parameter has left the others behind."""
        now = dict(self.model.named_parameters())
        for (name, p, _), (address, version) in zip(self.owned, self.seen):
            if now.get(name) is not p:
                raise RuntimeError(f"zero: the model has another parameter {name} than zero.shard found; load with "
                                   "assign=False, and shard a model after all its parameters exist")
            if p.data_ptr() != address:
                raise RuntimeError(f"zero: parameter {name} is not in the memory where zero.shard put it; something "
                                   "has moved it (.to, an assignment to .data). Move or convert a model before it "
                                   "is sharded")
            if p._version != version:
                raise RuntimeError(f"zero: parameter {name} was changed in place, by something other than the "
                                   "optimizer; change it on rank 0, on all ranks in `with optimizer.edit():`")
            if p.grad is not None:
                raise RuntimeError(f"zero: parameter {name} has a gradient in .grad that does not come from a "
                                   "backward pass; the optimizer takes only gradients of backward()")
        for name, p in now.items():
            if p.requires_grad and p not in self.number_of:
                raise RuntimeError(f"zero: parameter {name} was not trained when the model was sharded; set "
                                   "requires_grad before zero.shard")

    def note(self) -> None:
        self.seen = [(p.data_ptr(), p._version) for _, p, _ in self.owned]

    def stepped(self) -> None:
        """Graphs that still hold parameters must notice that they have changed, whoever wrote them."""
        self.steps += 1
        if not self.ahead:
            self.use_all()
        if self.uses:
            self.uses.stepped()
        torch.autograd.graph.increment_version([p for _, p, _ in self.owned])
        self.note()

    def restart(self) -> None:
        """Collective: all take rank 0's parameters."""
        self.core.begin()
        if self.uses:
            self.uses.stepped()
        self.note()

    def entries(self) -> dict[str, tuple[int | None, Any]]:
        """What the model's state_dict has, by name: the number of a parameter, or None, and the value (of a parameter
        that is not whole, nothing)."""
        number_at = {address: number for number, (address, _) in enumerate(self.seen)}
        number_of = {o.name: number for number, o in enumerate(self.owned)}
        with self.uses.unread() if self.uses else contextlib.nullcontext():
            state = self.model.state_dict(keep_vars=True)
        found = {name: (number_at.get(value.data_ptr(), number_of.get(name)), value.detach())
                 if torch.is_tensor(value) else (None, value) for name, value in state.items()}
        for lost in set(range(len(self.owned))) - {number for number, _ in found.values()}:
            raise ValueError(f"zero: the model's state_dict has no entry for parameter {self.owned[lost].name}; a "
                             "hook of its own may have renamed and copied it")
        return found

    def stay_whole(self) -> None:
        """Collective: in a block of whole(), after something has sent units away."""
        if self.uses and self.uses.depth:
            self.core.keep(True)

    def unit_names(self) -> list[str]:
        name_of = {module: name or "model" for name, module in self.model.named_modules()}
        return [name_of.get(module, type(module).__name__) for module in self.modules]

    def report(self) -> dict[str, Any]:
        return {**self.core.report(), "hosts": self.core.placement}
