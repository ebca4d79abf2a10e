"""Trains small models with DeepSpeed on two ranks, by each of its kinds of parallelism, and saves the results:
`torchrun deepspeed_zero.py BACKEND FOLDER`.

The backend's name is given to deepspeed.init_distributed and nowhere else. The optimizers are torch's, because
DeepSpeed's own would have to be compiled first.
"""
import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from outcome import groups_in_use, save
from training import WIDTH, batch, flat, in_one_process, loss_of, network, stochastic_descent

STEPS = 4


def configuration(stage, **more):
    return {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True, **more}


def parameters_of(engine):
    """Returns all parameters, gathered on every rank, because with ZeRO-3 a rank has only a part of them."""
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return flat(engine.module.parameters())


def start(stage, make=stochastic_descent, **more):
    model = network()
    engine, *_ = deepspeed.initialize(model=model, optimizer=make(model.parameters()),
                                      config=configuration(stage, **more))
    return engine


def train(engine, steps=range(STEPS)):
    kind = next(engine.module.parameters()).dtype
    for step in steps:
        engine.backward(loss_of(engine(batch(step, dist.get_rank()).to(kind))))
        engine.step()
    return parameters_of(engine)


def clipped(stage):
    """Trains with two batches in each step, and clips by the norm of the whole gradient, which no rank has."""
    return train(start(stage, gradient_clipping=0.01, gradient_accumulation_steps=2))


def half(stage):
    return train(start(stage, torch.optim.AdamW, bf16={"enabled": True}))


def resumed(stage, folder):
    """Trains the first half, saves, and trains the second half by another engine that has loaded the checkpoint."""
    engine = start(stage)
    train(engine, range(2))
    engine.save_checkpoint(folder)
    other = start(stage)
    other.load_checkpoint(folder)
    return train(other, range(2, STEPS))


def experts():
    """Trains a mixture of experts, one on each rank, with all_to_all there and back."""
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split
    torch.manual_seed(7)

    class Mixture(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = MoE(WIDTH, torch.nn.Linear(WIDTH, WIDTH), num_experts=2, ep_size=2, use_rts=False)
            self.head = torch.nn.Linear(WIDTH, 3)

        def forward(self, rows):
            return self.head(self.experts(rows)[0])

    model = Mixture()
    groups = split({"params": list(model.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01),
                                      config=configuration(0))
    for step in range(STEPS):
        engine.backward(loss_of(engine(batch(step, dist.get_rank()))))
        engine.step()
    return flat(model.parameters())


def pipeline():
    """Trains a pipeline of two stages, one on each rank, with four batches in each step."""
    from deepspeed.pipe import PipelineModule
    model = PipelineModule(layers=list(network()), num_stages=2, loss_fn=lambda output, _: loss_of(output),
                           partition_method="uniform")
    engine, *_ = deepspeed.initialize(model=model, optimizer=stochastic_descent(model.parameters()),
                                      config=configuration(0, gradient_accumulation_steps=4))
    batches = ((batch(step, 0), torch.zeros(8)) for step in range(100))
    for _ in range(STEPS):
        engine.train_batch(batches)
    return flat(model.parameters())


def sequences():
    """Returns output and gradient of attention by Ulysses, over a sequence of which each rank has a half."""
    from deepspeed.sequence.layer import DistributedAttention

    def attention(query, key, value, *_, **__):
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).permute(2, 0, 1, 3)

    mine = torch.randn(3, 6, 2, 4, 5, generator=torch.Generator().manual_seed(dist.get_rank())).requires_grad_()
    output = DistributedAttention(attention, dist.group.WORLD, scatter_idx=2, gather_idx=0)(*mine, batch_dim_idx=1)
    output.square().sum().backward()
    return torch.cat([flat([output]), flat([mine.grad])])


def main(backend, folder):
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend=backend)
    results = {"in one process": in_one_process(dist.get_world_size(), STEPS)}
    for stage in (0, 1, 2, 3):
        results[f"ZeRO-{stage}"] = train(start(stage))
        results[f"ZeRO-{stage} clipped"] = clipped(stage)
        results[f"ZeRO-{stage} bf16"] = half(stage)
        results[f"ZeRO-{stage} resumed"] = resumed(stage, os.path.join(folder, f"checkpoint{stage}"))
    results |= {"experts": experts(), "pipeline": pipeline(), "sequences": sequences()}
    results["groups"] = groups_in_use()
    save(folder, results)
    deepspeed.comm.destroy_process_group()


main(*sys.argv[1:])
