"""The model of ZeRO: its units, the move of its parameters into the core's memory, and hooks that call the core."""
from __future__ import annotations

import contextlib
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
from torch.utils.weak import WeakTensorKeyDictionary

from torch_tutti._calls import tutti_group_of
from torch_tutti._extension import backend_of
from torch_tutti.compression import Compression
from torch_tutti.zero._arrival import ARRIVAL_TIMEOUT, Arrivals
from torch_tutti.zero._core import Core, ParameterInfo
from torch_tutti.zero._direct import sum_rows, replace_forwards
from torch_tutti.zero._gradients import DividedGradient, Gradients
from torch_tutti.zero._hooks import Hook, cast_inputs, count_data_changes, make_room, take_gradient
from torch_tutti.zero._modules import find_modules_on_meta, find_units, materialize_untrained, trim_heap
from torch_tutti.zero._optimizer import ZeroOptimizer, rule_of
from torch_tutti.zero._sharded import Uses

# {parameter: weak reference to the Manager of its model}
_managers: Any = WeakTensorKeyDictionary()
_PRECISIONS = {None: None, "bf16": torch.bfloat16}
# The number of gradient buffers in stage 1, which keeps all gradients: no unit waits for a buffer.
UNLIMITED_BUFFERS = 1 << 20


class Managed(NamedTuple):
    """A parameter that the core manages; its number is its position in Manager.managed. unit: the number of its unit,
    which is the position of the unit's module in Manager.modules."""
    name: str
    parameter: nn.Parameter
    unit: int


class Settings(NamedTuple):
    """The arguments of `shard`, checked."""
    placement: str
    may_shard: bool                     # use "sharded" if the ranks of a host cannot share memory
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
    assignment to `.data`) or changed in place, except by rank 0 in a `with optimizer.edit():` block; the next step
    raises an error. After backward() `grad` has no memory: it can be clipped, scaled and asked for its norm, by all
    ranks together. Buffers start as rank 0's, and are each rank's own afterwards. With bfloat16 the optimizer keeps
    float32 values of its part. AdamW, Adam and SGD run in C, bit-identical to torch's fused optimizers; any other
    optimizer that treats all elements equally runs on flat parts.
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
    settings = Settings(placement, stage == 3 and hosts is None, UNLIMITED_BUFFERS if stage == 1 else buffers, ahead,
                        prefetch, reshard, init, _PRECISIONS[precision], compression)
    manager = Manager(model, optimizer, find_units(model, units), tutti_group_of("zero.shard", group), settings)
    return model, manager.optimizer


def _placement_of(stage: int, hosts: str | None) -> str:
    """Returns the placement that a stage and the argument `hosts` select: "shared", "sharded", "replicated" or "whole".
    Raises ValueError for invalid arguments."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero.shard: stage {stage!r}; it must be 0, 1, 2 or 3")
    allowed = ("shared", "sharded") if stage == 3 else ("replicated",) if stage else ("whole",)
    if hosts not in (None, *allowed):
        raise ValueError(f"zero.shard: hosts={hosts!r} with stage {stage}; it can be "
                         f"{' or '.join(map(repr, allowed))}")
    return hosts or allowed[0]


def _zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
    """Replaces zero_grad() of the sharded module: discards the gradients that the core has, too."""
    manager = next((_managers[parameter]() for parameter in module.parameters() if parameter in _managers), None)
    if manager is not None and manager.model is module:
        manager.optimizer.zero_grad()
    type(module).zero_grad(module, set_to_none)


# pickle finds a method by this name
_zero_grad.__name__ = "zero_grad"


class Manager:
    """Owns the core of a sharded model. Maps modules to numbers of units, and parameters to numbers."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, modules: list[nn.Module],
                 group: dist.ProcessGroup, settings: Settings) -> None:
        """Creates the core and moves the parameters into it. modules: those that are units, without the model.
        Collective."""
        self.model, self.group, self.ahead = model, group, settings.ahead
        # the module of each unit; the gradients of the first one are complete last
        self.modules = [model, *modules]
        self.dtype = settings.dtype
        self.steps = 0                  # steps taken
        group_of = {p: number for number, options in enumerate(optimizer.param_groups) for p in options["params"]}
        self.managed = self._collect_managed(model, group_of)
        on_meta = find_modules_on_meta(model, settings.init)
        self.awaited = [-1] * len(self.modules)         # for each unit, `steps` when use() last waited for it
        self.written: set[int] = set()  # parameters with a part of their gradient in the core's buffer in this pass
        self.number_of = {entry.parameter: number for number, entry in enumerate(self.managed)}
        parameters = [ParameterInfo(entry.parameter.numel(), entry.unit, group_of[entry.parameter])
                      for entry in self.managed]
        self.rule = rule_of(type(optimizer), optimizer.param_groups)
        self.core = self._create_core(parameters, len(optimizer.param_groups), settings)
        self.arrivals = Arrivals(group)
        self._move_parameters(model, on_meta, settings.init)
        self.uses = Uses(self, settings.reshard) if self.core.placement == "sharded" else None
        self.gradients = Gradients(self)
        self._install_hooks(model)
        replace_forwards(self, model)
        self.optimizer = ZeroOptimizer(self, optimizer)
        # where a change through `data` would be lost, or happen once for each rank
        divided = self.core.placement in ("shared", "sharded")
        count_data_changes(self, (p for _, p, _ in self.managed if divided or p.dtype != torch.float32))

    def _create_core(self, parameters: list[ParameterInfo], groups: int, settings: Settings) -> Core:
        """Creates the core. Falls back to sharded parameters if the ranks of a host cannot share memory and
        settings.may_shard."""
        backend = backend_of(self.group)
        timeout = backend.options.timeout
        make_core = functools.partial(Core, backend._communicator, parameters, self._unit_dtypes(), groups,
                                      rule=self.rule, buffers=settings.buffers, prefetch=settings.prefetch,
                                      ahead=settings.ahead, compression=settings.compression,
                                      timeout_ms=math.ceil(timeout.total_seconds() * 1000) if timeout else 0)
        try:
            return make_core(placement=settings.placement)
        except NotImplementedError as reason:
            if not settings.may_shard:
                raise
            warnings.warn(f"zero.shard: parameters are sharded, not shared, on each host: {reason}", stacklevel=4)
        return make_core(placement="sharded")

    def _collect_managed(self, model: nn.Module, group_of: dict[nn.Parameter, int]) -> list[Managed]:
        """Checks the trained parameters, and returns them in the order of their units. group_of: {parameter: its group
        in the optimizer}. Removes modules without parameters of their own from self.modules."""
        unit_of = self._innermost_units()
        for name, module in model.named_modules():
            if getattr(module, "max_norm", None) is not None and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                raise ValueError(f"zero.shard: {name} is an embedding with max_norm, which changes its weight in "
                                 "forward(), differently on each rank")
        found = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            self._check_parameter(name, parameter, group_of)
            if parameter in _managers:
                raise ValueError(f"zero.shard: parameter {name} is already sharded; a model can be sharded once")
            found.append(Managed(name, parameter, unit_of.get(parameter, 0)))
        if not found:
            raise ValueError("zero.shard: the model has no parameter with requires_grad")
        others = set(group_of) - {entry.parameter for entry in found}
        if any(p.requires_grad for p in others):
            raise ValueError("zero.shard: the optimizer has parameters that are not in the model")
        # a module without parameters of its own is no unit
        kept_units = sorted({entry.unit for entry in found})
        self.modules = [self.modules[unit] for unit in kept_units]
        return sorted((entry._replace(unit=kept_units.index(entry.unit)) for entry in found),
                      key=lambda entry: entry.unit)

    def _innermost_units(self) -> dict[nn.Parameter, int]:
        """Returns {parameter: its innermost unit}, without parameters of the model alone, and without those that are in
        several units of which none lies inside all others."""
        holders: dict[nn.Parameter, list[int]] = {}
        for number, module in enumerate(self.modules[1:], 1):          # inner modules come after outer ones
            for parameter in module.parameters():
                holders.setdefault(parameter, []).append(number)
        modules_inside = [set(module.modules()) for module in self.modules]
        return {parameter: units[-1] for parameter, units in holders.items()
                if all(self.modules[units[-1]] in modules_inside[unit] for unit in units)}

    @staticmethod
    def _check_parameter(name: str, parameter: nn.Parameter, group_of: dict[nn.Parameter, int]) -> None:
        """Raises ValueError if a trained parameter is not in the optimizer, is not an ordinary CPU or meta tensor, has
        no elements, or has another dtype than float32 and bfloat16."""
        if parameter not in group_of:
            raise ValueError(f"zero.shard: the parameter {name} is not in the optimizer; pass it all parameters, or "
                             "set requires_grad=False")
        if parameter.device.type not in ("cpu", "meta") or parameter.layout != torch.strided:
            raise ValueError(f"zero.shard: parameter {name} is on {parameter.device}, {parameter.layout}; it "
                             "must be an ordinary CPU tensor")
        if not parameter.numel():
            raise ValueError(f"zero.shard: parameter {name} has no elements; set requires_grad=False")
        if parameter.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"zero.shard: parameter {name} is {parameter.dtype}; use float32 or bfloat16")

    def _unit_dtypes(self) -> list[torch.dtype]:
        """Returns the dtype of each unit: that of `precision`, or of its parameters. Raises ValueError if a unit has
        several."""
        found: list[torch.dtype | None] = [self.dtype] * len(self.modules)
        for name, parameter, unit in self.managed if self.dtype is None else ():
            if found[unit] not in (None, parameter.dtype):
                raise ValueError(f"zero.shard: parameter {name} is {parameter.dtype}, others of its unit are "
                                 f"{found[unit]}; a unit must have one type: name it, or its parts, as units of their "
                                 "own")
            found[unit] = parameter.dtype
        return [dtype or torch.float32 for dtype in found]

    @torch.no_grad()
    def _move_parameters(self, model: nn.Module, on_meta: list[nn.Module],
                         init: Callable[[nn.Module], None] | None) -> None:
        """Makes the parameters views of the core's arrays, with rank 0's values, and broadcasts rank 0's buffers and
        untrained parameters. on_meta: modules whose first values rank 0 sets. Collective."""
        is_first, float32_values = dist.get_rank(self.group) == 0, {}
        for number, (_, parameter, _) in enumerate(self.managed):
            view = self.core.parameter(number).view(parameter.shape)
            if view.dtype != parameter.dtype and not parameter.is_meta:
                float32_values[number] = parameter.detach().float()
            if parameter.is_meta:
                torch.utils.swap_tensors(parameter, nn.Parameter(view))         # the optimizer keeps the same object
            else:
                if is_first:
                    view.copy_(parameter)
                parameter.data = view
            _managers[parameter] = weakref.ref(self)
        trim_heap()
        for module in on_meta:
            materialize_untrained(module)
            if is_first:
                init(module) if init else module.reset_parameters()
        self.core.begin()
        # the optimizer's float32 values of parameters that were converted to bfloat16
        for number, whole in float32_values.items():
            dist.broadcast(whole, group=self.group, group_src=0)
            piece = self.core.piece(number)
            piece.value.copy_(whole.reshape(-1)[piece.at: piece.at + piece.value.numel()])
        trained = {entry.parameter for entry in self.managed}
        for tensor in [*model.buffers(), *(p for p in model.parameters() if p not in trained)]:
            whole = tensor.contiguous()
            dist.broadcast(whole, group=self.group, group_src=0)
            if whole is not tensor:
                tensor.copy_(whole)
        self.record_state()

    # ---- events of a step ----
    def _install_hooks(self, model: nn.Module) -> None:
        """Installs the hooks of modules and parameters. Each hook checks its module, so that hooks of a copied model do
        nothing."""
        for unit, module in enumerate(self.modules):
            self._await_before_forward(module, {unit})
        # modules may compute outside the forward of their unit
        if self.ahead or self.uses:
            unit_of = {parameter: unit for _, parameter, unit in self.managed}
            for module in model.modules():
                self._await_before_forward(module, {unit_of[p] for p in module.parameters(recurse=False)
                                                    if p in unit_of})
        # the nodes of autograd that accumulate gradients; their hooks follow those of tensors
        self.nodes = [torch.autograd.graph.get_gradient_edge(entry.parameter).node for entry in self.managed]
        for number, node in enumerate(self.nodes):
            node.register_prehook(functools.partial(make_room, weakref.ref(self), number))
            node.register_hook(functools.partial(take_gradient, weakref.ref(self), number))
        if self.dtype is not None:
            model.register_forward_pre_hook(functools.partial(cast_inputs, self.dtype), with_kwargs=True)
        if not self.uses:
            model.register_state_dict_pre_hook(Hook(lambda module, *_: self.use_all() if module is model else None))
        model.register_load_state_dict_pre_hook(
            Hook(lambda module, *_: self.claim("load_state_dict() of the model") if module is model else None))
        model.register_load_state_dict_post_hook(Hook(lambda module, *_: self.restart() if module is model else None))
        model.zero_grad = MethodType(_zero_grad, model)

    def _await_before_forward(self, module: nn.Module, units: set[int]) -> None:
        """Makes each forward of a module wait for these units first."""
        def hook(called: nn.Module, *_: Any) -> None:
            for unit in units if called is module else ():
                self.use(unit)
        # before the program's own hooks, which may compute with parameters
        if units:
            module.register_forward_pre_hook(Hook(hook), prepend=True)

    @torch.compiler.disable
    def use(self, unit: int) -> None:
        """Waits until a unit has the values of the last step, and gathers it if it is sharded."""
        if self.uses:
            self.uses.begin_use(unit)
        elif self.awaited[unit] != self.steps:
            self.core.use(unit)
            self.awaited[unit] = self.steps

    def use_all(self) -> None:
        """Waits until all units have the values of the last step. Does nothing if they are sharded."""
        for unit in range(len(self.modules)) if not self.uses else ():
            self.use(unit)

    def await_all(self, call: str, advice: str = "Call it on all ranks.") -> None:
        """Returns when all ranks have made this call. Raises RuntimeError after optimizer.arrival_timeout, or after the
        group's timeout if that is shorter. advice: what the text of the error recommends."""
        limits = (self.optimizer.arrival_timeout, backend_of(self.group).options.timeout)
        self.arrivals.wait(call, advice, min((limit for limit in limits if limit is not None),
                                             default=ARRIVAL_TIMEOUT))

    def claim(self, call: str) -> None:
        """Gathers all parameters and lets the program write to them until restart(). call: the call of the program, for
        error texts. Collective."""
        self.await_all(call)
        self.core.claim()
        self.core.keep(True)
        if self.uses:
            self.uses.is_claimed = True

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """In this context all parameters may be read, with the values of the last step. Collective if they are
        sharded."""
        self.use_all()
        if self.uses and not self.uses.depth:
            self.await_all("optimizer.whole()")
        with self.uses.whole() if self.uses else contextlib.nullcontext():
            yield

    @torch.compiler.disable
    @torch.no_grad()
    def take_gradient(self, number: int) -> None:
        """Moves a complete gradient from the parameter's grad into the core's buffer, and reports it to the core. Does
        nothing if this pass made no gradient."""
        parameter = self.managed[number].parameter
        gradient = parameter.grad
        if gradient is not None and not isinstance(gradient, DividedGradient):
            buffer, adds = self.core.gradient(number)
            flat = (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
            buffer.add_(flat) if adds or number in self.written else buffer.copy_(flat)
            parameter.grad = None
        elif number not in self.written:
            return
        self.written.discard(number)
        self.core.ready(number)
        self.gradients.show(number)

    def write_product(self, number: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor | None:
        """Multiplies left @ right, a weight's gradient or a part of it, into the core's buffer, and returns None. If
        the buffer has the gradient of an earlier pass, returns the product instead: autograd accumulates it, and
        take_gradient() adds it to the buffer."""
        flat, adds = self.core.gradient(number)
        buffer = flat.view(self.managed[number].parameter.shape)
        if adds:
            return left.mm(right)
        buffer.add_(left.mm(right)) if number in self.written else torch.mm(left, right, out=buffer)
        self.written.add(number)
        return None

    def write_rows(self, number: int, ids: torch.Tensor, rows: torch.Tensor, padding: int) -> torch.Tensor | None:
        """Sums rows by their ids, an embedding's gradient or a part of it, into the core's buffer, and returns None; or
        returns the sum, as write_product() does. padding: an id whose rows are left out, or -1."""
        flat, adds = self.core.gradient(number)
        buffer = flat.view(self.managed[number].parameter.shape)
        if adds:
            return sum_rows(rows, ids, len(buffer), padding)
        unique_ids, row_of_id = ids.long().unique(return_inverse=True)
        sums = sum_rows(rows, row_of_id, len(unique_ids))
        if padding >= 0:
            unique_ids, sums = unique_ids[unique_ids != padding], sums[unique_ids != padding]
        if number in self.written:
            buffer.index_add_(0, unique_ids, sums)
        else:
            buffer.zero_().index_copy_(0, unique_ids, sums)
        self.written.add(number)
        return None

    # ---- steps ----
    def check_parameters(self) -> None:
        """Raises RuntimeError if a parameter was moved, replaced or changed on this rank since record_state()."""
        current = dict(self.model.named_parameters())
        for (name, parameter, _), (address, version) in zip(self.managed, self.recorded):
            if current.get(name) is not parameter:
                raise RuntimeError(f"zero: the model has another parameter {name} than zero.shard found; load with "
                                   "assign=False, and shard a model after all its parameters exist")
            if parameter.data_ptr() != address:
                raise RuntimeError(f"zero: parameter {name} is not in the memory where zero.shard put it; something "
                                   "has moved it (.to, an assignment to .data). Move or convert a model before it "
                                   "is sharded")
            if parameter._version != version:
                raise RuntimeError(f"zero: parameter {name} was changed in place, by something other than the "
                                   "optimizer; change it on rank 0, on all ranks in `with optimizer.edit():`")
            if parameter.grad is not None and not isinstance(parameter.grad, DividedGradient):
                raise RuntimeError(f"zero: parameter {name} has a gradient in .grad that does not come from a "
                                   "backward pass; the optimizer takes only gradients of backward()")
        for name, parameter in current.items():
            if parameter.requires_grad and parameter not in self.number_of:
                raise RuntimeError(f"zero: parameter {name} was not trained when the model was sharded; set "
                                   "requires_grad before zero.shard")

    def record_state(self) -> None:
        """Records address and version of each parameter, for check_parameters()."""
        self.recorded = [(parameter.data_ptr(), parameter._version) for _, parameter, _ in self.managed]

    def finish_step(self) -> None:
        """Does what follows each step: waits for the units, unless with `ahead`, and increments the parameters'
        versions, so that backward() through an older graph raises an error."""
        self.steps += 1
        self.gradients.hide()
        if not self.ahead:
            self.use_all()
        if self.uses:
            self.uses.finish_step()
        torch.autograd.graph.increment_version([parameter for _, parameter, _ in self.managed])
        self.record_state()

    def restart(self) -> None:
        """Ends claim(): gives all ranks the parameters of rank 0. Collective."""
        self.core.begin()
        if self.uses:
            self.uses.finish_step()
        self.record_state()

    def entries(self) -> dict[str, tuple[int | None, Any]]:
        """Returns the entries of the model's state_dict, {name: (number of the trained parameter or None, value)}. The
        value of a sharded parameter is invalid while its unit is not gathered."""
        number_at = {address: number for number, (address, _) in enumerate(self.recorded)}
        number_of = {entry.name: number for number, entry in enumerate(self.managed)}
        with self.uses.without_gathering() if self.uses else contextlib.nullcontext():
            state = self.model.state_dict(keep_vars=True)
        found = {name: (number_at.get(value.data_ptr(), number_of.get(name)), value.detach())
                 if torch.is_tensor(value) else (None, value) for name, value in state.items()}
        for missing in set(range(len(self.managed))) - {number for number, _ in found.values()}:
            raise ValueError(f"zero: the model's state_dict has no entry for parameter {self.managed[missing].name}; a "
                             "hook of its own may have renamed and copied it")
        return found

    def stay_whole(self) -> None:
        """Inside a block of whole(), gathers all units again after a call that freed them. Collective."""
        if self.uses and self.uses.depth:
            self.core.keep(True)

    def unit_names(self) -> list[str]:
        """Returns the name of each unit's module; "model" for the model itself; the class of a module that is no longer
        in the model."""
        name_of = {module: name or "model" for name, module in self.model.named_modules()}
        return [name_of.get(module, type(module).__name__) for module in self.modules]

    def report(self) -> dict[str, Any]:
        return {**self.core.report(), "hosts": self.core.placement}
