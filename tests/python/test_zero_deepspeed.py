"""zero.from_deepspeed: a DeepSpeed script trains as with DistributedDataParallel, and what zero cannot serve is refused
by its name. tests/frameworks compares with DeepSpeed itself."""
import json

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from zero_training import STEPS, Network, ids_of, loss_of, refused, values

from torch_tutti import zero
from torch_tutti.zero._deepspeed_config import make_optimizer, read_config
from torch_tutti.zero._warmup import make_scheduler

SCRIPT = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.05,
          "steps_per_print": 10, "fp16": {"enabled": False}, "prescale_gradients": False,
          "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_param": {"device": "none"}},
          "optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}},
          "scheduler": {"type": "StepLR", "params": {"step_size": 2, "gamma": 0.5}}}


def run_script(world, folder, stage):
    """Clipped accumulations with a schedule; the second half also from a checkpoint."""
    judge = DistributedDataParallel(Network(16))
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    path = folder / f"ds{world.rank}.json"
    path.write_text(json.dumps({**SCRIPT, "zero_optimization": {"stage": stage}}))
    engine = zero.from_deepspeed(Network(16), path)
    assert engine.gradient_accumulation_steps() == 2 and engine.train_micro_batch_size_per_gpu() == 4

    def run_step(engine, step):
        for turn in range(2):
            engine.backward(loss_of(engine(ids_of(step, world.rank, turn))))
            engine.step()
    for step in range(STEPS):
        if step == 3:
            engine.save_checkpoint(folder / "saved", client_state={"step": step})
        with judge.no_sync():
            (loss_of(judge(ids_of(step, world.rank, 0))) / 2).backward()
        (loss_of(judge(ids_of(step, world.rank, 1))) / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(judge.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        run_step(engine, step)
        assert engine.get_lr() == schedule.get_last_lr() and engine.global_steps == step + 1
        torch.testing.assert_close(engine.get_global_grad_norm(), norm.item())
        torch.testing.assert_close(values(engine), values(judge))
    again = zero.from_deepspeed(Network(16), path)
    where, state = again.load_checkpoint(folder / "saved")
    assert where == str(folder / "saved/global_step3") and state == {"step": 3}
    for step in range(3, STEPS):
        run_step(again, step)
    assert torch.equal(values(again), values(engine)) and again.get_lr() == engine.get_lr()
    (folder / "theirs").mkdir(exist_ok=True)
    refused(FileNotFoundError, "is not a checkpoint of this engine. DeepSpeed's own checkpoints cannot be loaded",
            lambda: again.load_checkpoint(folder, "theirs"))


@pytest.mark.parametrize("stage", [0, 3])
def test_a_script_trains_as_ddp(shared, tmp_path, stage):
    shared(2).run(run_script, tmp_path, stage)


@pytest.mark.parametrize("change, text", [
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
     'zero cannot serve zero_optimization.offload_optimizer = {"device": "cpu"} of this DeepSpeed configuration'),
    ({"fp16": {"enabled": True}}, 'fp16 = {"enabled": true}'),
    ({"zero_optimization": {"zero_quantized_weights": True}}, "zero_optimization.zero_quantized_weights = true"),
    ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "zero_optimization.zero_hpz_partition_size = 8"),
    ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "bf16.bf16_optimizer_states = true"),
    ({"tensorboard": {"enabled": True}}, "tensorboard"), ({"amp": {"enabled": True}}, "amp"),
    ({"prescale_gradients": True}, "prescale_gradients = true"), ({"some_new_key": 7}, "some_new_key = 7"),
    ({"communication_data_type": "fp16", "bf16": {"enabled": True}}, 'communication_data_type = "fp16"'),
])
def test_what_zero_cannot_serve(change, text):
    with pytest.raises(NotImplementedError) as error:
        read_config({**SCRIPT, **change}, 2)
    assert text in str(error.value) and "remove it, or keep DeepSpeed" in str(error.value)


@pytest.mark.parametrize("change, text", [
    ({"gradient_accumulation_steps": 3},
     "train_batch_size is 16, but train_micro_batch_size_per_gpu . gradient_accumulation_steps . ranks is 4 . 3 . 2"),
    ({"bf16": {"enabled": "auto"}}, 'bf16.enabled is "auto"'),
])
def test_wrong_values(change, text):
    refused(ValueError, text, lambda: read_config({**SCRIPT, **change}, 2))


def test_settings_that_are_off_or_neutral():
    found = read_config({**SCRIPT, "gradient_predivide_factor": 1.0, "amp": {"enabled": False}, "comms_logger": {},
                         "bf16": {"enabled": True}, "zero_optimization": {"zero_hpz_partition_size": 1}}, 2)
    assert (found.stage, found.precision, found.micro_batch, found.accumulation) == (0, "bf16", 4, 2)


def test_types_of_sums():
    for name, enabled, expected in (("fp32", True, torch.float32), ("fp32", False, torch.float32), ("bf16", True, None),
                                    (None, True, None)):
        config = {**SCRIPT, "communication_data_type": name, "bf16": {"enabled": enabled}}
        assert read_config(config, 2).reduce_dtype == expected


def run_wide_sums(world):
    engine = zero.from_deepspeed(Network(16), {**SCRIPT, "communication_data_type": "fp32", "bf16": {"enabled": True}})
    assert engine.optimizer._manager.sums_in_float32


def test_sums_in_float32(shared):
    shared(2).run(run_wide_sums)


def test_optimizers_and_schedules():
    weight = torch.nn.Parameter(torch.ones(2))
    for described, kind, decay in (({"type": "Adam"}, torch.optim.AdamW, 0), ({"type": "AdamW"}, torch.optim.AdamW, 0),
                                   ({"type": "Adam", "params": {"adam_w_mode": False}}, torch.optim.Adam, 0),
                                   ({"type": "AdamW", "params": {"torch_adam": True}}, torch.optim.AdamW, 0.01)):
        made = make_optimizer(described, [weight])
        assert type(made) is kind and made.defaults["weight_decay"] == decay
    refused(NotImplementedError, "zero cannot serve optimizer.type = OneBitAdam",
            lambda: make_optimizer({"type": "OneBitAdam"}, [weight]))
    refused(ValueError, "there is no optimizer; pass optimizer=", lambda: make_optimizer({}, [weight]))
    refused(NotImplementedError, "zero cannot serve scheduler.type = OneCycle",
            lambda: make_scheduler({"type": "OneCycle"}, made))
