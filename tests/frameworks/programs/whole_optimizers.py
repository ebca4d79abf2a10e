"""Trains a small GPT-2 with released optimizers that compute on whole tensors: `torchrun whole_optimizers.py`.

Each optimizer runs under DistributedDataParallel on tutti and under each stage of torch_tutti.zero. Prints for each
stage the largest difference of a parameter, divided by the largest change of a parameter.
"""
import sys
import types
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from stages import compare_stages
from training import flat
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.optimization import Adafactor

from torch_tutti import zero

WORDS, LENGTH, STEPS = 64, 16, 4
OPTIMIZERS = {
    "transformers.Adafactor": lambda parameters: Adafactor(parameters, weight_decay=0.01),
    "torch.Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "torch.Muon": lambda parameters: torch.optim.Muon(parameters, lr=0.01),
    "timm.lamb": lambda parameters: timm("lamb").Lamb(parameters, lr=0.01, weight_decay=0.05),
    "timm.lars": lambda parameters: timm("lars").Lars(parameters, lr=0.1, momentum=0.9, weight_decay=0.05),
    "timm.muon": lambda parameters: timm("muon").Muon(parameters, lr=0.01, weight_decay=0.05),
    "timm.cadamw": lambda parameters: timm("adamw").AdamWLegacy(parameters, lr=0.01, caution=True),
    "timm.novograd": lambda parameters: timm("nvnovograd").NvNovoGrad(parameters, lr=0.01, weight_decay=0.05),
    "timm.adafactorbv": lambda parameters: timm("adafactor_bv").AdafactorBigVision(parameters, lr=0.01),
}


def timm(module):
    """Returns a module of timm.optim. timm's other parts need torchvision, so it imports none of them, and
    tests/frameworks/setup puts timm into a folder of its own."""
    folder = next(Path(sys.prefix).glob("timm==*"))
    for package in ("timm", "timm.optim"):
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [str(folder / package.replace(".", "/"))]
    return import_module(f"timm.optim.{module}")


def sentences(step):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randint(WORDS, (2, LENGTH), generator=generator)


def model_for(name):
    torch.manual_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=24, n_layer=2, n_head=2,
                                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    for p in model.parameters() if name == "torch.Muon" else ():
        p.requires_grad_(p.dim() == 2)
    return model


def train(name, options):
    """Returns the parameters after training with zero, or with DistributedDataParallel if there are no options."""
    model = model_for(name)
    optimizer = OPTIMIZERS[name](p for p in model.parameters() if p.requires_grad)
    if options:
        trained, optimizer = zero.shard(model, optimizer, **options)
    else:
        trained = DistributedDataParallel(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        ids = sentences(step)
        trained(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    if not options:
        return flat(model.parameters())
    with optimizer.whole():
        return flat(p.detach().clone() for p in model.parameters())


compare_stages(OPTIMIZERS, model_for, train)
