"""Checkpoints: the optimizer's whole state on each rank, in the format of torch's optimizers, or the state of model and
optimizer in parts, each rank its own, for torch.distributed.checkpoint."""
from __future__ import annotations

import collections
import itertools
import math
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch_tutti.zero._optimizer import ZeroOptimizer

# by rule: torch's names of the moments
_MOMENTS = {"none": (), "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"),
            "adamw": ("exp_avg", "exp_avg_sq")}
Assemble = Callable[[int, torch.Size, torch.Tensor], Any]  # number of the parameter, its shape, this rank's part


def _is_part(name: str, value: Any) -> bool:
    """True if a state entry has one number for each element of the parameter."""
    return torch.is_tensor(value) and value.dim() > 0 and name != "step"


def boxes(shape: tuple[int, ...], begin: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Divides elements [begin, end) of a tensor, in row-major order, into boxes: yields (offsets, sizes) in order."""
    if begin >= end:
        return
    if len(shape) < 2:
        yield ((begin,), (end - begin,)) if shape else ((), ())
        return
    row, rest = math.prod(shape[1:]), tuple(shape[1:])
    if begin % row or end < begin + row:                # a part of one row
        stop = min(end, (begin // row + 1) * row)
        for offsets, sizes in boxes(rest, begin % row, stop - begin // row * row):
            yield (begin // row, *offsets), (1, *sizes)
    else:
        stop = end // row * row
        yield (begin // row, *(0 for _ in rest)), ((stop - begin) // row, *rest)
    yield from boxes(shape, stop, end)


def like(given: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer of the same class and options with other parameter groups and no state. Does not call its
    constructor."""
    made: torch.optim.Optimizer = object.__new__(type(given))
    vars(made).update({name: value for name, value in vars(given).items() if name != "step"})
    made.param_groups, made.state = groups, collections.defaultdict(dict)
    return made


class Parts(torch.Tensor):
    """A tensor of which this rank has some boxes, for torch.distributed.checkpoint, which gets them by three methods
    and copies them before it writes in the background. It cannot be computed with."""
    parts: list[tuple[tuple[int, ...], torch.Tensor]]   # (offsets, values)
    writes: bool                                        # false: only for loading

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype,
                parts: Sequence[tuple[tuple[int, ...], torch.Tensor]] = (), writes: bool = True) -> Parts:
        self = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device="cpu")
        self.parts, self.writes = list(parts), writes
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.new_empty.default:    # torch sets the attributes of the copy
            return cls(args[1], args[0].dtype)
        if func is torch.ops.aten.detach.default:
            return cls(args[0].shape, args[0].dtype, args[0].parts, args[0].writes)
        raise RuntimeError(f"zero: {func} of a tensor in parts, which only torch.distributed.checkpoint can use")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Parts({tuple(self.shape)}, {self.dtype}, {[(at, tuple(t.shape)) for at, t in self.parts]})"

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
        described = [TensorWriteData(chunk, TensorProperties.create_from_tensor(part), self.size())
                     for chunk, (_, part) in zip(self.__create_chunk_list__(), self.parts) if self.writes]
        return [WriteItem(MetadataIndex(fqn, d.chunk.offsets), WriteItemType.SHARD, tensor_data=d) for d in described]

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        return [ChunkStorageMetadata(torch.Size(offsets), part.size()) for offsets, part in self.parts]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return next(part for offsets, part in self.parts if index.offset == torch.Size(offsets))


class Checkpoint:
    """The state of an optimizer and of its model."""

    def __init__(self, optimizer: ZeroOptimizer) -> None:
        self.optimizer, self.manager = optimizer, optimizer._manager
        self.core, self.group = self.manager.core, self.manager.group
        self.ranks = dist.get_world_size(self.group)
        self.probed = False             # torch asked for the state before the first step

    # ---- the state of this rank ----
    def _parts(self, number: int, always: bool) -> dict[str, Any]:
        """This rank's state of a parameter, by torch's names: flat parts and numbers. always: also before its first
        step."""
        piece, rule = self.core.piece(number), self.manager.rule
        found: dict[str, Any] = {}
        if (inner := self.optimizer._inner) is not None:
            flat = self.optimizer._flat.get(number)
            found = dict(inner.state.get(flat, {})) or (self._fresh(flat) if always and flat is not None else {})
        elif (piece.steps or always) and piece.value.numel() and _MOMENTS[rule]:
            found = dict(zip(_MOMENTS[rule], piece.moments))
            if len(found) > 1:
                found = {"step": torch.tensor(float(piece.steps)), **found}
        if piece.value.numel() and self.manager.owned[number].parameter.dtype != torch.float32:
            found["master"] = piece.value
        return found

    def _fresh(self, flat: torch.nn.Parameter) -> dict[str, Any]:
        """The first state of a parameter that the optimizer has not updated yet: that of zeros of the same shape."""
        inner, zeros = self.optimizer._inner, torch.nn.Parameter(torch.zeros_like(flat))
        zeros.grad = torch.zeros_like(flat)
        group = next(group for group in inner.param_groups if any(p is flat for p in group["params"]))
        made = like(inner, [{**group, "params": [zeros]}])
        made.step()
        return {name: value * 0 if name == "step" else value for name, value in made.state[zeros].items()}

    def _states(self, assemble: Assemble, always: bool) -> dict[int, dict[str, Any]]:
        """The state of each parameter by number, with equal names on all ranks. assemble() makes an entry from this
        rank's part. Collective."""
        mine = {number: self._parts(number, always) for number in range(len(self.manager.owned))}
        outline = {number: {name: value.dtype if _is_part(name, value) else value for name, value in parts.items()}
                   for number, parts in mine.items() if parts}
        outlines: list[Any] = [None] * self.ranks
        dist.all_gather_object(outlines, outline, self.group)
        found = {}
        for number, o in enumerate(self.manager.owned):
            known = next((other[number] for other in outlines if number in other), {})
            if known:
                found[number] = {name: assemble(number, o.parameter.shape, mine[number].get(
                    name, torch.empty(0, dtype=value))) if isinstance(value, torch.dtype) else value
                    for name, value in known.items()}
        return found

    def _groups(self, name_of: Callable[[torch.Tensor, int], Any]) -> list[dict[str, Any]]:
        """param_groups, with other names for parameters."""
        index = itertools.count()
        return [{**{name: value for name, value in group.items() if name != "params"},
                 "params": [name_of(p, next(index)) for p in group["params"]]} for group in self.optimizer.param_groups]

    # ---- whole ----
    def _whole(self, number: int, shape: torch.Size, part: torch.Tensor) -> torch.Tensor:
        """Made of the parts of all ranks."""
        if self.core.placement == "whole":
            return part.clone().view(shape)
        whole = torch.empty(shape.numel(), dtype=part.dtype)
        parts = list(whole.split(self.core.counts(number, self.ranks)))
        dist.all_gather(parts, part.contiguous(), self.group)
        return whole.view(shape)

    def state_dict(self) -> dict[str, Any]:
        states, state = self._states(self._whole, self.probed), {}
        for at, p in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            number = self.manager.number_of.get(p)
            if number in states:
                state[at] = states[number]
        found = {"state": state, "param_groups": self._groups(lambda _, index: index)}
        if self.core.feeds_back:
            found["lost"] = {o.name: self.core.lost(number).view(o.parameter.shape)
                             for number, o in enumerate(self.manager.owned)}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        theirs, groups = state_dict["param_groups"], self.optimizer.param_groups
        lengths = [len(group["params"]) for group in theirs]
        if lengths != [len(group["params"]) for group in groups]:
            raise ValueError(f"zero: the state is of an optimizer with groups of {lengths} parameters; this one has "
                             f"{[len(group['params']) for group in groups]}")
        self._load_lost(state_dict.get("lost", {}))
        self._load_groups(theirs)
        keys = itertools.chain.from_iterable(group["params"] for group in theirs)
        for key, p in zip(keys, itertools.chain.from_iterable(group["params"] for group in groups)):
            number = self.manager.number_of.get(p)
            if number is not None:
                values = self._mine_of(number, state_dict["state"].get(key, {}))
                exact = values.pop("master", None)
                if exact is not None and p.dtype != torch.float32:     # else the model's state has it
                    self.core.piece(number).value.copy_(exact)
                self._load(number, values)

    def _load_groups(self, theirs: list[dict[str, Any]]) -> None:
        for mine, other in zip(self.optimizer.param_groups, theirs):
            mine.update({name: value for name, value in other.items() if name != "params"})

    def _load_lost(self, lost: dict[str, torch.Tensor]) -> None:
        owned = self.manager.owned if self.core.feeds_back else []
        found = [lost.get(o.name, torch.zeros(o.parameter.shape)) for o in owned]
        for o, value in zip(owned, found):
            if value.shape != o.parameter.shape:
                raise ValueError(f"zero: the residual of parameter {o.name} has the shape {tuple(value.shape)} in "
                                 f"the state, but should have {tuple(o.parameter.shape)}")
        for number, value in enumerate(found):
            self.core.set_lost(number, value)

    def _mine(self, number: int, name: str, value: Any) -> Any:
        """Of a whole tensor, or of one in parts, this rank's part, flat; anything else as it is."""
        owned, piece = self.manager.owned[number], self.core.piece(number)
        if isinstance(value, Parts):
            flat = [part.reshape(-1) for _, part in value.parts]
            value = flat[0] if len(flat) == 1 else torch.cat([torch.empty(0, dtype=value.dtype), *flat])
            if value.numel() != piece.value.numel():
                raise ValueError(f"zero: of {name} of parameter {owned.name} the state has {value.numel()} elements "
                                 f"for this rank, but should have {piece.value.numel()}: it was saved with another "
                                 "number of ranks")
            return value
        if not _is_part(name, value):
            return value
        if value.numel() != owned.parameter.numel():
            raise ValueError(f"zero: {name} of parameter {owned.name} has {value.numel()} elements in the state, but "
                             f"should have {owned.parameter.numel()}")
        return value.reshape(-1)[piece.at: piece.at + piece.value.numel()]

    def _mine_of(self, number: int, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self._mine(number, name, value) for name, value in values.items()}

    def _load(self, number: int, own: dict[str, Any]) -> None:
        """This rank's parts of a parameter's state."""
        if (inner := self.optimizer._inner) is not None:
            flat = self.optimizer._flat.get(number)
            if flat is not None and not own.get("step", 1):            # no step has updated it, so there is none
                inner.state.pop(flat, None)
            elif flat is not None:
                inner.state[flat] = {name: value.clone() if torch.is_tensor(value) else value
                                     for name, value in own.items()}
            return
        self.core.set_steps(number, int(own.get("step", bool(own))))
        for name, moment in zip(_MOMENTS[self.manager.rule], self.core.piece(number).moments):
            if moment is not None:
                moment.copy_(own[name]) if own.get(name) is not None else moment.zero_()


class ShardedState:
    """What `ZeroOptimizer.sharded_state` returns: the state of model and optimizer in parts.
    torch.distributed.checkpoint calls both methods, on all ranks."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._manager = checkpoint, checkpoint.manager

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """{"model": …, "optimizer": …} as get_state_dict of torch.distributed.checkpoint names them. Tensors
        that are divided are Parts, views of what this rank keeps, valid until the next step. Collective."""
        checkpoint, core = self._checkpoint, self._checkpoint.core
        entries = self._manager.entries()
        core.claim_pieces()
        model = {name: self._rest(value) if number is None else self._value(number)
                 for name, (number, value) in entries.items()}
        owned = self._manager.owned
        states = {owned[number].name: state for number, state in checkpoint._states(self._parts, True).items()}
        found = {"state": states, "param_groups": checkpoint._groups(
            lambda p, _: owned[number].name if (number := self._manager.number_of.get(p)) is not None else "")}
        if core.feeds_back:
            found["lost"] = {o.name: self._parts(number, o.parameter.shape, self._lost(number))
                             for number, o in enumerate(owned)}
        self._manager.stay_whole()
        return {"model": model, "optimizer": found}

    def _rest(self, value: Any) -> Any:
        """Buffers and what is not trained: rank 0 writes its own, all read them."""
        if not torch.is_tensor(value):
            return value
        first = dist.get_rank(self._checkpoint.group) == 0
        return Parts(value.shape, value.dtype, [((0,) * value.dim(), value)], writes=first)

    def _value(self, number: int) -> Any:
        parameter = self._manager.owned[number].parameter
        return self._parts(number, parameter.shape, self._checkpoint.core.piece(number).value.to(parameter.dtype))

    def _lost(self, number: int) -> torch.Tensor:
        piece = self._checkpoint.core.piece(number)
        return self._checkpoint.core.lost(number)[piece.at: piece.at + piece.value.numel()].clone()

    def _parts(self, number: int, shape: torch.Size, part: torch.Tensor) -> torch.Tensor:
        """A tensor of that shape, of which this rank has a part; whole where nothing is divided."""
        if self._checkpoint.core.placement == "whole":
            return part.view(shape)
        at = self._checkpoint.core.piece(number).at
        found = list(boxes(tuple(shape), at, at + part.numel()))
        flat = part.split([math.prod(sizes) for _, sizes in found]) if found else ()
        return Parts(shape, part.dtype, [(offsets, f.view(sizes)) for f, (offsets, sizes) in zip(flat, found)])

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What state_dict gives, with other values, in parts or whole. Collective; refused on all ranks or none."""
        checkpoint, core, manager = self._checkpoint, self._checkpoint.core, self._manager
        theirs, rest, mine = state["optimizer"], [], {}
        problem = None
        try:
            for name, (number, value) in manager.entries().items():
                given = state["model"][name]
                if number is not None:
                    states = theirs["state"].get(manager.owned[number].name, {})
                    mine[number] = (checkpoint._mine(number, name, given), checkpoint._mine_of(number, states))
                else:
                    rest.append((name, value, given))
        except (KeyError, RuntimeError, ValueError) as error:
            problem = f"zero: the state has no {error}" if isinstance(error, KeyError) else str(error)
        self._agree(problem)
        core.claim_pieces()
        checkpoint._load_groups(theirs["param_groups"])
        for name, value, given in rest:
            self._load_rest(name, value, given.parts[0][1] if isinstance(given, Parts) else given)
        for number, (value, own) in mine.items():
            self._load_value(number, value, own.pop("master", None))
            checkpoint._load(number, own)
        if core.feeds_back and "lost" in theirs:
            checkpoint._load_lost({o.name: checkpoint._whole(number, o.parameter.shape, checkpoint._mine(
                number, "lost", theirs["lost"][o.name])) for number, o in enumerate(manager.owned)})
        core.begin_pieces()
        manager.stepped()

    def _load_rest(self, name: str, value: Any, given: Any) -> None:
        of, _, last = name.rpartition(".")
        if last == "_extra_state":
            self._manager.model.get_submodule(of).set_extra_state(given)
        elif torch.is_tensor(value):
            value.copy_(given)

    def _agree(self, problem: str | None) -> None:
        problems: list[Any] = [None] * self._checkpoint.ranks
        dist.all_gather_object(problems, problem, self._checkpoint.group)
        if any(problems):
            raise ValueError(problem or "on another rank: " + next(p for p in problems if p))

    def _load_value(self, number: int, value: torch.Tensor, exact: torch.Tensor | None) -> None:
        """Float32 values know more than what they round to; but if they do not, somebody else has written the model."""
        piece = self._checkpoint.core.piece(number)
        if value.dtype == torch.float32 or exact is None:
            piece.value.copy_(value)
        else:
            piece.value.copy_(torch.where(exact.to(value.dtype) == value, exact, value.float()))
