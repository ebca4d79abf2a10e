"""Trains with Lightning's Trainer, by DDPStrategy and by ZeroStrategy. Saves the losses of each run, and those of a run
that resumes from its checkpoint: `torchrun zero_lightning.py BACKEND FOLDER`."""
import os
import sys
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from outcome import groups_in_use, save
from training import batch, flat, loss_of, network, stochastic_descent

from torch_tutti.zero.lightning import ZeroStrategy

STEPS, SAVED_AT = 50, 25
# torchrun has started the ranks, and sets these variables.
PLACE = {"accelerator": "cpu", "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
         "num_nodes": int(os.environ["GROUP_WORLD_SIZE"])}
WAYS = {"DDP": lambda: DDPStrategy(process_group_backend="tutti"),
        "stage 2": lambda: ZeroStrategy(stage=2, options={"ahead": True}),
        "stage 3": lambda: ZeroStrategy(find_unused_parameters=True),
        "sharded": lambda: ZeroStrategy(options={"hosts": "sharded"})}


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()
        self.losses = []

    def training_step(self, rows, _):
        loss = loss_of(self.network(rows))
        self.losses.append(loss.item())
        return loss

    def validation_step(self, rows, _):
        self.log("validation", loss_of(self.network(rows)), sync_dist=True)

    def configure_optimizers(self):
        optimizer = stochastic_descent(self.parameters())
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7), "interval": "step"}]


class TwoOptimizers(Model):
    # Lightning requires this for several optimizers.
    automatic_optimization = False

    def configure_optimizers(self):
        return [stochastic_descent(self.network[0].parameters()), stochastic_descent(self.network[2].parameters())]


def loader(steps):
    rows = torch.cat([batch(step, 0, 4) for step in range(4 * steps)])
    return torch.utils.data.DataLoader(rows, batch_size=4)


def fit(strategy, folder, checkpoint=None, model=None, clip=100, batches=2):
    """Trains for STEPS steps of `batches` batches each, and saves every SAVED_AT steps. Returns the losses, the metrics
    of the validation and the parameters."""
    saver = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=SAVED_AT)
    trainer = lightning.Trainer(**PLACE, strategy=strategy, max_steps=STEPS, callbacks=[saver], logger=False,
                                gradient_clip_val=clip, accumulate_grad_batches=batches, enable_progress_bar=False,
                                enable_model_summary=False, default_root_dir=folder)
    model = model or Model()
    trainer.fit(model, loader(STEPS), loader(2), ckpt_path=checkpoint)
    return model.losses, dict(trainer.callback_metrics), flat(model.state_dict().values())


def main(_, folder):
    torch.set_num_threads(1)
    results = {}
    for way, strategy in WAYS.items():
        place = Path(folder) / way
        results[way] = fit(strategy(), place)
        saved = place / f"step={SAVED_AT}.ckpt"
        results[f"{way} resumed"] = fit(strategy(), place / "resumed", saved)
    saved = Path(folder) / "stage 2" / f"step={SAVED_AT}.ckpt"
    results["DDP resumed from stage 2"] = fit(WAYS["DDP"](), Path(folder) / "other", saved)
    try:
        fit(ZeroStrategy(), Path(folder) / "two", model=TwoOptimizers(), clip=None, batches=1)
    except Exception as error:
        results["two optimizers"] = f"{type(error).__name__}: {error}"
    save(folder, results | {"groups": groups_in_use()})
    dist.destroy_process_group()


main(*sys.argv[1:])
