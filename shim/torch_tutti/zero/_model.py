"""The model of ZeRO: its units, the move of parameters into the core, and hooks that call the core."""
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

_managers: Any = WeakTensorKeyDictionary()              # parameter: weak reference to the Manager of its model
_PRECISIONS = {None: None, "bf16": torch.bfloat16}
MANY = 1 << 20                          # gradient buffers of stage 1, which keeps all gradients: no unit waits for one


class Owned(NamedTuple):
    """A parameter that the core manages; its number is its position in Manager.owned. unit: the number of its unit."""
    name: str
    parameter: nn.Parameter
    unit: int


class Settings(NamedTuple):
    """The arguments of `shard`."""
    placement: str
    yields: bool                        # use "sharded" if this placement is impossible
    buffers: int
    ahead: bool
    prefetch: int
    reshard: bool
    init: Callable[[nn.Module], None] | None
    dtype: torch.dtype | None           # for all parameters; None: each unit keeps its own
    compression: str | Compression | None


def shard(model: nn.Module, optimizer: torch.optim.Optimizer, *, stage: int = 3, hosts: str | None = None,
          units: Iterable[nn.Module] | None = None, group: dist.ProcessGroup | None = None,
          buffers: int = 2, ahead: bool = False, prefetch: int = 1, reshard: bool = True,
          precision: str | None = None, compression: str | Compression | None = None,
          init: Callable[[nn.Module], None] | None = None) -> tuple[nn.Module, ZeroOptimizer]:
    """Lets the ranks of a group train the model together. Returns the model, and the optimizer that replaces the given
    one. Collective: all ranks start with rank 0's parameters and buffers.

    stage: 0 divides nothing, like DistributedDataParallel; 1 divides the optimizer state among the ranks; 2 also the
    gradients; 3 also the parameters. hosts: the placement of parameters in stage 3. "shared": the ranks of a host map
    one copy, and each updates a part of it, so parameters are not copied within a host. "sharded": a rank has only its
    part, and a unit is gathered when it is used; then all ranks must use the same units in the same order, and
    parameters outside a use read as NaN, except in a `with optimizer.whole():` block. None: shared, or sharded with a
    warning if the ranks of a host cannot share. units: modules whose parameters are used together; each is summed and
    updated as a whole. Default: the elements of the model's outermost ModuleLists and Sequentials. A parameter belongs
    to the innermost unit that has it; to the model itself if no unit has it, or several that are not nested. group: a
    group of tutti's; None: the default group.

    buffers: the number of buffers for gradients of units of one size (stages 2 and 3); a backward pass waits if all are
    in use. ahead: step() returns when all ranks have called it, and modules wait for their parameters when they
    compute; units that are used first are summed, updated and sent first. This is faster, most of all on a slow network
    with many buffers. But code that reads parameters outside the forward() of their module must call optimizer.wait()
    first. For sharded parameters: prefetch is how many units are gathered before their use, in the order of the last
    step; reshard frees a unit's memory after its forward(), and gathers it again for the backward pass.

    precision: "bf16" converts parameters, gradients and floating-point inputs of the model's forward() to bfloat16; the
    optimizer keeps float32 values, which start as the model's. None: no conversion.

    compression: the form of gradients in messages ("int8"), or a torch_tutti.compression.Compression. If all hosts have
    equal numbers of ranks, only messages between hosts are compressed. The error is added to the next gradients.

    The model may be on the meta device, with an optimizer of its parameters there. Then only rank 0 ever has the whole
    model in its own memory. init: called on rank 0 with each module that has parameters or buffers of its own on the
    meta device; it must set their first values. Default: the module's reset_parameters().

    The parameters of a unit have one dtype, float32 or bfloat16. They are in CPU memory and may not be moved (`.to`, an
    assignment to `.data`) or changed in place, except in a `with optimizer.edit():` block; the next step raises an
    error. After backward() `grad` is None. Buffers start as rank 0's, and are each rank's own afterwards. With bfloat16
    the optimizer keeps float32 values of its part. AdamW, Adam and SGD run in C, bit-identical to torch's fused
    optimizers; any other optimizer that treats all elements equally runs on flat parts.
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
    """The group, or the default one. Raises ValueError if its backend is not tutti."""
    chosen = dist.GroupMember.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError("zero.shard: this rank is in no such group; call init_process_group first")
    if backend_of(chosen) is None:
        raise ValueError(f"zero.shard: the group's backend for CPU tensors is {dist.get_backend(chosen)}, not tutti")
    return chosen


def _units_of(model: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    """The modules that are units, in the order of model.modules(), without the model itself."""
    if units is None:
        return _blocks_of(model)
    given, inside = list(units), set(model.modules())
    for unit in given:
        if unit not in inside:
            raise ValueError(f"zero.shard: {type(unit).__name__} is given as a unit, but is not part of the model")
    return [module for module in model.modules() if module in given and module is not model]


def _blocks_of(module: nn.Module) -> list[nn.Module]:
    """The default units: elements with parameters of the outermost ModuleLists and Sequentials."""
    found: list[nn.Module] = []
    for child in module.children():
        lists = isinstance(module, (nn.ModuleList, nn.Sequential))
        found += ([child] if any(True for _ in child.parameters()) else []) if lists else _blocks_of(child)
    return found


def _own_tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    return (*module.parameters(recurse=False), *module.buffers(recurse=False))


def _modules_on_meta(model: nn.Module, init: Callable[[nn.Module], None] | None) -> list[nn.Module]:
    """Modules with tensors of their own on the meta device. Raises ValueError if one cannot set first values."""
    found = [module for module in model.modules() if any(t.is_meta for t in _own_tensors(module))]
    for module in found:
        if init is None and not hasattr(module, "reset_parameters"):
            raise ValueError(f"zero.shard: a {type(module).__name__} has tensors on the meta device and no "
                             "reset_parameters(): give it one, or pass init=")
    return found


def _materialize_untrained(module: nn.Module) -> None:
    """Replaces untrained parameters and buffers on the meta device by uninitialized CPU tensors."""
    for p in module.parameters(recurse=False):
        if p.is_meta:
            torch.utils.swap_tensors(p, nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=False))
    for name, tensor in module.named_buffers(recurse=False):
        if tensor.is_meta:
            setattr(module, name, torch.empty(tensor.shape, dtype=tensor.dtype))


def _trim_heap() -> None:
    """Returns the old memory of the parameters to the system."""
    with contextlib.suppress(AttributeError):              # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _take(manager: Any, number: int, p: nn.Parameter) -> None:
    """The hook of a parameter's gradient. manager: a weak reference, because the garbage collector cannot follow hooks
    of tensors."""
    if (found := manager()) is not None:
        found.take(number, p)


def _cast_inputs(dtype: torch.dtype, _: nn.Module, arguments: Any, keywords: Any) -> Any:
    """A forward pre-hook that converts floating-point inputs to `dtype`."""
    return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (arguments, keywords))


def _zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
    """Replaces zero_grad() of the sharded module: also drops the gradients that the core has."""
    type(self).zero_grad(self, set_to_none)
    manager = next((_managers[p]() for p in self.parameters() if p in _managers), None)
    if manager is not None and manager.model is self:
        manager.optimizer.zero_grad()


_zero_grad.__name__ = "zero_grad"       # under which a method is pickled


class Manager:
    """Owns the core of a sharded model, and maps modules and parameters to units and numbers."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, modules: list[nn.Module],
                 group: dist.ProcessGroup, settings: Settings) -> None:
        self.model, self.group, self.ahead = model, group, settings.ahead
        self.modules = [model, *modules]                # the module of each unit; gradients of the first complete last
        self.dtype = settings.dtype
        self.steps = 0                  # steps taken; used[unit] == steps: the unit is as new as the last step
        group_of = {p: number for number, g in enumerate(optimizer.param_groups) for p in g["params"]}
        self.owned = self._divide(model, group_of)
        on_meta = _modules_on_meta(model, settings.init)
        self.used = [-1] * len(self.modules)
        self.written: set[int] = set()  # parameters with a part of their gradient written in this pass
        self.number_of = {o.parameter: number for number, o in enumerate(self.owned)}
        described = [Described(o.parameter.numel(), o.unit, group_of[o.parameter]) for o in self.owned]
        self.rule = rule_of(type(optimizer), optimizer.param_groups)
        self.core = self._create_core(described, len(optimizer.param_groups), settings)
        self._move(model, on_meta, settings.init)
        self.uses = Uses(self, settings.reshard) if self.core.placement == "sharded" else None
        self._watch(model)
        write_directly(self, model)
        self.optimizer = ZeroOptimizer(self, optimizer)
        clip_ours(lambda p: found() if (found := _managers.get(p)) is not None else None)

    def _create_core(self, described: list[Described], groups: int, settings: Settings) -> Core:
        """Creates the core, sharded if the ranks of a host cannot share memory and settings.yields."""
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
        """Checks the trained parameters, and returns them in the order of units. group_of: the optimizer's parameter
        group of each. Removes modules without own parameters from self.modules."""
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
        others = set(group_of) - {o.parameter for o in found}
        if any(p.requires_grad for p in others):
            raise ValueError("zero.shard: the optimizer has parameters that are not in the model")
        used = sorted({o.unit for o in found})             # a module without own parameters is no unit
        self.modules = [self.modules[unit] for unit in used]
        return sorted((o._replace(unit=used.index(o.unit)) for o in found), key=lambda o: o.unit)

    def _innermost(self) -> dict[nn.Parameter, int]:
        """The unit of each parameter that is in one unit, or in nested units: the innermost one."""
        holders: dict[nn.Parameter, list[int]] = {}
        for number, module in enumerate(self.modules[1:], 1):          # inner modules come after outer ones
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
        """The dtype of each unit. Raises ValueError if a unit has several."""
        found: list[torch.dtype | None] = [self.dtype] * len(self.modules)
        for name, p, unit in self.owned if self.dtype is None else ():
            if found[unit] not in (None, p.dtype):
                raise ValueError(f"zero.shard: parameter {name} is {p.dtype}, others of its unit are {found[unit]}; "
                                 "a unit must have one type: name it, or its parts, as units of their own")
            found[unit] = p.dtype
        return [dtype or torch.float32 for dtype in found]

    @torch.no_grad()
    def _move(self, model: nn.Module, on_meta: list[nn.Module], init: Callable[[nn.Module], None] | None) -> None:
        """Makes the parameters views of the core's arrays, with rank 0's values. on_meta: modules to initialize."""
        first, exact = dist.get_rank(self.group) == 0, {}
        for number, (_, p, _) in enumerate(self.owned):
            view = self.core.parameter(number).view(p.shape)
            if view.dtype != p.dtype and not p.is_meta:
                exact[number] = p.detach().float()
            if p.is_meta:
                torch.utils.swap_tensors(p, nn.Parameter(view))         # the optimizer keeps the same object
            else:
                if first:
                    view.copy_(p)
                p.data = view
            _managers[p] = weakref.ref(self)
        _trim_heap()
        for module in on_meta:
            _materialize_untrained(module)
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
        self.record_state()

    # ---- events of a step ----
    def _watch(self, model: nn.Module) -> None:
        """Installs the hooks. Each checks its module, so hooks that a copy of the model has do nothing."""
        for unit, module in enumerate(self.modules):
            self._await_units(module, {unit})
        if self.ahead or self.uses:     # modules that compute outside the forward of their unit
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
        """Waits until the unit is as new as the last step, and gathers it if it is sharded."""
        if self.uses:
            self.uses.begin(unit)
        elif self.used[unit] != self.steps:
            self.core.use(unit)
            self.used[unit] = self.steps

    def use_all(self) -> None:
        for unit in range(len(self.modules)) if not self.uses else ():
            self.use(unit)

    def claim(self) -> None:
        """Lets the program write to all parameters until restart(). Collective."""
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
        """Moves a complete gradient from p.grad into the core's buffer, and starts its sum when its unit is
        complete."""
        gradient = p.grad
        if gradient is not None:
            buffer, adds = self.core.gradient(number)
            flat = (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
            buffer.add_(flat) if adds or number in self.written else buffer.copy_(flat)
            p.grad = None
        elif number not in self.written:
            return
        self.written.discard(number)
        self.core.ready(number)

    def write(self, number: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor | None:
        """Computes left @ right, a weight's gradient or a part of it, in the core's buffer, and returns None. If the
        buffer has the gradient of an earlier pass, returns the product instead, for autograd to accumulate; take() adds
        it."""
        flat, adds = self.core.gradient(number)
        place = flat.view(self.owned[number].parameter.shape)
        if adds:
            return left.mm(right)
        place.add_(left.mm(right)) if number in self.written else torch.mm(left, right, out=place)
        self.written.add(number)
        return None

    def write_rows(self, number: int, ids: torch.Tensor, rows: torch.Tensor, padding: int) -> torch.Tensor | None:
        """Does what write() does for an embedding, whose gradient is the sum of rows by their ids. padding: the id
        whose rows are left out, or -1."""
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
        """Raises RuntimeError if a parameter was moved, replaced or changed on this rank since record_state()."""
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

    def record_state(self) -> None:
        """Records address and version of each parameter, which check() compares."""
        self.seen = [(p.data_ptr(), p._version) for _, p, _ in self.owned]

    def stepped(self) -> None:
        """Called after a step. Increments the parameters' versions, so that autograd graphs of before raise an
        error."""
        self.steps += 1
        if not self.ahead:
            self.use_all()
        if self.uses:
            self.uses.stepped()
        torch.autograd.graph.increment_version([p for _, p, _ in self.owned])
        self.record_state()

    def restart(self) -> None:
        """Gives all ranks the parameters of rank 0. Collective."""
        self.core.begin()
        if self.uses:
            self.uses.stepped()
        self.record_state()

    def entries(self) -> dict[str, tuple[int | None, Any]]:
        """The entries of the model's state_dict by name: (number of the parameter or None, value). The value of a
        sharded parameter is invalid while its unit is not gathered."""
        number_at = {address: number for number, (address, _) in enumerate(self.seen)}
        number_of = {o.name: number for number, o in enumerate(self.owned)}
        with self.uses.without_gathering() if self.uses else contextlib.nullcontext():
            state = self.model.state_dict(keep_vars=True)
        found = {name: (number_at.get(value.data_ptr(), number_of.get(name)), value.detach())
                 if torch.is_tensor(value) else (None, value) for name, value in state.items()}
        for missing in set(range(len(self.owned))) - {number for number, _ in found.values()}:
            raise ValueError(f"zero: the model's state_dict has no entry for parameter {self.owned[missing].name}; a "
                             "hook of its own may have renamed and copied it")
        return found

    def stay_whole(self) -> None:
        """Gathers all units again inside a block of whole(), after a call that released them. Collective."""
        if self.uses and self.uses.depth:
            self.core.keep(True)

    def unit_names(self) -> list[str]:
        name_of = {module: name or "model" for name, module in self.model.named_modules()}
        return [name_of.get(module, type(module).__name__) for module in self.modules]

    def report(self) -> dict[str, Any]:
        return {**self.core.report(), "hosts": self.core.placement}
