"""The optimizer that zero.shard returns: a torch.optim.Optimizer whose state is divided among the ranks."""
from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from torch_tutti import _timeline
from torch_tutti._optimizer_trial import (HOOKS_OF_STEPS, Finding, examine, optimizer_like, refuse_idle, refuse_known,
                                          settings_of, step_without_hooks)
from torch_tutti.zero._arrival import ARRIVAL_TIMEOUT
from torch_tutti.zero._checkpoint import Checkpoint, ShardedState
from torch_tutti.zero._clipping import clip_grad_norm_
from torch_tutti.zero._composite import bytes_of
from torch_tutti.zero._core import Piece, Rates
from torch_tutti.zero._gradients import DividedGradient
from torch_tutti.zero._join import UnevenData, join
from torch_tutti.zero._local import LocalParameters
from torch_tutti.zero._pieces import Pieces, WholeParameters
from torch_tutti.zero._report import Report
from torch_tutti.zero._square_roots import square_roots_of
from torch_tutti.zero._unshard import divide_again, unshard
from torch_tutti.zero._zeroing import ZeroGradCheck

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager

# Options that the core's update rules do not have.
_UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "nesterov", "dampening", "capturable", "differentiable")
STATE_DICT_ADVICE = ("Call it on all ranks, and write the result on rank 0; or call full_state_dict(), where only rank "
                     "0 needs memory for the whole state, on all ranks.")


def rule_of(optimizer_class: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> str:
    """Returns the core's update rule for an optimizer class and its groups. "none" if the core has no such rule: then
    the optimizer itself steps this rank's pieces."""
    if any(group.get(name) for group in groups for name in _UNSUPPORTED_OPTIONS):
        return "none"
    if optimizer_class is torch.optim.SGD:
        return "momentum" if any(group["momentum"] for group in groups) else "sgd"
    if optimizer_class in (torch.optim.Adam, torch.optim.AdamW):
        if square_roots_of("adam", groups) is None:
            return "none"
        decoupled_by_default = optimizer_class is torch.optim.AdamW
        decoupled_values = {bool(group.get("decoupled_weight_decay", decoupled_by_default)) for group in groups}
        return "none" if len(decoupled_values) > 1 else "adamw" if decoupled_values.pop() else "adam"
    return "none"


class NoOptimizer(torch.optim.Optimizer):
    """Stands for the optimizer of a model until the program makes one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> None:
        """Raises RuntimeError."""
        raise RuntimeError("zero: the model has no optimizer yet; make one over its parameters, and call its step()")


def find_optimizer_reach(given: torch.optim.Optimizer, rule: str, placement: str) -> Finding:
    """Returns whether the given optimizer treats each element alone, and so may step flat pieces, or looks at whole
    parameters. Raises NotImplementedError if it cannot step the parts that a rank has with this placement."""
    if isinstance(given, NoOptimizer):
        return Finding(is_elementwise=True)
    refuse_known(given, "zero")
    if rule != "none":
        return Finding(is_elementwise=True)
    if placement == "whole":
        refuse_idle(given, "zero", "use zero.shard(model, stage=0) without an optimizer, which leaves whole gradients "
                    "in grad")
        return Finding(is_elementwise=False)
    return examine(given, given.param_groups, "zero", "or use stage=0, which divides nothing")


class ZeroOptimizer(torch.optim.Optimizer):
    """The optimizer that `zero.shard` returns. `param_groups` are the given optimizer's, for schedulers. `state` is
    empty; `state_dict()` returns the whole state. Hooks of steps may be registered on either optimizer; they are called
    with this one. step, clip_grad_norm_, state_dict and load_state_dict are collective. At calls outside a step a rank
    waits `arrival_timeout` for the others; None: the group's timeout."""
    arrival_timeout: timedelta | None = ARRIVAL_TIMEOUT
    # why unshard() is refused, as "is in a …"
    shares_model = ""
    # what error texts recommend to change parameters, and to train others
    edit_call = "optimizer.edit()"
    advice_to_train = "call optimizer.divide_again() on all ranks after a change of requires_grad"
    # the model has other optimizers, too (zero.shard_several)
    has_siblings = False
    # announces calls in a block of join(), or None
    uneven: UnevenData | None = None

    def __init__(self, manager: Manager, given: torch.optim.Optimizer) -> None:
        """Takes over the groups and the state of the given optimizer."""
        super().__init__([dict(group) for group in given.param_groups], dict(given.defaults))
        self.param_groups = given.param_groups          # the same objects: a scheduler of the given one works on
        for name in HOOKS_OF_STEPS:                     # also those that are registered on the given one later
            setattr(self, name, getattr(given, name, getattr(self, name)))
        self._optimizer_class = type(given)
        self._given, self._bare = weakref.ref(given), optimizer_like(given, [])
        self._no_sync_depth = 0         # nested blocks of no_sync
        self._zeroing, self._inner_updates = ZeroGradCheck(), 0
        self._is_probing = False        # the next zero_grad() belongs to the same probe as step() (_is_probe)
        attributes = set(vars(self))
        self._attach(manager, given)
        # the attributes that belong to the Manager; divide_again() replaces them
        self._of_manager = set(vars(self)) - attributes
        if given.state:
            self._checkpoint.load_state_dict(given.state_dict())

    def _attach(self, manager: Manager, given: torch.optim.Optimizer) -> None:
        """Sets what this object has of a Manager, whose optimizer it becomes."""
        self._manager, self._core, self._rule = manager, manager.core, manager.rule
        self._gradients = manager.gradients
        self._inner = None
        if self._rule == "none":
            finding = manager.finding
            self._settings = [settings_of(group) for group in self.param_groups]
            self._pieces = (Pieces if finding.is_elementwise or self._core.placement == "whole" else WholeParameters)(
                manager)
            self._inner = self._inner_optimizer(given)
            # the options that the inner optimizer has instead of the program's
            self._changed_options = {name: None for name in [finding.clip] if name is not None}
            self._inner.defaults.update(self._changed_options)
        self._local = LocalParameters(given, manager.unmanaged)
        self._checkpoint = Checkpoint(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters of the model, which now have requires_grad, like torch's method. Does what
        divide_again() does. Collective."""
        if hasattr(self, "_manager"):
            divide_again(self, param_group)
        else:                           # torch.optim.Optimizer's constructor calls it
            super().add_param_group(param_group)

    def divide_again(self) -> None:
        """Divides the model again after the program has changed which parameters have requires_grad; call it before the
        next forward pass. Parameters that are trained now must be in a group of the optimizer (add_param_group). Those
        that were trained before keep their optimizer state, those that are frozen now lose it. Each rank needs memory
        for the whole model and its optimizer state for a moment. Collective, between a step and a backward pass."""
        divide_again(self)

    def unshard(self) -> torch.optim.Optimizer:
        """Makes the model an ordinary one on each rank: its parameters, the same objects, have ordinary memory, and
        nothing of zero stays in its modules. Returns an ordinary optimizer of the given class with the whole state and
        the same groups, so schedulers go on. This one has ended. Parameters that precision="bf16" had converted are
        float32 again; those of a model that was bfloat16 before lose the optimizer's float32 values. Collective,
        between a step and a backward pass."""
        return unshard(self)

    # ---- a step ----
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Finishes the averages of gradients, and updates this rank's part of all parameters. Collective."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if self._is_probe():
            self._checkpoint.was_probed = self._is_probing = True
            return result
        self._manager.check_parameters()
        may_repeat = self._zeroing.begin_step(self._gradients.are_shown)
        if self.uneven is not None:
            self.uneven.announce("step")
        updates = self._count_updates() if may_repeat else 0
        # before the options of the groups change: some classes count their steps there
        self._local.step(self.param_groups)
        if self._inner is None:
            self._check_rule()
            self._core.step([self._rates(group) for group in self.param_groups], self._gradients.scale)
        else:
            self._step_inner()
        self._manager.finish_step()
        # a scheduler of the given optimizer asks that one whether a step came before its own
        if (given := self._given()) is not None:
            given._opt_called = True
        if may_repeat and updates == self._count_updates():
            self._zeroing.raise_repeated()
        return result

    def _count_updates(self) -> int:
        """Returns a number, equal on all ranks, that grows with each step for which some rank has a gradient."""
        return self._inner_updates + sum(self._core.piece(number).steps for number in range(len(self._manager.managed)))

    def _is_probe(self) -> bool:
        """True in a call of step() by which torch.distributed.checkpoint only creates the optimizer's state: it has set
        all gradients and learning rates to zero."""
        gradients = (p.grad for _, p, _ in self._manager.managed)
        rates = [group.get("lr") for group in self.param_groups]        # None: the optimizer chooses it
        return (all(rate is not None and not float(rate) for rate in rates)
                and all(not isinstance(gradient, (NoneType, DividedGradient)) and not gradient.any()
                        for gradient in gradients))

    def _check_rule(self) -> None:
        """Raises ValueError if the groups' options now need another update rule than when the model was sharded. The
        rule "momentum" also handles a momentum that became 0."""
        needed_rule = rule_of(self._optimizer_class, self.param_groups)
        if needed_rule != self._rule and (needed_rule, self._rule) != ("sgd", "momentum"):
            raise ValueError("zero: the settings of the groups now ask for another form of "
                             f"{self._optimizer_class.__name__} ({needed_rule}) than when the model was sharded "
                             f"({self._rule}); set them before zero.shard")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients that no step has used. Collective if all ranks have some. If an error ended a pass of some
        ranks only, and the others have gradients, call gradient_norms() on all ranks before."""
        self._gradients.hide()
        self._local.zero_grad()
        was_probing, self._is_probing = self._is_probing, False
        if was_probing:
            return
        self._zeroing.record_zero_grad()
        self._manager.written.clear()
        self._core.drop()

    @property
    def holds(self) -> bool:
        """True inside a block of no_sync."""
        return bool(self._manager) and self._no_sync_depth > 0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this context gradients stay on their rank, in memory of the whole model's size. They are added to those of
        the next backward pass outside, and summed over ranks then."""
        self._no_sync_depth += 1
        self._core.hold(True)
        try:
            yield
        finally:
            self._no_sync_depth -= 1
            self._core.hold(self._no_sync_depth > 0)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0,
                        error_if_nonfinite: bool = False) -> torch.Tensor:
        """Clips like torch.nn.utils.clip_grad_norm_ on the averaged gradients of all parameters. It is faster than
        torch's function, because the next step scales the gradients. Returns the norm before clipping, which is equal
        on all ranks: in float64 if a gradient is, else in float32. Collective, also for ranks without gradients."""
        if self.uneven is not None:
            self.uneven.announce("clip_grad_norm_", float(max_norm), float(norm_type), error_if_nonfinite)
        return clip_grad_norm_([self], max_norm, norm_type, error_if_nonfinite)

    def join(self, divide_by_initial_world_size: bool = True) -> contextlib.AbstractContextManager[None]:
        """Returns a context for training on data of which some ranks have fewer batches, like that of
        DistributedDataParallel: a rank that leaves the context first repeats the steps of the others, without gradients
        and with their options, until all have left. Then all have the options of the rank that had the most batches.
        Gradients are divided by the number of all ranks, or, with divide_by_initial_world_size=False, by that of the
        ranks with a batch. In the context call only zero_grad, step and clip_grad_norm_ of this optimizer, and let no
        other optimizer of the group step. Not for sharded parameters. Collective."""
        return join(self, divide_by_initial_world_size)

    @torch.no_grad()
    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Returns a copy of the whole averaged gradient of a parameter, in its shape, on all ranks: the one that the
        next step uses, clipped if that was called before. None if no rank has a gradient. Collective, and as for other
        norms and changes of gradients, no backward pass of this step may follow."""
        number = self._manager.number_of.get(parameter)
        if number is None:
            raise ValueError("zero: optimizer.gradient() of a tensor that is no trained parameter of the model")
        self._manager.await_all(f"optimizer.gradient() of {self._manager.managed[number].name}")
        part = self._gradients.own_part(number)
        return None if part is None else self._checkpoint._gather_whole(number, "gradient", parameter.shape, part)

    def gradient_norms(self, norm_type: float = 2.0) -> dict[str, torch.Tensor]:
        """Returns the norm of the averaged gradient of each parameter, by name, equal on all ranks; 0 if no rank has a
        gradient. The 2-norm of a layer is torch.linalg.vector_norm of the stacked norms of its parameters. Collective;
        no backward pass of this step may follow."""
        self._manager.await_all("optimizer.gradient_norms()")
        names = [entry.name for entry in self._manager.managed]
        return dict(zip(names, self._gradients.all_norms(float(norm_type))))

    def wait(self) -> None:
        """Waits until all parameters have the values of the last step. Only needed with `ahead`."""
        self._manager.use_all()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """In this context any code may read all parameters, with the values of the last step. Sharded parameters are
        otherwise valid only inside the forward of their modules; then this is collective. Run backward passes after the
        block."""
        with self._manager.whole():
            yield

    @contextlib.contextmanager
    def edit(self) -> Iterator[None]:
        """In this context rank 0 may change parameters, also untrained ones; afterwards all ranks have its values.
        Collective: the context begins when no rank reads parameters any more."""
        self._manager.claim("optimizer.edit()")
        try:
            yield
        finally:                        # the other ranks wait for this call
            self._manager.restart()
            self._manager.send_untrained(self._manager.model.parameters())

    def report(self) -> Report:
        """Statistics of this rank since `shard`: a dict, of which str() makes text. steps. waited_use_ns: waits for
        updates of other ranks. waited_sums_ns: waits for sums of gradients. late_units: units whose gradients were
        complete before it was their turn. sum_bytes: bytes of summed gradients. moved_bytes: parameters received.
        parameter_bytes, gradient_bytes, state_bytes: memory in use (of shared parameters this rank's share; of sharded
        ones this rank's and the most that was whole). gradient_peak_bytes: the most that gradient_bytes has been; the
        other two do not shrink. process_peak_bytes: the most memory of the process, with activations and all else.
        unforeseen: uses that were not prefetched. packed_bytes: compressed bytes sent. state_file_bytes: state
        in the file of state_directory, which state_bytes leaves out. stage, and hosts: the placement, "shared",
        "sharded", "replicated" or "whole"."""
        report = self._manager.report()
        if self._inner is not None:
            report["state_bytes"] += sum(bytes_of(value) for state in self._inner.state.values()
                                         for value in state.values())
        return report

    @contextlib.contextmanager
    def trace(self, path: str | os.PathLike[str], events: int = 1 << 17) -> Iterator[None]:
        """In this context each rank records its work and its waits, at most `events` events (about 4 for each unit and
        step). At the end rank 0 writes the events of all ranks to `path`, for `tutti zero` and the trace viewers of
        Chrome and Perfetto. Collective. After an error in the block nothing is written."""
        if events < 1:
            raise ValueError(f"zero: a trace of {events} events; it needs room for at least one")
        self._manager.await_all("optimizer.trace()")
        dist.barrier(self._manager.group)               # clocks of hosts differ, so all ranks set time 0 here
        began = time.monotonic_ns()
        self._core.watch(events)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._core.watch(0)
            raise
        self._core.watch(0)
        recorded, missed = self._core.events()
        own_events = [_timeline.Event(kind, unit, (start - began) / 1e6, (end - began) / 1e6, size)
                      for kind, unit, start, end, size in recorded]
        of_all_ranks: list[Any] = [None] * dist.get_world_size(self._manager.group)
        dist.all_gather_object(of_all_ranks, (own_events, missed, self.report()), self._manager.group)
        if dist.get_rank(self._manager.group) == 0:
            ranks, missing, reports = zip(*of_all_ranks)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(_timeline.chrome(list(ranks), self._manager.unit_names(), list(reports), sum(missing)), file)

    @staticmethod
    def _rates(group: dict[str, Any]) -> Rates:
        """Returns the hyperparameters of a parameter group for the core. Options that the group does not have are 0."""
        beta1, beta2 = (float(beta) for beta in group.get("betas", (0, 0)))
        return Rates(float(group["lr"]), float(group["weight_decay"]), float(group.get("momentum", 0)), beta1, beta2,
                     float(group.get("eps", 0)))

    # ---- any other optimizer ----
    def _inner_optimizer(self, given: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Returns an optimizer like the given one whose parameters are those of self._pieces."""
        number_of, groups = self._manager.number_of, []
        for group in self.param_groups:
            parameters = [self._pieces.parameters[number] for parameter in group["params"]
                          if (number := number_of.get(parameter)) in self._pieces.parameters]
            groups.append({**group, "params": parameters or [torch.nn.Parameter(torch.empty(0))]})
        return optimizer_like(given, groups)

    @torch.no_grad()
    def _step_inner(self) -> None:
        """Waits for the averaged gradients, steps the inner optimizer, and distributes the updated values."""
        assert self._inner is not None
        self._check_finding()
        self._core.settle()
        self._inner_updates += any(self._core.piece(number).used for number in range(len(self._manager.managed)))
        scale = self._clip_scale()
        self._core.claim()
        self._pieces.begin_step(scale, self._piece)
        for inner_group, group in zip(self._inner.param_groups, self.param_groups):
            parameters = inner_group["params"]
            inner_group.clear()
            inner_group.update({**group, **self._changed_options, "params": parameters})
        step_without_hooks(self._inner)
        # the optimizer's own entries in its groups, such as the number of its steps
        for inner_group, group in zip(self._inner.param_groups, self.param_groups):
            group.update({name: value for name, value in inner_group.items()
                          if name not in ("params", *self._changed_options)})
        self._pieces.end_step()
        self._core.publish()

    def _piece(self, number: int) -> Piece:
        """Returns this rank's piece of a parameter, with the averaged gradient for the step."""
        return self._core.piece(number)

    def _clip_scale(self) -> float:
        """Returns the factor for the gradients of this step. If the optimizer has an option that clips, the factor
        includes the clip, because the inner optimizer has only this rank's parts of the gradients. Collective then."""
        scale, option = self._gradients.scale, self._manager.finding.clip
        if option is None:
            return scale
        limit = self.param_groups[0].get(option, self.defaults.get(option))
        return scale / max(1.0, self._core.norm() * scale / float(limit)) if limit else scale

    def _check_finding(self) -> None:
        """Raises ValueError if the options of groups have changed so that the optimizer looks at other tensors than
        before."""
        settings = [settings_of(group) for group in self.param_groups]
        if any(group.get(name) != value for group, known in zip(settings, self._settings)
               for name, value in known.items()):
            self._settings = settings
            given = optimizer_like(self._bare, self.param_groups)
            finding = find_optimizer_reach(given, "none", self._core.placement)
            if finding != self._manager.finding:
                raise ValueError(f"zero: the settings of the groups have changed, and with them "
                                 f"{type(given).__name__} looks at other tensors than when the model was sharded "
                                 "(at whole ones, or at several); set them before zero.shard")

    # ---- checkpoints ----
    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state on each rank, in the form of torch's optimizer of the unsharded model. It can be
        loaded there, or here with other numbers of ranks and other stages. It also has the float32 values of bfloat16
        parameters (`master`), and with compression the residuals (`lost`), by name; with residuals, call it only
        between steps. Collective, except in stage 0, where each rank has the whole state."""
        if self._core.placement != "whole":
            self._manager.await_all("optimizer.state_dict()", STATE_DICT_ADVICE)
        return self._checkpoint.state_dict(on_all_ranks=True)

    @torch.no_grad()
    def full_state_dict(self, *, rank0_only: bool = True) -> dict[str, Any]:
        """Returns what state_dict() returns on rank 0 of the group, and {} on the others, which need no memory for the
        whole state. rank0_only=False: calls state_dict(). Collective, except in stage 0."""
        if not rank0_only:
            return self.state_dict()
        if self._core.placement != "whole":
            self._manager.await_all("optimizer.full_state_dict()")
        return self._checkpoint.state_dict(on_all_ranks=False)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that state_dict() or torch's optimizer of the unsharded model returned, equal on all ranks.
        Collective."""
        self._manager.await_all("optimizer.load_state_dict()")
        self._checkpoint.load_state_dict(state_dict)

    def sharded_state(self) -> ShardedState:
        """Returns the state of model and optimizer for torch.distributed.checkpoint, in parts and without a copy:
        `save({"training": optimizer.sharded_state()}, checkpoint_id=…)`, and likewise `load`. The entries have the
        names of torch's get_state_dict, so other numbers of ranks, other stages and unsharded models can read it."""
        return ShardedState(self._checkpoint)
