"""ZeRO in the Trainer of Lightning."""
from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.strategies import DDPStrategy

from torch_tutti.zero._ddp import wrap_ddp


class ZeroStrategy(DDPStrategy):
    """Lightning's data parallelism on tutti, in which zero sums the gradients and takes the steps:
    `lightning.Trainer(accelerator="cpu", devices=2, strategy=ZeroStrategy(stage=2))`. The Trainer's checkpoints stay as
    they are, and a run with DDPStrategy can continue from them."""

    def __init__(self, *, stage: int = 3, options: dict[str, Any] | None = None, **strategy: Any) -> None:
        """stage, options: those of `zero.shard`. strategy: arguments of DDPStrategy."""
        super().__init__(**{"process_group_backend": "tutti", **strategy})
        self._zero_options = {"stage": stage, **(options or {})}

    def setup_optimizers(self, trainer: lightning.Trainer) -> None:
        """Called by the Trainer when the model is wrapped. Raises NotImplementedError unless the LightningModule has
        one optimizer. Collective."""
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise NotImplementedError(f"zero.lightning.ZeroStrategy: configure_optimizers() gives "
                                      f"{len(self.optimizers)} optimizers; zero needs one for all parameters")
        self.optimizers = [wrap_ddp(self.model, self.optimizers[0], **self._zero_options)]
