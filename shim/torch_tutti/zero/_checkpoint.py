"""Saves and loads the state of a ZeroOptimizer: the optimizer's whole state on each rank, in the format of torch's
optimizers; or the state of model and optimizer in parts, of which each rank saves its own, for
torch.distributed.checkpoint."""
from __future__ import annotations

import copy
import itertools
import math
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from torch_tutti._optimizer_trial import optimizer_like, step_without_hooks
from torch_tutti.zero._composite import Composite, copied, describe, is_composite
from torch_tutti.zero._parameters import inverse_of
from torch_tutti.zero._parts import Parts, boxes

if TYPE_CHECKING:
    from torch_tutti.zero._optimizer import ZeroOptimizer

# {update rule: torch's names of its moments}
_MOMENTS = {"none": (), "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"),
            "adamw": ("exp_avg", "exp_avg_sq")}
# Makes a state value from (number of the parameter, name of the value, its shape, this rank's part of it).
Assemble = Callable[[int, str, torch.Size, torch.Tensor], Any]


class Outline(NamedTuple):
    """Describes a state value of which ranks have parts."""
    shape: torch.Size
    dtype: torch.dtype


def _has_elements(name: str, value: Any) -> bool:
    """True if the elements of a state value are divided among the ranks. False if each rank has the same value, such as
    a number of steps."""
    return torch.is_tensor(value) and value.dim() > 0 and name != "step"


class Checkpoint:
    """Collects and restores the state of an optimizer and its model."""

    def __init__(self, optimizer: ZeroOptimizer) -> None:
        self.optimizer, self.manager = optimizer, optimizer._manager
        self.core, self.group = self.manager.core, self.manager.group
        self.ranks = dist.get_world_size(self.group)
        # True after a call of step() by which torch only creates state (ZeroOptimizer._is_probe)
        self.was_probed = False

    # ---- which rank has what ----
    def _is_owned(self, name: str) -> bool:
        """True if the optimizer keeps state values of this name whole, in shapes of its own, on one rank for each
        parameter (on all ranks in stage 0)."""
        return (self.optimizer._inner is not None and self.optimizer._pieces.is_whole
                and name not in ("master", "lost", "gradient"))

    def _counts(self, number: int, name: str, elements: int) -> list[int]:
        """Returns how many elements of a state value each rank has, in the order of ranks. elements: how many the whole
        value has."""
        if not self._is_owned(name):
            return self.core.counts(number, self.ranks)
        if self.core.placement == "whole":
            return [elements] * self.ranks
        return [elements if rank == self.optimizer._pieces.owner[number] else 0 for rank in range(self.ranks)]

    # ---- the state of this rank ----
    def _local_state(self, number: int, include_new: bool) -> dict[str, Any]:
        """Returns this rank's state of a parameter by torch's names: flat parts, and numbers such as "step"; "master"
        is the float32 values of a bfloat16 parameter. Returns {} if this rank has no element of it. include_new: also
        return first values of a parameter that no step has updated."""
        piece, rule = self.core.piece(number), self.manager.rule
        found: dict[str, Any] = {}
        if (inner := self.optimizer._inner) is not None:
            flat = self.optimizer._pieces.parameters.get(number)
            found = dict(inner.state.get(flat, {})) or (
                self._first_state(flat) if include_new and flat is not None else {})
        elif (piece.steps or include_new) and piece.value.numel() and _MOMENTS[rule]:
            found = dict(zip(_MOMENTS[rule], piece.moments))
            if len(found) > 1:
                found = {"step": torch.tensor(float(piece.steps)), **found}
        if piece.value.numel() and self.manager.managed[number].parameter.dtype != piece.value.dtype:
            found["master"] = piece.value
        return found

    def _step_on_zeros(self, group: dict[str, Any], shape: torch.Size,
                       dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
        """Returns an optimizer like the inner one, with a copy of one of its groups, after a step on a parameter of
        zeros, whose gradient is zeros. Its "step" is 0 again."""
        zeros = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        zeros.grad = torch.zeros(shape, dtype=dtype)
        options = copy.deepcopy({name: value for name, value in group.items() if name != "params"})
        trial = optimizer_like(self.optimizer._inner, [{**options, "params": [zeros]}])
        step_without_hooks(trial)
        for values in (trial.state[zeros], trial.param_groups[0]):
            values.update({name: value * 0 for name, value in values.items() if name == "step"})
        return trial

    def _first_state(self, flat: torch.nn.Parameter) -> dict[str, Any]:
        """Returns the state that the optimizer would create for `flat`, a parameter that it has not updated yet."""
        groups = self.optimizer._inner.param_groups
        group = next(group for group in groups if any(p is flat for p in group["params"]))
        trial = self._step_on_zeros(group, flat.shape, flat.dtype)
        return dict(trial.state[trial.param_groups[0]["params"][0]])

    def _first_options(self, index: int) -> dict[str, Any]:
        """Returns the options that the first step of the optimizer adds to a group, such as the number of steps. index:
        of the group."""
        group, inner = self.optimizer.param_groups[index], self.optimizer._inner
        shapes = [p.shape for p in group["params"] if p in self.manager.number_of]
        if inner is None or not shapes:
            return {}
        shape = min(shapes, key=torch.Size.numel)
        trial = self._step_on_zeros(inner.param_groups[index], shape if self.optimizer._pieces.is_whole
                                    else torch.Size([shape.numel()]))
        return {name: value for name, value in trial.param_groups[0].items() if name not in group}

    def _states(self, assemble: Assemble, include_new: bool, in_parts: bool = False) -> dict[int, dict[str, Any]]:
        """Returns the state of each parameter, {number: {name: value}}, with equal names on all ranks. assemble() makes
        a value that is divided among the ranks from this rank's part; other values are copied. include_new: as in
        _local_state(). in_parts: assemble() makes Parts. Collective, except in stage 0."""
        local_states = {number: self._local_state(number, include_new) for number in range(len(self.manager.managed))}
        local_outline = {number: {name: self._outline(number, name, value) for name, value in parts.items()}
                         for number, parts in local_states.items() if parts}
        if self.core.placement == "whole":
            self._refuse_composites([local_outline], in_parts)
            return {number: {name: self._assembled(assemble, number, name, value, local_states[number][name])
                             for name, value in outline.items()} for number, outline in local_outline.items()}
        outlines: list[Any] = [None] * self.ranks
        dist.all_gather_object(outlines, local_outline, self.group)
        self._refuse_composites(outlines, in_parts)
        found = {}
        for number in range(len(self.manager.managed)):
            outline: dict[str, Any] = {}
            for other in outlines:      # the owner of a parameter has its state, others may have its float32 values
                outline = {**other.get(number, {}), **outline}
            if outline:
                found[number] = {name: self._assembled(assemble, number, name, value, local_states[number].get(name))
                                 for name, value in outline.items()}
        return found

    def _refuse_composites(self, outlines: list[dict[int, dict[str, Any]]], in_parts: bool) -> None:
        """Raises NotImplementedError for a state value of several tensors that belongs to a flat piece, or is to be
        saved in parts. outlines: those of all ranks, so that all ranks raise the error."""
        for number, name, value in ((number, name, value) for outline in outlines for number, values in outline.items()
                                    for name, value in values.items() if isinstance(value, Composite)):
            text = (f"zero: {self.optimizer._optimizer_class.__name__} keeps {name} of parameter "
                    f"{self.manager.managed[number].name} as {value.kind.__name__}, ")
            if not self._is_owned(name):
                raise NotImplementedError(f"{text}whose blocks differ between the parameter and its pieces, which the "
                                          "ranks have; use stage=0, which divides nothing")
            if in_parts:
                raise NotImplementedError(f"{text}which sharded_state() cannot save; use optimizer.state_dict() or "
                                          "full_state_dict()")

    def _assembled(self, assemble: Assemble, number: int, name: str, outline: Any, local: Any) -> Any:
        """Returns a state value. outline: as of _outline(). local: this rank's part of it, or None."""
        if isinstance(outline, Composite):
            return outline.build(lambda inner, described: self._assembled(
                assemble, number, name, described, None if local is None else getattr(local, inner)))
        if isinstance(outline, Outline):
            return assemble(number, name, outline.shape,
                            torch.empty(0, dtype=outline.dtype) if local is None else local)
        return copy.deepcopy(outline)

    def _outline(self, number: int, name: str, value: Any) -> Any:
        """Returns the Outline of a state value of which ranks have parts, the Composite of one that consists of several
        tensors, and any other value unchanged."""
        if is_composite(value):
            return describe(value, lambda part: Outline(part.shape, part.dtype))
        if not _has_elements(name, value):
            return value
        return Outline(value.shape if self._is_owned(name) else self.manager.managed[number].parameter.shape,
                       value.dtype)

    def _groups(self, name_of: Callable[[torch.Tensor, int], Any], include_new: bool) -> list[dict[str, Any]]:
        """Returns param_groups with name_of(parameter, index) in place of each parameter. The index counts through all
        groups. include_new: also return what the first step adds to the groups."""
        index = itertools.count()
        return [{**{name: value for name, value in group.items() if name != "params"},
                 **(self._first_options(number) if include_new else {}),
                 "params": [name_of(p, next(index)) for p in group["params"]]}
                for number, group in enumerate(self.optimizer.param_groups)]

    # ---- the whole state on each rank ----
    def _shaped(self, number: int, name: str, shape: torch.Size, whole: torch.Tensor) -> torch.Tensor:
        """Returns a view of a whole state value in its shape. Values that the optimizer does not keep whole are in the
        order of the parameter's memory."""
        return whole.view(shape) if self._is_owned(name) else self.manager.managed[number].shaped(whole)

    def _gather_whole(self, number: int, name: str, shape: torch.Size, part: torch.Tensor) -> torch.Tensor:
        """Returns a whole tensor of this shape, made of the parts of all ranks. Collective, except in stage 0."""
        if self.core.placement == "whole":
            return self._shaped(number, name, shape, part.clone())
        whole = torch.empty(shape.numel(), dtype=part.dtype)
        parts = list(whole.split(self._counts(number, name, shape.numel())))
        dist.all_gather(parts, part.reshape(-1), self.group)
        return self._shaped(number, name, shape, whole)

    def _gather_on_rank_0(self, number: int, name: str, shape: torch.Size, part: torch.Tensor) -> torch.Tensor | None:
        """Returns what _gather_whole() does on rank 0, and None on the others. Collective."""
        is_first, counts = dist.get_rank(self.group) == 0, self._counts(number, name, shape.numel())
        whole = torch.empty(shape.numel() if is_first else 0, dtype=part.dtype)
        sent = [part.numel(), *[0] * (self.ranks - 1)]
        dist.all_to_all_single(whole, part.reshape(-1), counts if is_first else [0] * self.ranks, sent, self.group)
        return self._shaped(number, name, shape, whole) if is_first else None

    def state_dict(self, on_all_ranks: bool) -> dict[str, Any]:
        """Returns the state that ZeroOptimizer.state_dict() documents, on all ranks; or on rank 0, and {} elsewhere.
        Collective, except in stage 0."""
        returns_state = on_all_ranks or dist.get_rank(self.group) == 0
        if self.core.placement == "whole" and not returns_state:
            return {}
        gather = self._gather_whole if on_all_ranks or self.core.placement == "whole" else self._gather_on_rank_0
        states, state = self._states(gather, self.was_probed), {}
        for index, parameter in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            number = self.manager.number_of.get(parameter)
            found_state = states.get(number) if number is not None else self.optimizer._local.state(parameter) or None
            if found_state is not None:
                state[index] = found_state
        found = {"state": state, "param_groups": self._groups(lambda _, index: index, self.was_probed)}
        if self.core.has_feedback:
            found["lost"] = {}
            for number, entry in enumerate(self.manager.managed):
                residual = entry.shaped(self.core.residual(number))
                if returns_state:
                    found["lost"][entry.name] = residual
        return found if returns_state else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that ZeroOptimizer.state_dict() documents. Raises ValueError unless its groups have as many
        parameters as those of the optimizer. Collective."""
        loaded_groups, groups = state_dict["param_groups"], self.optimizer.param_groups
        lengths = [len(group["params"]) for group in loaded_groups]
        if lengths != [len(group["params"]) for group in groups]:
            raise ValueError(f"zero: the state is of an optimizer with groups of {lengths} parameters; this one has "
                             f"{[len(group['params']) for group in groups]}")
        self._load_residuals(state_dict.get("lost", {}))
        self._load_groups(loaded_groups)
        keys = itertools.chain.from_iterable(group["params"] for group in loaded_groups)
        for key, parameter in zip(keys, itertools.chain.from_iterable(group["params"] for group in groups)):
            number = self.manager.number_of.get(parameter)
            if number is not None:
                values = self._own_parts(number, state_dict["state"].get(key, {}))
                float32_values = values.pop("master", None)
                # a parameter of more than 16 bits gets its values from the model's state
                if float32_values is not None and parameter.dtype.itemsize == 2:
                    self.core.piece(number).value.copy_(float32_values)
                self._load_local_state(number, values)
            else:
                self.optimizer._local.load(parameter, state_dict["state"].get(key, {}))

    def _load_groups(self, loaded_groups: list[dict[str, Any]]) -> None:
        """Copies the options of loaded groups, but not their parameters, into the optimizer's groups."""
        for group, loaded in zip(self.optimizer.param_groups, loaded_groups):
            group.update(copy.deepcopy({name: value for name, value in loaded.items() if name != "params"}))

    def _load_residuals(self, residuals: dict[str, torch.Tensor]) -> None:
        """Sets the residuals of compression: whole tensors by name of the parameter, zeros for a missing one. Does
        nothing without error feedback. Raises ValueError for a wrong shape. Collective."""
        managed = self.manager.managed if self.core.has_feedback else []
        found = [residuals.get(entry.name, torch.zeros(entry.parameter.shape)) for entry in managed]
        for entry, value in zip(managed, found):
            if value.shape != entry.parameter.shape:
                raise ValueError(f"zero: the residual of parameter {entry.name} has the shape {tuple(value.shape)} in "
                                 f"the state, but should have {tuple(entry.parameter.shape)}")
        for number, value in enumerate(found):
            self.core.set_residual(number, managed[number].flatten(value))

    def _own_part(self, number: int, name: str, value: Any, is_owned: bool = False) -> Any:
        """Returns this rank's part of a whole tensor or of a Parts, flat unless is_owned. Returns any other value
        unchanged. is_owned: the result of _is_owned(). Raises ValueError for a wrong number of elements."""
        managed, piece = self.manager.managed[number], self.core.piece(number)
        if isinstance(value, Parts):
            flat = [part.reshape(-1) if is_owned else managed.flatten(part) for _, part in value.parts]
            shape, value = value.shape, flat[0] if len(flat) == 1 else torch.cat(
                [torch.empty(0, dtype=value.dtype), *flat])
            count = (self._counts(number, name, shape.numel())[dist.get_rank(self.group)] if is_owned
                     else piece.value.numel())
            if value.numel() != count:
                raise ValueError(f"zero: of {name} of parameter {managed.name} the state has {value.numel()} elements "
                                 f"for this rank, but should have {count}: it was saved with another number of ranks")
            return value.view(shape) if is_owned and count else value
        if is_owned or not _has_elements(name, value):
            return value
        if value.numel() != managed.parameter.numel():
            raise ValueError(f"zero: {name} of parameter {managed.name} has {value.numel()} elements in the state, but "
                             f"should have {managed.parameter.numel()}")
        return managed.flatten(value.reshape(managed.parameter.shape))[piece.at: piece.at + piece.value.numel()]

    def _own_parts(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        """Returns this rank's parts of all state values of a parameter, {name: part}."""
        return {name: self._own_part(number, name, value, self._is_owned(name)) for name, value in values.items()}

    def _load_local_state(self, number: int, local_state: dict[str, Any]) -> None:
        """Writes this rank's parts of a parameter's state into the optimizer or the core. A missing moment becomes
        zeros."""
        if (inner := self.optimizer._inner) is not None:
            flat = self.optimizer._pieces.parameters.get(number)
            # no step has updated the parameter, so the optimizer has no state of it
            if flat is not None and not local_state.get("step", 1):
                inner.state.pop(flat, None)
            elif flat is not None:
                inner.state[flat] = {name: copied(value) for name, value in local_state.items()}
                # torch's optimizers load a state in the type of the parameter, which may have 16 bits
                narrow = self.manager.managed[number].parameter.dtype
                inner.state[flat].update({name: value.to(flat.dtype) for name, value in local_state.items()
                                          if _has_elements(name, value) and value.dtype == narrow != flat.dtype})
            return
        self.core.set_steps(number, int(local_state.get("step", bool(local_state))))
        for name, moment in zip(_MOMENTS[self.manager.rule], self.core.piece(number).moments):
            if moment is not None:
                moment.copy_(local_state[name]) if local_state.get(name) is not None else moment.zero_()


class ShardedState:
    """The state of model and optimizer in parts, which `ZeroOptimizer.sharded_state` returns.
    torch.distributed.checkpoint calls both public methods, on all ranks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._manager = checkpoint, checkpoint.manager

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Returns {"model": …, "optimizer": …} with the names of get_state_dict of torch.distributed.checkpoint.
        Divided tensors are Parts: views of what this rank keeps, or copies of another dtype, valid until the next step.
        Collective."""
        core = self._checkpoint.core
        self._manager.await_all("optimizer.sharded_state().state_dict()")
        entries = self._manager.entries()
        core.claim_pieces()
        try:
            return {"model": {name: self._untrained_value(value) if number is None else self._parameter_value(number)
                              for name, (number, value) in entries.items()}, "optimizer": self._optimizer_state()}
        finally:
            self._manager.stay_whole()

    def _optimizer_state(self) -> dict[str, Any]:
        """Returns the state of the optimizer in parts. Collective."""
        checkpoint, core, managed = self._checkpoint, self._checkpoint.core, self._manager.managed
        states = {managed[number].name: state
                  for number, state in checkpoint._states(self._as_parts, True, in_parts=True).items()}
        found = {"state": states, "param_groups": checkpoint._groups(
            lambda parameter, _: managed[number].name
            if (number := self._manager.number_of.get(parameter)) is not None else "", True)}
        if core.has_feedback:
            found["lost"] = {entry.name: self._as_parts(number, "lost", entry.parameter.shape,
                                                        self._residual_part(number))
                             for number, entry in enumerate(managed)}
        return found

    def _untrained_value(self, value: Any) -> Any:
        """Returns a buffer or an untrained parameter as Parts of one box, which rank 0 alone saves and all ranks load.
        Returns a value that is not a tensor unchanged."""
        if not torch.is_tensor(value):
            return value
        first = dist.get_rank(self._checkpoint.group) == 0
        return Parts(value.shape, value.dtype, [((0,) * value.dim(), value)], is_saved=first)

    def _parameter_value(self, number: int) -> Any:
        """Returns the values of a trained parameter, in its own dtype, as _as_parts() does."""
        parameter = self._manager.managed[number].parameter
        return self._as_parts(number, "master", parameter.shape,
                              self._checkpoint.core.piece(number).value.to(parameter.dtype))

    def _residual_part(self, number: int) -> torch.Tensor:
        """Returns this rank's part of a parameter's residual of compression, flat. Collective."""
        piece = self._checkpoint.core.piece(number)
        return self._checkpoint.core.residual(number)[piece.at: piece.at + piece.value.numel()].clone()

    def _as_parts(self, number: int, name: str, shape: torch.Size, part: torch.Tensor) -> torch.Tensor:
        """Returns a Parts of this shape that has `part`, this rank's part of a parameter's values or state. In stage 0,
        where nothing is divided, returns `part` in this shape."""
        checkpoint, managed = self._checkpoint, self._manager.managed[number]
        if checkpoint.core.placement == "whole":
            return checkpoint._shaped(number, name, shape, part)
        is_owned = checkpoint._is_owned(name)
        begin, order = (0, list(range(len(shape)))) if is_owned else (checkpoint.core.piece(number).at, managed.order())
        found_boxes = list(boxes(tuple(shape[dim] for dim in order), begin, begin + part.numel()))
        flat = part.reshape(-1).split([math.prod(sizes) for _, sizes in found_boxes]) if found_boxes else ()
        inverse = inverse_of(order)
        return Parts(shape, part.dtype, [(tuple(offsets[dim] for dim in inverse), values.view(sizes).permute(inverse))
                                         for values, (offsets, sizes) in zip(flat, found_boxes)])

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a dict of the form that state_dict() returns, with whole tensors or Parts. Collective. If the state of
        a parameter is missing or invalid on any rank, all ranks raise ValueError before anything is loaded."""
        checkpoint, core, manager = self._checkpoint, self._checkpoint.core, self._manager
        manager.await_all("optimizer.sharded_state().load_state_dict()")
        optimizer_state, untrained, own_parts = state["optimizer"], [], {}
        problem = None
        try:
            for name, (number, value) in manager.entries().items():
                given = state["model"][name]
                if number is not None:
                    states = optimizer_state["state"].get(manager.managed[number].name, {})
                    own_parts[number] = (checkpoint._own_part(number, name, given),
                                         checkpoint._own_parts(number, states))
                else:
                    untrained.append((name, value, given))
        except (KeyError, RuntimeError, ValueError) as error:
            problem = f"zero: the state has no {error}" if isinstance(error, KeyError) else str(error)
        self._raise_on_all_ranks(problem)
        core.claim_pieces()
        checkpoint._load_groups(optimizer_state["param_groups"])
        for name, value, given in untrained:
            self._load_untrained(name, value, given.parts[0][1] if isinstance(given, Parts) else given)
        for number, (value, local_state) in own_parts.items():
            self._load_value(number, value, local_state.pop("master", None))
            checkpoint._load_local_state(number, local_state)
        if core.has_feedback and "lost" in optimizer_state:
            checkpoint._load_residuals({
                entry.name: checkpoint._gather_whole(number, "lost", entry.parameter.shape, checkpoint._own_part(
                    number, "lost", optimizer_state["lost"][entry.name]))
                for number, entry in enumerate(manager.managed)})
        core.begin_pieces()
        manager.finish_step()

    def _load_untrained(self, name: str, value: Any, given: Any) -> None:
        """Copies `given` into `value`, a buffer or an untrained parameter of the model, or gives it to the module as
        extra state. name: its name in the state_dict."""
        module_name, _, key = name.rpartition(".")
        if key == "_extra_state":
            self._manager.model.get_submodule(module_name).set_extra_state(given)
        elif torch.is_tensor(value):
            value.copy_(given)

    def _raise_on_all_ranks(self, problem: str | None) -> None:
        """Raises ValueError on all ranks if any rank has a problem. problem: the text of this rank's, or None.
        Collective."""
        problems: list[Any] = [None] * self._checkpoint.ranks
        dist.all_gather_object(problems, problem, self._checkpoint.group)
        if any(problems):
            raise ValueError(problem or "on another rank: " + next(p for p in problems if p))

    def _load_value(self, number: int, value: torch.Tensor, exact: torch.Tensor | None) -> None:
        """Sets this rank's float32 values of a parameter to `value`. exact: None, or the more precise float32 values
        (`master`) that are taken where they round to `value`. Where they do not, something else than zero has written
        the saved model."""
        piece = self._checkpoint.core.piece(number)
        if value.dtype == piece.value.dtype or exact is None:
            piece.value.copy_(value)
        else:
            piece.value.copy_(torch.where(exact.to(value.dtype) == value, exact, value.float()))
