"""DeepSpeed's schedules of learning rates, for its configurations."""
from __future__ import annotations

import math
from typing import Any

import torch


class Warmup:
    """DeepSpeed's WarmupLR and WarmupDecayLR: the rate of each group grows from `warmup_min_lr` to `warmup_max_lr`
    (None: the group's rate) in `warmup_num_steps` steps, by their logarithm or linearly. Afterwards it stays; or, with
    `total_num_steps`, it falls linearly to 0 at that step. The first two steps have the minimum."""

    def __init__(self, optimizer: torch.optim.Optimizer, warmup_min_lr: float = 0.0,
                 warmup_max_lr: float | None = None, warmup_num_steps: int = 1000, warmup_type: str = "log",
                 total_num_steps: int | None = None) -> None:
        if warmup_type not in ("log", "linear"):
            raise ValueError(f'zero.from_deepspeed: scheduler.params.warmup_type = {warmup_type}; it must be "log" or '
                             '"linear"')
        self.optimizer, self.minimum = optimizer, warmup_min_lr
        self.maxima = [group["lr"] if warmup_max_lr is None else warmup_max_lr for group in optimizer.param_groups]
        self.warmup_steps, self.all_steps = max(2, warmup_num_steps), total_num_steps
        self.is_linear = warmup_type == "linear"
        self._set_rates(-1)

    def _set_rates(self, step: int) -> None:
        """Sets the rates of all groups for the state after `step`."""
        self.last_step, factor = step, self._factor(max(step, 0))
        for group, maximum in zip(self.optimizer.param_groups, self.maxima):
            group["lr"] = self.minimum + (maximum - self.minimum) * factor

    def _factor(self, step: int) -> float:
        """Returns how far the rate is from the minimum (0) to the maximum (1)."""
        if step < self.warmup_steps:
            return step / self.warmup_steps if self.is_linear else math.log(step + 1) / math.log(self.warmup_steps)
        if self.all_steps is None:
            return 1.0
        return max(0.0, (self.all_steps - step) / max(1.0, self.all_steps - self.warmup_steps))

    def step(self) -> None:
        self._set_rates(self.last_step + 1)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._set_rates(state["last_batch_iteration"])


def make_scheduler(described: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """Returns the schedule that a configuration describes: WarmupLR, WarmupDecayLR or a class of
    torch.optim.lr_scheduler; None without a description. Raises NotImplementedError for another one."""
    if "type" not in described:
        return None
    name, options = described["type"], dict(described.get("params", {}))
    if name == "WarmupDecayLR":
        return Warmup(optimizer, **{"warmup_max_lr": 0.001, **options})
    if name == "WarmupLR":
        return Warmup(optimizer, **options)
    if not hasattr(torch.optim.lr_scheduler, name):
        raise NotImplementedError(f"zero.from_deepspeed: zero cannot serve scheduler.type = {name}; use WarmupLR, "
                                  "WarmupDecayLR or a class of torch.optim.lr_scheduler, or pass lr_scheduler=")
    return getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
