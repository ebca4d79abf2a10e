"""The optimizer's side: a torch.optim.Optimizer whose state is divided among the ranks."""
from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
import torch.distributed as dist

from torch_tutti import _timeline
from torch_tutti.zero._checkpoint import Checkpoint, ShardedState, like
from torch_tutti.zero._core import Rates

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager

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
        self._probes = False            # torch's next zero_grad() is for its own zeros
        self._inner = self._of_pieces(given) if self._rule == "none" else None
        self._checkpoint = Checkpoint(self)
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
            self._checkpoint.probed = self._probes = True
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

    def _check_rule(self) -> None:
        needed = rule_of(self._kind, self.param_groups)
        if needed != self._rule and (needed, self._rule) != ("sgd", "momentum"):
            raise ValueError(f"zero: the settings of the groups now ask for another form of {self._kind.__name__} "
                             f"({needed}) than when the model was sharded ({self._rule}); set them before zero.shard")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients that no step has used; collective if any rank has any."""
        for _, p, _ in self._manager.owned:
            p.grad = None
        probes, self._probes = self._probes, False
        if probes:
            return
        self._manager.written.clear()
        self._core.drop()
        self._scale = 1.0

    @property
    def holds(self) -> bool:
        """In a block of no_sync."""
        return self._held > 0

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
            raise NotImplementedError(f"zero: clip_grad_norm_ with norm_type={norm_type}; it must be 2")
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
            raise NotImplementedError(f"zero: {type(given).__name__} looks at whole tensors, but a rank has only "
                                      "parts of them")
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
        return like(given, groups)

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

    # ---- checkpoints ----
    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The whole state, on every rank, as torch's optimizer of the unsharded model has it: to be loaded there, or
        here with any number of ranks and any stage. Of bfloat16 parameters also the float32 values, `master`; with
        compression also what gradients have `lost` and not had back, by name: then between steps only."""
        return self._checkpoint.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` or torch's optimizer of the unsharded model has written; the same on all ranks."""
        self._checkpoint.load_state_dict(state_dict)

    def sharded_state(self) -> ShardedState:
        """The state of model and optimizer for torch.distributed.checkpoint, each rank its parts, without a copy:
        `save({"training": optimizer.sharded_state()}, checkpoint_id=…)`, and the same with `load`. It is written as
        torch's get_state_dict names it, so other numbers of ranks, other stages, and unsharded models read it, and it
        reads theirs."""
        return ShardedState(self._checkpoint)
