"""The model of ZeRO: its units, the move of its parameters into the core's memory, and hooks that call the core."""
from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
import weakref
from types import MethodType
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from torch_tutti._extension import backend_of
from torch_tutti.compression import Compression
from torch_tutti.zero._arrival import ARRIVAL_TIMEOUT, Arrivals
from torch_tutti.zero._copies import clean_copies, clean_module
from torch_tutti.zero._core import Core, Names, ParameterInfo
from torch_tutti.zero._direct import sum_rows, replace_forwards
from torch_tutti.zero._frozen import Frozen
from torch_tutti.zero._gradients import DividedGradient, Gradients
from torch_tutti.zero._hooks import (Hook, cast_inputs, count_data_changes, keep_in_memory, make_room,
                                     release_from_memory, take_gradient)
from torch_tutti.zero._modules import find_modules_on_meta, materialize_untrained, trim_heap
from torch_tutti.zero._optimizer import NoOptimizer, ZeroOptimizer, find_optimizer_reach, rule_of
from torch_tutti.zero._parameters import check_same_layout, collect_managed
from torch_tutti.zero._reduce_type import sums_in_float32
from torch_tutti.zero._report import Report, process_peak_bytes
from torch_tutti.zero._sharded import Uses
from torch_tutti.zero._square_roots import ROUNDED, square_roots_of

# {parameter: weak reference to the Manager of its model}, also of a Manager that has failed or ended without detach()
_managers: Any = WeakTensorKeyDictionary()


class Settings(NamedTuple):
    """The arguments of `shard`, checked."""
    stage: int
    placement: str
    may_shard: bool                     # use "sharded" if the ranks of a host cannot share memory
    buffers: int
    ahead: bool
    prefetch: int
    reshard: bool
    init: Callable[[nn.Module], None] | None
    dtype: torch.dtype | None           # for all parameters; None: each unit keeps its own
    compression: str | Compression | None
    ignored: set[torch.Tensor]          # parameters and buffers that each rank keeps for itself
    state_directory: str | os.PathLike[str] | None      # of a file with the optimizer's state; None: in memory
    reduce_dtype: torch.dtype | None


def _zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
    """Replaces zero_grad() of the sharded module: discards the gradients that the core has, too."""
    # a model with several optimizers has several managers
    for manager in dict.fromkeys(_managers[parameter]() for parameter in module.parameters() if parameter in _managers):
        if manager is not None and manager.model is module:
            manager.optimizer.zero_grad()
    type(module).zero_grad(module, set_to_none)


def restore_model(model: nn.Module, memory: dict[nn.Parameter, torch.Tensor]) -> None:
    """Takes the parameters of a model from its Managers, and makes it an ordinary model again. memory: that of all
    parameters from before the model was sharded."""
    managers = [_managers.pop(parameter)() for parameter in memory if parameter in _managers]
    for handle in (handle for manager in dict.fromkeys(managers) for handle in getattr(manager, "handles", ())):
        handle.remove()
    release_from_memory(memory)
    for parameter, values in memory.items():
        parameter.data = values
    for module in model.modules():
        clean_module(module)


# pickle finds a method by this name
_zero_grad.__name__ = "zero_grad"


class Manager:
    """Owns the core of a sharded model. Maps modules to numbers of units, and parameters to numbers."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, modules: list[nn.Module],
                 group: dist.ProcessGroup, settings: Settings) -> None:
        """Creates the core and moves the parameters into it. modules: those that are units, without the model.
        Collective."""
        self.model, self.group = model, group
        self.dtype, self.ignored = settings.dtype, settings.ignored
        self.settings, self.given_units = settings, modules
        self.steps = 0                  # steps taken
        group_of = {p: number for number, options in enumerate(optimizer.param_groups) for p in options["params"]}
        # tensors that the core does not have, although they may be trained
        self.unmanaged = self.ignored | {p for p in model.parameters() if not p.numel()}
        # self.modules: the module of each unit; the gradients of the first one are complete last
        self.managed, self.modules, dtypes = collect_managed([model, *modules], group_of, self.unmanaged, self.dtype)
        for entry in self.managed:
            if entry.parameter in _managers:
                raise ValueError(f"zero.shard: parameter {entry.name} is already sharded; a model can be sharded once")
        self.sums_in_float32 = sums_in_float32(
            settings.reduce_dtype, ((entry.name, dtypes[entry.unit]) for entry in self.managed), settings.compression)
        check_same_layout(self.managed, group)
        self.given_dtypes = [entry.parameter.dtype for entry in self.managed]
        on_meta = find_modules_on_meta(model, settings.init)
        self.awaited = [-1] * len(self.modules)         # for each unit, `steps` when use() last waited for it
        self.written: set[int] = set()  # parameters with a part of their gradient in the core's buffer in this pass
        self.number_of = {entry.parameter: number for number, entry in enumerate(self.managed)}
        parameters = [ParameterInfo(entry.parameter.numel(), entry.unit, group_of[entry.parameter])
                      for entry in self.managed]
        self.rule = "none" if torch.float64 in dtypes else rule_of(type(optimizer), optimizer.param_groups)
        if settings.state_directory is not None and self.rule == "none":
            raise NotImplementedError("zero.shard: state_directory= needs an optimizer that runs in C: AdamW, Adam or "
                                      "SGD with settings that the library has, and no float64 parameter; here is a "
                                      f"{type(optimizer).__name__}, and its state would be in memory")
        self.finding = find_optimizer_reach(optimizer, self.rule, settings.placement)
        self.square_roots = square_roots_of(self.rule, optimizer.param_groups) or ROUNDED
        self.core = self._create_core(parameters, dtypes, len(optimizer.param_groups), settings)
        self.ahead = settings.ahead and self._can_run_ahead(type(optimizer).__name__)
        self.arrivals, self.frozen = Arrivals(group), Frozen(group)
        self._move_parameters(model, on_meta, settings.init)
        self.uses = Uses(self, settings.reshard) if self.core.placement == "sharded" else None
        self.gradients = Gradients(self)
        self._install_hooks(model)
        # numbers of the weights that several linear layers and embeddings have
        self.tied = replace_forwards(self, model)
        clean_copies(model)
        self.optimizer = ZeroOptimizer(self, optimizer)
        # counts changes through `data` that the next gather or step would undo, or that each rank would repeat
        divided = self.core.placement in ("shared", "sharded")
        count_data_changes(self, (p for _, p, _ in self.managed if divided or p.dtype.itemsize == 2))
        keep_in_memory(self, self.number_of)

    def _create_core(self, parameters: list[ParameterInfo], dtypes: list[torch.dtype], groups: int,
                     settings: Settings) -> Core:
        """Creates the core. Falls back to sharded parameters if the ranks of a host cannot share memory and
        settings.may_shard."""
        backend = backend_of(self.group)
        timeout = backend.options.timeout
        make_core = functools.partial(Core, backend._communicator, parameters, dtypes, groups,
                                      rule=self.rule, buffers=settings.buffers, prefetch=settings.prefetch,
                                      ahead=settings.ahead, compression=settings.compression,
                                      square_roots=self.square_roots, state_directory=settings.state_directory,
                                      sums_in_float32=self.sums_in_float32,
                                      timeout_ms=math.ceil(timeout.total_seconds() * 1000) if timeout else 0,
                                      names=Names(f"zero stage {settings.stage} of {type(self.model).__name__}",
                                                  self.unit_names(), [entry.name for entry in self.managed]))
        try:
            return make_core(placement=settings.placement)
        except NotImplementedError as reason:
            if not settings.may_shard:
                raise
            warnings.warn(f"zero.shard: parameters are sharded, not shared, on each host: {reason}", stacklevel=4)
        return make_core(placement="sharded")

    def _can_run_ahead(self, optimizer: str) -> bool:
        """Returns whether `ahead` has an effect. Warns if it has none. optimizer: the name of its class."""
        if self.core.placement == "sharded":
            reason = "with sharded parameters, which all ranks gather together"
        elif optimizer == NoOptimizer.__name__:
            reason = "without an optimizer in zero.shard"
        elif self.rule == "none":
            # step() runs Python optimizers itself, before it returns
            reason = f"with {optimizer}, which runs in Python"
        else:
            return True
        warnings.warn(f"zero.shard: ahead=True has no effect {reason}", stacklevel=4)
        return False

    @torch.no_grad()
    def _move_parameters(self, model: nn.Module, on_meta: list[nn.Module],
                         init: Callable[[nn.Module], None] | None) -> None:
        """Makes the parameters views of the core's arrays, with rank 0's values, and broadcasts rank 0's buffers and
        untrained parameters, which `precision` converts. on_meta: modules whose first values rank 0 sets.
        Collective."""
        is_first, float32_values = dist.get_rank(self.group) == 0, {}
        for number, (_, parameter, _) in enumerate(self.managed):
            view = self.managed[number].shaped(self.core.parameter(number))
            if view.dtype != parameter.dtype and not parameter.is_meta:
                float32_values[number] = self.managed[number].flatten(parameter.detach()).float()
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
        # the optimizer's float32 values of parameters that were converted to 16 bits
        for number, whole in float32_values.items():
            dist.broadcast(whole, group=self.group, group_src=0)
            piece = self.core.piece(number)
            piece.value.copy_(whole[piece.at: piece.at + piece.value.numel()])
        self.send_untrained((*model.buffers(), *model.parameters()))
        if self.dtype is not None:
            self.frozen.convert(model, {*self.number_of, *self.unmanaged}, self.dtype)
        self.record_state()

    @torch.no_grad()
    def send_untrained(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives all ranks rank 0's values of the tensors in `tensors` that are neither managed nor ignored.
        Collective."""
        kept = {entry.parameter for entry in self.managed} | self.ignored
        for tensor in (each for each in tensors if each not in kept):
            whole = tensor.contiguous()
            dist.broadcast(whole, group=self.group, group_src=0)
            if whole is not tensor:
                tensor.copy_(whole)

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
        # the handles of all hooks that are not a Hook
        self.handles: list[Any] = []
        for number, node in enumerate(self.nodes):
            self.handles += [node.register_prehook(functools.partial(make_room, weakref.ref(self), number)),
                             node.register_hook(functools.partial(take_gradient, weakref.ref(self), number))]
        if self.dtype is not None:
            self.handles.append(model.register_forward_pre_hook(functools.partial(cast_inputs, self.dtype),
                                                                with_kwargs=True))
        if not self.uses:
            model.register_state_dict_pre_hook(Hook(lambda module, *_: self.use_all() if module is model else None))
        model.register_load_state_dict_pre_hook(
            Hook(lambda module, *_: self.claim("load_state_dict() of the model") if module is model else None))
        model.register_load_state_dict_post_hook(Hook(lambda module, *_: self.restart() if module is model else None))
        model.zero_grad = MethodType(_zero_grad, model)

    def detach(self) -> None:
        """Removes everything from the model that calls this object, so that the model is an ordinary one again when
        other values have been assigned to its parameters."""
        for handle in self.handles:
            handle.remove()
        release_from_memory(self.number_of)
        for entry in self.managed:
            del _managers[entry.parameter]
        for module in self.model.modules():
            clean_module(module)

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
            flat = self.managed[number].flatten(gradient.to_dense() if gradient.is_sparse else gradient)
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
        buffer = self.managed[number].shaped(flat)
        if adds:
            return left.mm(right)
        buffer.add_(left.mm(right)) if number in self.written else torch.mm(left, right, out=buffer)
        self.written.add(number)
        return None

    def write_rows(self, number: int, ids: torch.Tensor, rows: torch.Tensor, padding: int) -> torch.Tensor | None:
        """Sums rows by their ids, an embedding's gradient or a part of it, into the core's buffer, and returns None; or
        returns the sum, as write_product() does. padding: an id whose rows are left out, or -1."""
        flat, adds = self.core.gradient(number)
        buffer = self.managed[number].shaped(flat)
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
    def check_parameters(self, finds_new: bool = True) -> None:
        """Raises RuntimeError if a parameter was moved, replaced or changed on this rank since record_state(), or, with
        finds_new, if the program trains parameters that are not managed."""
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
                                   "optimizer; change it on rank 0, on all ranks in "
                                   f"`with {self.optimizer.edit_call}:`")
            if parameter.grad is not None and not isinstance(parameter.grad, DividedGradient):
                raise RuntimeError(f"zero: parameter {name} has a gradient in .grad that does not come from a "
                                   "backward pass; the optimizer takes only gradients of backward()")
        for name, parameter in current.items() if finds_new else ():
            if parameter.requires_grad and parameter not in self.number_of and parameter not in self.unmanaged:
                raise RuntimeError(f"zero: parameter {name} was not trained when the model was sharded; "
                                   f"{self.optimizer.advice_to_train}")

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
        """Returns the entries of the model's state_dict, {name: (number of the trained parameter or None, value)},
        without ignored tensors. The value of a sharded parameter is invalid while its unit is not gathered."""
        number_at = {address: number for number, (address, _) in enumerate(self.recorded)}
        number_of = {entry.name: number for number, entry in enumerate(self.managed)}
        with self.uses.without_gathering() if self.uses else contextlib.nullcontext():
            state = {name: value for name, value in self.model.state_dict(keep_vars=True).items()
                     if not torch.is_tensor(value) or value not in self.ignored}
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

    def report(self) -> Report:
        return Report({**self.core.report(), "hosts": self.core.placement, "stage": self.settings.stage,
                       "process_peak_bytes": process_peak_bytes()})
