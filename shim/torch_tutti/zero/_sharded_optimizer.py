"""An optimizer without a model: each rank keeps the state of some whole parameters, steps them, and sends their values
to the others."""
from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta
from typing import Any, Callable, Iterable, Iterator

import torch
import torch.distributed as dist

from torch_tutti._calls import group_of
from torch_tutti._optimizer_trial import step_without_hooks
from torch_tutti.zero._arrival import ARRIVAL_TIMEOUT, Arrivals
from torch_tutti.zero._averages import average_gradients, broadcast_values, check_same_tensors
from torch_tutti.zero._pieces import balance


def sharded(params: Iterable[Any], optimizer_class: type[torch.optim.Optimizer], *, average: bool = False,
            group: dist.ProcessGroup | None = None, **options: Any) -> ShardedOptimizer:
    """Returns an optimizer of the given class whose state is divided among the ranks of a group. Each parameter has an
    owner, which keeps its state and steps it; the ranks own about equal numbers of elements. All parameters stay on all
    ranks, and have the same values there after each step. Collective: all ranks start with rank 0's values.

    params: parameters, or groups of them, as for optimizer_class; the same on all ranks. options: its other arguments.
    Any class works that steps each parameter by itself, also one that needs whole tensors, with any dtype.
    average: step() averages the gradients over the ranks first. Without it they must be equal on all ranks, as after
    the backward pass of DistributedDataParallel or of `zero.shard(model, stage=0)`. group: of any backend; None: the
    default group.

    The result is an instance of optimizer_class: its groups, schedulers, `add_param_group` and hooks work as there.
    """
    chosen = group_of("zero.sharded", group)
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)):
        raise TypeError(f"zero.sharded: optimizer_class is {optimizer_class!r}; it must be a class of optimizers, such "
                        "as torch.optim.AdamW, with its options after it")
    if issubclass(optimizer_class, ShardedOptimizer):
        raise TypeError(f"zero.sharded: {optimizer_class.__name__} already divides its state; pass the class it is of")
    kind = type(f"Sharded{optimizer_class.__name__}", (ShardedOptimizer, optimizer_class), {})
    result: ShardedOptimizer = kind(params, chosen, average, options)
    return result


class Ownership:
    """The owner of each parameter of an optimizer, which is a rank of a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.arrivals = Arrivals(group)
        # in the order in which the optimizer has the parameters
        self.owner_of: dict[torch.Tensor, int] = {}
        self.elements_of = [0] * self.ranks             # that each rank owns and trains

    def add_parameters(self, groups: list[dict[str, Any]]) -> None:
        """Gives each new parameter of these groups an owner, and the values of rank 0. Raises ValueError on all ranks
        if they have different parameters. Collective."""
        added = list(dict.fromkeys(p for group in groups for p in group["params"] if p not in self.owner_of))
        check_same_tensors("zero.sharded", {f"parameter {number}": p for number, p in enumerate(added)}, self.group)
        sizes = [parameter.numel() * parameter.requires_grad for parameter in added]
        self.owner_of.update(zip(added, balance(sizes, self.elements_of)))
        broadcast_values([added], self.group)

    def is_own(self, parameter: torch.Tensor) -> bool:
        """True if this rank owns the parameter."""
        return self.owner_of[parameter] == self.rank

    def send_values(self) -> None:
        """Gives all ranks the values that the owners have. Collective."""
        trained: list[list[torch.Tensor]] = [[] for _ in range(self.ranks)]
        for parameter, owner in self.owner_of.items():
            if parameter.requires_grad:
                trained[owner].append(parameter)
        broadcast_values(trained, self.group)

    @contextlib.contextmanager
    def only_own(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """In this context the groups have only this rank's parameters."""
        whole = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [parameter for parameter in group["params"] if self.is_own(parameter)]
        try:
            yield
        finally:
            for group, parameters in zip(groups, whole):
                group["params"] = parameters

    @torch.no_grad()
    def gather_states(self, own_states: Any, on_this_rank: bool) -> dict[Any, Any]:
        """Returns the states of all parameters if on_this_rank, otherwise {}. own_states: {parameter: its state} for
        this rank's parameters, and entries of other keys, which are copied to the result. Collective."""
        parameters = list(self.owner_of)
        described = {number: {name: (value.shape, value.dtype, value.device) if _is_sent_alone(value) else [value]
                              for name, value in own_states[parameter].items()}
                     for number, parameter in enumerate(parameters) if parameter in own_states}
        of_ranks: list[Any] = [None] * self.ranks
        dist.all_gather_object(of_ranks, described, self.group)
        found = {key: value for key, value in own_states.items() if key not in self.owner_of}
        for rank, of_rank in enumerate(of_ranks):
            for number, entries in of_rank.items():
                state = found[parameters[number]] = {}
                for name, entry in entries.items():
                    state[name] = entry[0] if isinstance(entry, list) else self._broadcast_value(
                        rank, own_states[parameters[number]][name] if rank == self.rank else None, *entry)
                if not on_this_rank:
                    del found[parameters[number]]
        return found if on_this_rank else {}

    def _broadcast_value(self, source: int, value: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype,
                         device: torch.device) -> torch.Tensor:
        """Returns a tensor that rank `source` has. Collective."""
        sent = torch.empty(shape, dtype=dtype, device=device) if value is None else value.contiguous()
        dist.broadcast(sent, group=self.group, group_src=source)
        return sent if value is None else value


def _is_sent_alone(value: Any) -> bool:
    """True for a value of a state that travels as a tensor. Numbers and unusual kinds of tensors are pickled."""
    return type(value) is torch.Tensor and value.dim() > 0 and value.layout == torch.strided


class ShardedOptimizer(torch.optim.Optimizer):
    """What `sharded` returns, which is also an instance of the given class of optimizers. `state` has the entries of
    this rank's parameters; `state_dict()` returns the whole state. step, average_gradients, add_param_group,
    state_dict and full_state_dict are collective. At the last two a rank waits `arrival_timeout` for the others."""
    arrival_timeout: timedelta = ARRIVAL_TIMEOUT

    def __init__(self, params: Iterable[Any], group: dist.ProcessGroup, average: bool, options: dict[str, Any]) -> None:
        """Creates the optimizer of all parameters, of which it keeps this rank's states. Collective."""
        self._averages, self._are_averaged, self._options = average, False, options
        super().__init__(params, **options)
        self._ownership = Ownership(group)
        self._take_parameters(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters, which must be the same on all ranks. Collective."""
        super().add_param_group(param_group)
        if hasattr(self, "_ownership"):         # otherwise the constructor is adding the first groups
            self._take_parameters(self.param_groups[-1:])

    def _take_parameters(self, groups: list[dict[str, Any]]) -> None:
        """Divides the parameters of new groups among the ranks. Collective."""
        self._ownership.add_parameters(groups)
        _check_independence(self._given_class, groups, self._options)
        # some classes create a state in their constructors
        for parameter in [p for group in groups for p in group["params"] if not self._ownership.is_own(p)]:
            self.state.pop(parameter, None)

    @property
    def _given_class(self) -> type[torch.optim.Optimizer]:
        """The class of optimizers that the program gave."""
        return type(self).__bases__[1]

    # ---- a step ----
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages the gradients if zero.sharded got average=True and average_gradients() has not done it, steps this
        rank's parameters, and gets the values of the others. Parameters without a gradient stay as they are.
        Collective."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if self._averages and not self._are_averaged:
            self.average_gradients()
        with self._ownership.only_own(self.param_groups):
            step_without_hooks(self, self._given_class)
        self._are_averaged = False
        self._ownership.send_values()
        return result

    def average_gradients(self) -> None:
        """Averages the gradients over the ranks now, so that the program can clip them, or check that they are finite,
        before step(), which does not average them again. Collective."""
        average_gradients([p for p in self._ownership.owner_of if p.requires_grad], self._ownership.group)
        self._are_averaged = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients."""
        self._are_averaged = False
        super().zero_grad(set_to_none)

    # ---- checkpoints ----
    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state on all ranks, in torch's format, for this class and the undivided one. Collective."""
        return self._gathered_state("state_dict()", True)

    def full_state_dict(self) -> dict[str, Any]:
        """Returns what state_dict() returns on rank 0 of the group, and {} on the others, which need no memory for the
        whole state. Collective."""
        on_this_rank = self._ownership.rank == 0
        found = self._gathered_state("full_state_dict()", on_this_rank)
        return found if on_this_rank else {}

    def _gathered_state(self, call: str, on_this_rank: bool) -> dict[str, Any]:
        """Returns torch's state_dict with the whole state if on_this_rank, otherwise without any state. call: its name,
        for error texts. Collective."""
        self._ownership.arrivals.wait(f"optimizer.{call}", "Call it on all ranks, and write the result on rank 0.",
                                      self.arrival_timeout)
        own_states = self.state
        self.state = self._ownership.gather_states(own_states, on_this_rank)    # type: ignore[assignment]
        try:
            return super().state_dict()
        finally:
            self.state = own_states

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that state_dict() or torch's optimizer of all parameters returned, equal on all ranks. Each
        rank keeps its part."""
        saved_ids = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        dropped = {saved for saved, parameter in zip(saved_ids, parameters) if not self._ownership.is_own(parameter)}
        kept = {saved: state for saved, state in state_dict["state"].items() if saved not in dropped}
        super().load_state_dict({**state_dict, "state": kept})


def _check_independence(kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]],
                        options: dict[str, Any]) -> None:
    """Raises NotImplementedError if a step of one parameter depends on other parameters, or needs a closure. Tries some
    steps of small tensors: two together, and each alone."""
    generator = torch.Generator().manual_seed(1)
    trained = [group for group in groups if group["params"]]
    # [group][tensor][number]: two tensors of each group, and their gradients in three steps
    values = [[[torch.randn([min(size, 4) for size in group["params"][0].shape], generator=generator) * 4 ** tensor
                for _ in range(4)] for tensor in range(2)] for group in trained]

    def try_steps(tensors: list[int]) -> list[torch.Tensor]:
        copies = [[torch.nn.Parameter(of_group[tensor][0].to(group["params"][0], copy=True)) for tensor in tensors]
                  for group, of_group in zip(trained, values)]
        settings = [{name: value for name, value in group.items() if name not in ("params", "param_names")}
                    for group in trained]
        optimizer = kind([{**each, "params": own} for each, own in zip(settings, copies)], **options)
        for number in range(1, 4):
            for own, of_group in zip(copies, values):
                for tensor, parameter in zip(tensors, own):
                    parameter.grad = of_group[tensor][number].to(parameter, copy=True)
            step_without_hooks(optimizer)
        return [parameter.detach() for own in copies for parameter in own]
    try:
        with torch.random.fork_rng(devices=[]):
            together, first, second = try_steps([0, 1]), try_steps([0]), try_steps([1])
    except Exception as error:
        raise NotImplementedError(f"zero.sharded: {kind.__name__} fails to step small tensors without a closure: "
                                  f"{error}") from error
    alone = [parameter for pair in zip(first, second) for parameter in pair]
    if not all(torch.allclose(mine, other, 1e-5, 1e-7, equal_nan=True) for mine, other in zip(together, alone)):
        raise NotImplementedError(f"zero.sharded: a step of {kind.__name__} changes a parameter in a way that depends "
                                  "on the other parameters, but a rank steps only its own; use it without sharding")
