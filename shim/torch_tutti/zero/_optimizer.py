"""The optimizer's side: a torch.optim.Optimizer whose state is divided among the ranks."""
from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
import torch.distributed as dist

from torch_tutti import _timeline
from torch_tutti.zero._core import Rates

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager

# by rule: what torch calls the moments
_MOMENTS = {"none": (), "sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"),
            "adamw": ("exp_avg", "exp_avg_sq")}
_NEVER = ("amsgrad", "maximize", "nesterov", "dampening", "capturable", "differentiable")


_WHOLE = tuple(getattr(torch.optim, name) for name in ("Adafactor", "Muon", "LBFGS", "SparseAdam")
               if hasattr(torch.optim, name))


def rule_of(kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> str:
    """Of the core's; "none": the optimizer itself works on this rank's pieces."""
    if any(group.get(name) for group in groups for name in _NEVER):
        return "none"
    if kind is torch.optim.SGD:
        return "momentum" if any(group["momentum"] for group in groups) else "sgd"
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        usual = kind is torch.optim.AdamW
        decoupled = {bool(group.get("decoupled_weight_decay", usual)) for group in groups}
        return "none" if len(decoupled) > 1 else "adamw" if decoupled.pop() else "adam"
    return "none"


class ZeroOptimizer(torch.optim.Optimizer):
    """What `zero.shard` returns. `param_groups` are as the given optimizer's, for schedulers; `state` is empty, and
    `state_dict()` has it all. All ranks call step, clip_grad_norm_, state_dict and load_state_dict together."""

    def __init__(self, manager: Manager, given: torch.optim.Optimizer) -> None:
        super().__init__([dict(group) for group in given.param_groups], dict(given.defaults))
        self.param_groups = given.param_groups          # its own: a scheduler of the given one goes on with them
        self._manager, self._core, self._rule = manager, manager.core, manager.rule
        self._kind = type(given)
        self._scale = 1.0               # of this step's gradients
        self._held = 0                  # blocks of no_sync
        self._probed = False            # its whole state was asked for before there is any
        self._inner = self._of_pieces(given) if self._rule == "none" else None
        if given.state:
            self.load_state_dict(given.state_dict())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_manager"):
            raise NotImplementedError("zero: parameters cannot be added to a model that is sharded; give the optimizer "
                                      "all groups before zero.shard")
        super().add_param_group(param_group)

    # ---- a step ----
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages what gradients are not yet, and updates this rank's part of all parameters. Collective."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if self._is_probe():
            self._make_state()
            return result
        self._manager.check()
        if self._inner is None:
            self._check_rule()
            self._core.step([self._rates(group) for group in self.param_groups], self._scale)
        else:
            self._step_inner()
        self._scale = 1.0
        self._manager.stepped()
        return result

    def _is_probe(self) -> bool:
        """torch.distributed.checkpoint takes a step with zeros, and rates of zero, to have a state made."""
        gradients = (p.grad for _, p, _ in self._manager.owned)
        return (not any(float(group.get("lr", 1)) for group in self.param_groups)
                and all(g is not None and not g.any() for g in gradients))

    def _make_state(self) -> None:
        """Of parameters that no step has updated, zeros."""
        self._probed = True
        if self._inner is not None and not self._inner.state:
            for flat in self._flat.values():
                flat.grad = torch.zeros_like(flat)
            self._inner.step()

    def _check_rule(self) -> None:
        needed = rule_of(self._kind, self.param_groups)
        if needed != self._rule and (needed, self._rule) != ("sgd", "momentum"):
            raise ValueError(f"zero: the groups' settings ask for {self._kind.__name__} in another form now "
                             f"({needed}) than when the model was sharded ({self._rule}); set them before zero.shard")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients that no step has used; collective if any rank has any."""
        for _, p, _ in self._manager.owned:
            p.grad = None
        self._manager.written.clear()
        self._core.drop()
        self._scale = 1.0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes in the block stay on their rank, in memory of the whole model's size, and are
        summed with those of the pass after it."""
        self._held += 1
        self._core.hold(True)
        try:
            yield
        finally:
            self._held -= 1
            self._core.hold(self._held > 0)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0,
                        error_if_nonfinite: bool = False) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_ on the averaged gradients of all parameters: the next step scales them. The
        norm before that, the same on all ranks. Collective."""
        if float(norm_type) != 2.0:
            raise NotImplementedError(f"zero: clip_grad_norm_ with norm_type={norm_type}; it can be 2")
        norm = self._core.norm() * self._scale          # of what an earlier call has left
        if error_if_nonfinite and not norm < float("inf"):
            raise RuntimeError(f"The total norm of the gradients is {norm}, so it cannot be clipped; drop them with "
                               "zero_grad(), or allow it with error_if_nonfinite=False")
        self._scale *= min(1.0, float(max_norm) / (norm + 1e-6)) if norm == norm else norm
        return torch.tensor(norm)

    def wait(self) -> None:
        """Returns when all parameters are as the last step has left them; needed with `ahead` only."""
        self._manager.use_all()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """In the block all parameters may be read, anywhere, as the last step has left them. Collective, where they are
        sharded: then outside of it only modules find them, when they compute. Not for a backward pass."""
        with self._manager.whole():
            yield

    @contextlib.contextmanager
    def edit(self) -> Iterator[None]:
        """In the block parameters may be changed, on rank 0; all have its values afterwards. Collective: the block
        begins when no rank reads parameters any more."""
        self._manager.claim()
        try:
            yield
        finally:                        # the others wait for it
            self._manager.restart()

    def report(self) -> dict[str, Any]:
        """Since `shard`, of this rank: steps; waited_use_ns, for the updates of others; waited_sums_ns, for sums of
        gradients; late_units, whose gradients came before it was their turn; sum_bytes, moved_bytes, of gradients
        given to be summed and of parameters that came from elsewhere; parameter_bytes (shared ones in part, of
        sharded ones this rank's and the most that was whole), gradient_bytes, state_bytes: memory; unforeseen, units
        that were not gathered ahead; packed_bytes, of gradients that were sent compressed; hosts: "shared", "sharded"
        or "replicated"."""
        return self._manager.report()

    @contextlib.contextmanager
    def trace(self, path: str | os.PathLike[str], events: int = 1 << 17) -> Iterator[None]:
        """In the block each rank keeps what it does and waits for, `events` things at most (about 4 for each unit and
        step); then rank 0 has written all to `path`, for `tutti zero` and the viewers of Chrome and Perfetto.
        Collective; after an error in the block nothing is written."""
        if events < 1:
            raise ValueError(f"zero: a trace of {events} events; it needs room for at least one")
        dist.barrier(self._manager.group)               # the hosts' clocks differ: all begin now
        began = time.monotonic_ns()
        self._core.watch(events)
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._core.watch(0)
            raise
        self._core.watch(0)
        kept, missed = self._core.events()
        mine = [_timeline.Event(kind, unit, (start - began) / 1e6, (end - began) / 1e6, size)
                for kind, unit, start, end, size in kept]
        found: list[Any] = [None] * dist.get_world_size(self._manager.group)
        dist.all_gather_object(found, (mine, missed, self.report()), self._manager.group)
        if dist.get_rank(self._manager.group) == 0:
            ranks, missing, reports = zip(*found)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(_timeline.chrome(list(ranks), self._manager.unit_names(), list(reports), sum(missing)), file)

    @staticmethod
    def _rates(group: dict[str, Any]) -> Rates:
        beta1, beta2 = (float(beta) for beta in group.get("betas", (0, 0)))
        return Rates(float(group["lr"]), float(group["weight_decay"]), float(group.get("momentum", 0)), beta1, beta2,
                     float(group.get("eps", 0)))

    # ---- any other optimizer, on flat parts ----
    def _of_pieces(self, given: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if type(given) in _WHOLE:
            raise NotImplementedError(f"zero: {type(given).__name__} looks at whole tensors, and a rank has parts of "
                                      "them")
        number = self._manager.number_of
        self._flat: dict[int, torch.nn.Parameter] = {}
        groups = []
        for group in self.param_groups:
            mine = []
            for p in group["params"]:
                piece = self._core.piece(number[p]) if p in number else None
                if piece is not None and piece.value.numel():
                    self._flat[number[p]] = torch.nn.Parameter(piece.value)
                    mine.append(self._flat[number[p]])
            groups.append({**group, "params": mine or [torch.nn.Parameter(torch.empty(0))]})
        inner: torch.optim.Optimizer = object.__new__(type(given))     # whatever its constructor needs
        vars(inner).update({name: value for name, value in vars(given).items() if name != "step"})
        inner.param_groups, inner.state = groups, collections.defaultdict(dict)
        return inner

    @torch.no_grad()
    def _step_inner(self) -> None:
        assert self._inner is not None
        self._core.settle()
        self._core.claim()
        for number, flat in self._flat.items():
            piece = self._core.piece(number)
            flat.grad = piece.gradient.float().mul(self._scale) if piece.used and piece.gradient is not None else None
        for mine, theirs in zip(self._inner.param_groups, self.param_groups):
            mine.update({name: value for name, value in theirs.items() if name != "params"})
        self._inner.step()
        self._core.publish()

    # ---- checkpoints, as torch's own optimizer writes them ----
    def _parts(self, number: int) -> dict[str, Any]:
        """What this rank keeps of a parameter's state, by torch's names: flat parts, and numbers."""
        piece = self._core.piece(number)
        if self._inner is not None:
            found = dict(self._inner.state.get(self._flat.get(number), {}))
        elif (piece.steps or self._probed) and piece.value.numel() and _MOMENTS[self._rule]:
            found = {"step": torch.tensor(float(piece.steps)), **dict(zip(_MOMENTS[self._rule], piece.moments))}
        else:
            found = {}
        if piece.value.numel() and self._manager.owned[number].parameter.dtype != torch.float32:
            found["master"] = piece.value
        return found

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The whole state, on every rank, as torch's optimizer of the unsharded model has it: to be loaded there, or
        here with any number of ranks and any stage. Of bfloat16 parameters also the float32 values, `master`; with
        compression also what gradients have `lost` and not had back, by name: then between steps only."""
        mine = {number: self._parts(number) for number in range(len(self._manager.owned))}
        outline = {number: {name: value.dtype if _is_part(name, value) else value for name, value in parts.items()}
                   for number, parts in mine.items() if parts}
        outlines: list[Any] = [None] * dist.get_world_size(self._manager.group)
        dist.all_gather_object(outlines, outline, self._manager.group)
        state = {}
        for at, p in enumerate(p for group in self.param_groups for p in group["params"]):
            number = self._manager.number_of.get(p)
            known = next((o[number] for o in outlines if number in o), None)
            if known:
                state[at] = {name: self._whole(number, p, mine[number].get(name, torch.empty(0, dtype=value)))
                             if isinstance(value, torch.dtype) else value for name, value in known.items()}
        found = {"state": state, "param_groups": self._numbered()}
        if self._core.feeds_back:
            found["lost"] = {o.name: self._core.lost(number).view(o.parameter.shape)
                             for number, o in enumerate(self._manager.owned)}
        return found

    def _numbered(self) -> list[dict[str, Any]]:
        groups, index = [], 0
        for group in self.param_groups:
            numbers = list(range(index, index + len(group["params"])))
            index += len(numbers)
            groups.append({**{name: value for name, value in group.items() if name != "params"}, "params": numbers})
        return groups

    def _whole(self, number: int, p: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """A tensor of the parameter's shape, from the parts of all ranks."""
        group = self._manager.group
        whole = torch.empty(p.numel(), dtype=part.dtype)
        parts = list(whole.split(self._core.counts(number, dist.get_world_size(group))))
        dist.all_gather(parts, part.contiguous(), group)
        return whole.view(p.shape)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` or torch's optimizer of the unsharded model has written; the same on all ranks."""
        theirs = state_dict["param_groups"]
        lengths = [len(group["params"]) for group in theirs]
        if lengths != [len(group["params"]) for group in self.param_groups]:
            raise ValueError(f"zero: the state is of an optimizer with groups of {lengths} parameters; this one has "
                             f"{[len(group['params']) for group in self.param_groups]}")
        self._load_lost(state_dict.get("lost", {}))
        for mine, other in zip(self.param_groups, theirs):
            mine.update({name: value for name, value in other.items() if name != "params"})
        keys = itertools.chain.from_iterable(group["params"] for group in theirs)
        for key, p in zip(keys, itertools.chain.from_iterable(group["params"] for group in self.param_groups)):
            number = self._manager.number_of.get(p)
            if number is not None:
                self._load(number, p, state_dict["state"].get(key, {}))

    def _load_lost(self, lost: dict[str, torch.Tensor]) -> None:
        owned = self._manager.owned if self._core.feeds_back else []
        found = [lost.get(o.name, torch.zeros(o.parameter.shape)) for o in owned]
        for o, value in zip(owned, found):
            if value.shape != o.parameter.shape:
                raise ValueError(f"zero: what parameter {o.name} has lost has the shape {tuple(value.shape)} in the "
                                 f"state, and should have {tuple(o.parameter.shape)}")
        for number, value in enumerate(found):
            self._core.set_lost(number, value)

    def _load(self, number: int, p: torch.Tensor, values: dict[str, Any]) -> None:
        piece, own = self._core.piece(number), {}
        for name, value in values.items():
            if not (torch.is_tensor(value) and _is_part(name, value)):
                own[name] = value
                continue
            if value.numel() != p.numel():
                raise ValueError(f"zero: {name} of parameter {self._manager.owned[number].name} has {value.numel()} "
                                 f"elements in the state, and should have {p.numel()}")
            own[name] = value.reshape(-1)[piece.at: piece.at + piece.value.numel()]
        exact = own.pop("master", None)
        if exact is not None and p.dtype != torch.float32:             # else the model's state has it
            piece.value.copy_(exact)
        if self._inner is not None:
            if number in self._flat:
                self._inner.state[self._flat[number]] = {name: value.clone() if torch.is_tensor(value) else value
                                                         for name, value in own.items()}
            return
        self._core.set_steps(number, int(own.get("step", bool(own))))
        for name, moment in zip(_MOMENTS[self._rule], piece.moments):
            if moment is not None:
                moment.copy_(own[name]) if own.get(name) is not None else moment.zero_()


def _is_part(name: str, value: Any) -> bool:
    return torch.is_tensor(value) and value.dim() > 0 and name != "step"
