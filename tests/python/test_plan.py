"""Tests of `tutti plan`: sizes of models are those that were published; memory and traffic follow the formulas of
docs/zero-reference.md and agree with what zero.shard reports."""
import pytest
import torch
import torch.nn as nn
from zero_training import Network, go_back

from torch_tutti import compression, zero
from torch_tutti._planning.memory import WAYS, Packing, activations, needs, with_packing
from torch_tutti._planning.models import MODELS, Model
from torch_tutti.cli import main

PUBLISHED = {"llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-33b": 32_528_943_616,
             "llama-65b": 65_285_660_672, "llama2-70b": 68_976_648_192, "mixtral-8x7b": 46_702_792_704,
             "deepseek-v2": 235_741_434_880}


def test_parameters_are_those_of_the_published_models():
    assert {name: MODELS[name].parameters for name in PUBLISHED} == PUBLISHED
    assert round(MODELS["gpt3-175b"].parameters / 1e9) == 175


def test_memory_follows_the_formulas_of_zero():
    """Rajbhandari et al., ZeRO (2020): 16 bytes for each parameter, of which a stage divides 12, 14 or 16 among
    the ranks. Buffers of some layers come on top."""
    model, ranks = MODELS["llama-7b"], 64
    count = model.parameters
    layers = 2 * (2 * (count - model.own) / model.layers + model.own)
    totals = {way: sum(needs(model, way, ranks, 8, "bf16")[:3]) for way in WAYS}
    assert totals["DDP"] == 16 * count
    # The sum lies beside the gradients that are summed.
    assert totals["stage 1"] == pytest.approx(4 * count + 14 * count / ranks)
    assert totals["stage 2"] == pytest.approx(2 * count + 14 * count / ranks + layers)
    assert totals["stage 3"] == pytest.approx(2 * count / 8 + 14 * count / ranks + layers)
    assert totals["stage 3, sharded"] == pytest.approx(16 * count / ranks + 2 * layers)


def test_traffic_follows_the_formulas():
    """A host sends all but its own part once for sums and once for parameters. Sharded parameters are gathered
    twice."""
    model = Model(1000, 100, 9, 8, 2)
    assert needs(model, "DDP", 8, 1, "fp32").sent == 0
    assert needs(model, "DDP", 8, 2, "fp32").sent == needs(model, "stage 3", 8, 2, "fp32").sent == 4000
    assert needs(model, "stage 3, sharded", 8, 2, "fp32").sent == (3 * 4000 - 400 - 2 * 400) / 2


def test_activations_follow_the_formulas():
    model = MODELS["gpt3-175b"]
    # Elements of an activation: s b h.
    one = 2048 * 12288
    assert activations(model, 1, 2048, "none", "bf16") == pytest.approx(96 * one * (34 + 5 * 96 * 2048 / 12288))
    assert activations(model, 2, 2048, "selective", "bf16") == 96 * 2 * one * 34
    assert activations(model, 1, 2048, "full", "fp32") == pytest.approx(2 * one * (96 * 2 + 34 + 80))


def run_reported(world, stage, hosts, way):
    """The memory that a rank reports agrees with the plan, except that it has whole pages."""
    model = Network(64)
    own = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("blocks"))
    count = sum(p.numel() for p in model.parameters())
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()), stage=stage, hosts=hosts)
    for step in range(4):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    report, need = optimizer.report(), needs(Model(count, own, 3, 64, 1), way, world.size, world.hosts, "fp32")
    # Bytes to fill the pages of four units and of their buffers.
    room = 4 * 4096 * world.size * 2
    assert need.parameters <= report["parameter_bytes"] <= need.parameters + room
    assert need.gradients <= report["gradient_bytes"] <= need.gradients + room
    assert need.state <= report["state_bytes"] <= need.state + room


@pytest.mark.parametrize("stage, hosts, way", [(0, None, "stage 0"), (1, None, "stage 1"), (2, None, "stage 2"),
                                               (3, "shared", "stage 3"), (3, "sharded", "stage 3, sharded")])
def test_memory_is_what_zero_reports(shared, stage, hosts, way):
    shared(2).run(run_reported, stage, hosts, way)


def run_packed(world, form, stage):
    """The packed bytes that a rank reports as sent, and the memory of its gradients and residuals, agree with the plan,
    except for padding."""
    model, way, how = Network(256), f"stage {stage}" if stage else "DDP", compression.Compression(form, 0.1)
    own = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("blocks"))
    plan = Model(sum(p.numel() for p in model.parameters()), own, 3, 256, 1)

    def planned(hosts):
        sizes = (world.size, hosts, "fp32")
        need = needs(plan, way, *sizes)
        return need, with_packing(need, plan, way, *sizes, Packing(form, 0.1))

    if stage:
        model, optimizer = zero.shard(model, torch.optim.SGD(model.parameters(), lr=1e-3), stage=stage, compression=how)
    else:
        model = nn.parallel.DistributedDataParallel(model)
        compressor, optimizer = compression.compress(model, how), torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(5):
        optimizer.zero_grad()
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    # On one host, each rank sends as a host does.
    sides = world.hosts if world.hosts > 1 else world.size
    plain, need = planned(sides)
    # Half of a stage's traffic is parameters, which are not packed.
    gradients = (need.sent - (plain.sent / 2 if stage else 0)) * sides / world.size
    sent = optimizer.report()["packed_bytes"] / 5 if stage else compressor.report()["sent_bytes"] / 4
    assert gradients * 0.98 <= sent <= gradients * 1.05 + 4096 * 4
    if stage:
        _, need = planned(world.hosts)
        assert need.gradients <= optimizer.report()["gradient_bytes"] <= need.gradients + 16 * 4096 * world.size


@pytest.mark.parametrize("form", ["bf16", "int8", "int4", "topk", "randomk"])
@pytest.mark.parametrize("stage", [0, 2])
def test_packed_traffic_is_what_zero_reports(shared, form, stage):
    shared(2).run(run_packed, form, stage)


# ---- the command ----
def test_command_prints_the_table(capsys):
    assert main(["plan", "--model", "llama-7b", "--ranks", "16", "--hosts", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "6.74 B parameters, bf16, AdamW; 16 ranks on 2 hosts"
    rows = {line[:18].strip(): line[18:].split() for line in lines[4:10]}
    assert list(rows) == list(WAYS) and rows["DDP"][:6] == ["13.5", "GB", "13.5", "GB", "80.9", "GB"]
    assert rows["stage 3"][:2] == ["1.7", "GB"]
    assert main(["plan", "--model", "llama-7b", "--ranks", "16", "--hosts", "2", "--compress", "int8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("; gradients travel as int8")
    rows = {line[:18].strip(): line[18:].split() for line in lines[4:9]}
    assert rows["DDP"][2:4] == ["16.8", "GB"] and rows["DDP"][-2:] == ["6.9", "GB"]
    assert main(["plan", "--parameters", "350M", "--layers", "24", "--width", "1024", "--heads", "16", "--ranks", "4",
                 "--precision", "fp32"]) == 0
    assert "0.35 B parameters, fp32" in capsys.readouterr().out


@pytest.mark.parametrize("words, text", [
    (["--ranks", "4"], "give --model"), (["--ranks", "4", "--parameters", "1B"], "give --model"),
    (["--ranks", "4", "--model", "llama-7b", "--layers", "3"], "--model defines all sizes"),
    (["--ranks", "4", "--hosts", "3", "--model", "llama-7b"], "4 ranks are not the same number on each of 3 hosts"),
])
def test_contradictory_options_are_refused(capsys, words, text):
    assert main(["plan", *words]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("words, text", [
    (["--ranks", "0"], "is not a whole number of at least 1"),
    (["--ranks", "4", "--parameters", "many"], "such as 350M or 1.3B"),
    (["--ranks", "4", "--model", "gpt5"], "invalid choice"),
    (["--ranks", "4", "--share", "2"], "not a share in (0, 1]"),
])
def test_unreadable_options_are_refused(capsys, words, text):
    with pytest.raises(SystemExit):
        main(["plan", *words])
    assert text in capsys.readouterr().err
