"""ZeRO in the Trainer of Hugging Face transformers."""
from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from torch_tutti.zero import accelerate
from torch_tutti.zero._optimizer import ZeroOptimizer

_SHARDED = ('zero.transformers.ZeroCallback: hosts="sharded" is not supported, because the Trainer saves the model on '
            "rank 0 alone, which has only a part of it; use another placement, with equal numbers of ranks on all "
            "hosts, or Accelerate with torch_tutti.zero.accelerate.shard")


class ZeroCallback(TrainerCallback):
    """Lets zero sum the gradients and take the steps of a Trainer: `trainer.add_callback(ZeroCallback(trainer,
    stage=2))`, after the callbacks that ask for checkpoints. The Trainer's checkpoints stay as they are, and a run with
    or without zero can continue from them. `optimizer` is the ZeroOptimizer, from the beginning of train()."""
    optimizer: ZeroOptimizer | None = None

    def __init__(self, trainer: Trainer, *, stage: int = 3, **options: Any) -> None:
        """stage, options: those of `zero.shard`, but not hosts="sharded". The default group must be tutti's."""
        if options.get("hosts") == "sharded":
            raise NotImplementedError(_SHARDED)
        self._trainer, self._options = trainer, {"stage": stage, **options}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Replaces the optimizer, unless an earlier train() has done it. Collective."""
        trainer = self._trainer
        if not isinstance(getattr(trainer.optimizer, "optimizer", None), ZeroOptimizer):
            self.optimizer = accelerate.shard(trainer.accelerator, trainer.model_wrapped, trainer.optimizer,
                                              **self._options)
            if self.optimizer.report()["hosts"] == "sharded":
                raise NotImplementedError(_SHARDED)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._prepare_save(args, control.should_save)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._prepare_save(args, control.should_save)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # with SaveStrategy.BEST the Trainer decides after this call whether to save
        self._prepare_save(args, args.save_strategy == SaveStrategy.BEST)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._forget_state()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._forget_state()

    def _prepare_save(self, args: TrainingArguments, may_save: bool) -> None:
        """Before a checkpoint, collects the optimizer's state on the ranks that write it, because the Trainer calls
        state_dict() only there. Collective."""
        if not may_save or args.save_only_model or self.optimizer is None:
            return
        self._forget_state()
        state = self.optimizer.full_state_dict(rank0_only=not args.save_on_each_node)
        if args.should_save:
            vars(self.optimizer)["state_dict"] = lambda: state

    def _forget_state(self) -> None:
        if self.optimizer is not None:
            vars(self.optimizer).pop("state_dict", None)
