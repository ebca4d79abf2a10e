"""An engine with DeepSpeed's methods, for scripts that are written for `deepspeed.initialize`."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from torch_tutti.zero._deepspeed_config import Configuration, make_optimizer, read_config
from torch_tutti.zero._mesh import group_of_ranks
from torch_tutti.zero._shard import shard
from torch_tutti.zero._warmup import make_scheduler


def from_deepspeed(model: nn.Module, config: str | os.PathLike[str] | dict[str, Any], *,
                   optimizer: torch.optim.Optimizer | None = None, lr_scheduler: Any = None,
                   model_parameters: Iterable[Any] | None = None,
                   group: dist.ProcessGroup | DeviceMesh | None = None, **options: Any) -> Engine:
    """Replaces `deepspeed.initialize(model=model, config=config)`, and needs no DeepSpeed. Returns an engine.
    Collective.

    config: a DeepSpeed configuration, a dict or the path of a JSON file. Used are the sizes of batches,
    gradient_clipping, bf16.enabled, communication_data_type, zero_optimization.stage, optimizer (Adam, AdamW or a class
    of torch.optim) and scheduler (WarmupLR, WarmupDecayLR or a class of torch.optim.lr_scheduler). Settings that only
    tune DeepSpeed have no effect. Any other raises NotImplementedError with its name: offload, fp16, quantization, and
    so on. optimizer, lr_scheduler: in place of those of the configuration. model_parameters: the parameters or groups
    of the configuration's optimizer; None: those with requires_grad. group, options: as in `zero.shard`."""
    group = group_of_ranks("zero.from_deepspeed", group)
    settings = read_config(config, dist.get_world_size(group))
    if optimizer is None:
        parameters = model_parameters or [p for p in model.parameters() if p.requires_grad]
        optimizer = make_optimizer(settings.optimizer, parameters)
    lr_scheduler = lr_scheduler or make_scheduler(settings.scheduler, optimizer)
    model, sharded = shard(model, optimizer, stage=settings.stage, group=group,
                           **{"precision": settings.precision, "reduce_dtype": settings.reduce_dtype, **options})
    return Engine(model, sharded, lr_scheduler, settings, group)


class Engine(nn.Module):
    """A model that is trained as by a DeepSpeedEngine: `loss = engine(batch)`, `engine.backward(loss)`,
    `engine.step()`, which takes a step at the end of each accumulation. Checkpoints are those of
    torch.distributed.checkpoint."""

    def __init__(self, module: nn.Module, optimizer: Any, lr_scheduler: Any, settings: Configuration,
                 group: dist.ProcessGroup) -> None:
        """settings: the configuration. group: the ranks that train together."""
        super().__init__()
        self.module, self.optimizer, self.lr_scheduler = module, optimizer, lr_scheduler
        self.global_steps, self.micro_steps = 0, 0      # steps; calls of step()
        self._settings, self._group = settings, group
        self._norm: float | None = None

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self.module(*arguments, **keywords)

    def is_gradient_accumulation_boundary(self) -> bool:
        """True if the next call of step() takes a step."""
        return (self.micro_steps + 1) % self._settings.accumulation == 0

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Runs the backward pass of the loss divided by gradient_accumulation_steps, and returns the quotient."""
        scaled = loss / self._settings.accumulation
        is_last = self.is_gradient_accumulation_boundary()
        with contextlib.nullcontext() if is_last else self.optimizer.no_sync():
            scaled.backward(retain_graph=retain_graph)
        return scaled

    def step(self) -> None:
        """At the end of an accumulation clips the gradients, updates the parameters and the learning rate, and drops
        the gradients. Collective."""
        if self.is_gradient_accumulation_boundary():
            if self._settings.clipping:
                self._norm = self.optimizer.clip_grad_norm_(self._settings.clipping).item()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_steps += 1
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()
        self.micro_steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def gradient_accumulation_steps(self) -> int:
        return self._settings.accumulation

    def train_micro_batch_size_per_gpu(self) -> int | None:
        """Returns the configured samples of a rank in a backward pass, or None."""
        return self._settings.micro_batch

    def get_lr(self) -> list[float]:
        """Returns the learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """Returns the norm of the last step's gradients before clipping. None without gradient_clipping."""
        return self._norm

    # ---- checkpoints ----
    def save_checkpoint(self, save_dir: str | os.PathLike[str], tag: Any = None,
                        client_state: dict[str, Any] | None = None, save_latest: bool = True) -> None:
        """Saves model, optimizer, schedule and `client_state` in the folder `tag` of `save_dir`: each rank its part of
        a checkpoint of torch.distributed.checkpoint, and rank 0 `engine.pt`. Then the file `latest` gets the tag. tag:
        None: "global_step" and the number of steps. Collective."""
        import torch.distributed.checkpoint as dcp
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        place = Path(save_dir) / tag
        dcp.save({"training": self.optimizer.sharded_state()}, checkpoint_id=place, process_group=self._group)
        if dist.get_rank(self._group) == 0:
            schedule = self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None
            torch.save({"client_state": client_state or {}, "lr_scheduler": schedule,
                        "global_steps": self.global_steps, "micro_steps": self.micro_steps}, place / "engine.pt")
            if save_latest:
                (Path(save_dir) / "latest").write_text(tag)
        dist.barrier(self._group)

    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: Any = None) -> tuple[str, dict[str, Any]]:
        """Loads what save_checkpoint() has saved, also by another number of ranks or with another stage. Returns the
        path and the client state. tag: None: that of the file `latest`. Load only files that you trust: the client
        state is pickled. Raises FileNotFoundError for another kind of checkpoint. Collective."""
        import torch.distributed.checkpoint as dcp
        tag = (Path(load_dir) / "latest").read_text().strip() if tag is None else str(tag)
        place = Path(load_dir) / tag
        if not (place / "engine.pt").exists():
            raise FileNotFoundError(f"zero.from_deepspeed: {place} is not a checkpoint of this engine. DeepSpeed's own "
                                    "checkpoints cannot be loaded; convert the model by DeepSpeed's zero_to_fp32.py, "
                                    "and load it before from_deepspeed")
        dcp.load({"training": self.optimizer.sharded_state()}, checkpoint_id=place, process_group=self._group)
        saved = torch.load(place / "engine.pt", weights_only=False)
        self.global_steps, self.micro_steps = saved["global_steps"], saved["micro_steps"]
        if self.lr_scheduler is not None and saved["lr_scheduler"] is not None:
            self.lr_scheduler.load_state_dict(saved["lr_scheduler"])
        return str(place), saved["client_state"]
