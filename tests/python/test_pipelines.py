"""Tests of torch_tutti.Pipeline: schedules run on torch's own runtime and train as one process does; and of
`tutti pipeline`."""
import copy

import pytest
import torch
from test_pipelining import BATCH, Block, check_gradients, data, loss_of, step
from torch.distributed.pipelining import PipelineStage
from zero_training import refused

from torch_tutti import Pipeline
from torch_tutti._pipeline import schedules
from torch_tutti._pipeline_command import formula
from torch_tutti.cli import main

SCHEDULES = ["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"]


def test_schedules_have_actions_and_refuse_mistakes():
    assert schedules() == SCHEDULES
    assert list(map(str, Pipeline("1f1b", 2, 3).actions(1))) == ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]
    assert Pipeline("zb-v", 3, 6).stages_of(2) == [2, 3] and Pipeline("interleaved", 2, 4, 3).stages == 6
    refused(ValueError, "unknown schedule \"dualpipe\"", lambda: Pipeline("dualpipe", 2, 4))
    refused(ValueError, "3 microbatches for 4 ranks", lambda: Pipeline("1f1b", 4, 3))
    refused(ValueError, "rank 2 does not exist; there are 2", lambda: Pipeline("1f1b", 2, 4).actions(2))
    refused(ValueError, "4294967298 is not a 32-bit integer", lambda: Pipeline("1f1b", (1 << 32) + 2, 4))
    assert len(Pipeline("naive", 8, 65536).actions(0)) == 131072
    same = copy.copy(Pipeline("1f1b", 2, 4))
    assert same.csv() == Pipeline("1f1b", 2, 4).csv()
    refused(ValueError, "stage 4 does not exist; there are 2", lambda: Pipeline("1f1b", 2, 4).rank_of(4))


@pytest.mark.parametrize("name", SCHEDULES)
def test_times_give_the_bubble_of_the_formula(name):
    pipeline = Pipeline(name, 4, 8)
    timing = pipeline.time()
    assert max(timing.bubbles) == pytest.approx(formula(pipeline)) and timing.makespan > 24
    assert [ends[-1] for ends in timing.ends] and max(map(max, timing.ends)) == timing.makespan
    slow = pipeline.time(forward=[1.0] * (pipeline.stages - 1) + [3.0], message=0.5)
    assert slow.makespan > timing.makespan and sum(slow.busy) > sum(timing.busy)
    assert pipeline.time(0.0).bubbles == [0.0] * 4
    refused(ValueError, "times of 1, 1, 1 stages; there are", lambda: pipeline.time(forward=[1.0]))
    refused(ValueError, "a time is negative", lambda: pipeline.time(forward=-1.0))
    refused(ValueError, "too large to be added up", lambda: pipeline.time(forward=1e308))


# ---- on torch's runtime ----
def trains(world, name, microbatches):
    pipeline = Pipeline(name, world.size, microbatches)
    pipeline.check()
    mine, count = pipeline.stages_of(world.rank), pipeline.stages
    torch.manual_seed(0)
    blocks, model = ([Block(number) for number in range(count)] for _ in range(2))
    stages = [PipelineStage(blocks[i], i, count, torch.device("cpu")) for i in mine]
    schedule = pipeline.on_torch(stages, loss_fn=loss_of)
    optimizers = [torch.optim.SGD([p for block in of for p in block.parameters()], lr=0.1) for of in (blocks, model)]
    for turn in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = data(count, turn)
        losses = [loss_of(torch.nn.Sequential(*model)(a), b) for a, b in
                  zip(x.chunk(microbatches), y.chunk(microbatches))]
        (sum(losses) / microbatches).backward()
        found = step(schedule, mine, count, x, y)
        if found is not None:
            torch.testing.assert_close(torch.stack(found).detach(), torch.stack(losses).detach())
        check_gradients(mine, blocks, model)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("size, microbatches", [(2, 2), (2, 8), (4, 4), (4, 8)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_trains_as_one_process(shared, size, name, microbatches):
    if name == "dualpipe-v" and microbatches < 2 * size:
        microbatches = 2 * size
    assert BATCH >= microbatches
    shared(size).run(trains, name, microbatches)


def run_wrong_stages(world):
    pipeline, cpu = Pipeline("interleaved", world.size, 2), torch.device("cpu")

    def stages(numbers, count=4):
        return [PipelineStage(Block(i), i, count, cpu) for i in numbers]
    # Stages may come in any order.
    pipeline.on_torch(stages(reversed(pipeline.stages_of(world.rank))), loss_fn=loss_of)
    text = "interleaved of 2 ranks has 4 stages"
    refused(ValueError, text, lambda: pipeline.on_torch([]))
    refused(ValueError, text, lambda: pipeline.on_torch(stages(pipeline.stages_of(1 - world.rank))))
    refused(ValueError, text, lambda: pipeline.on_torch(stages([world.rank], 2)))


def test_stages_of_another_pipeline_are_refused(shared):
    shared(2).run(run_wrong_stages)


# ---- the command ----
def test_command_prints_schedules_and_names_mistakes(capsys, tmp_path):
    assert main(["pipeline", "1f1b", "--stages", "4", "--microbatches", "8"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1f1b: 4 ranks, 1 stage on each, 8 microbatches")
    assert "takes 33; bubble 27.3% at most; by the formula for equal stages 27.3%" in shown
    assert "3  3              27.3%     1  3F0 3B0 3F1 3B1" in shown
    assert main(["pipeline", "zb-h1", "--csv", "--stages", "2", "--microbatches", "2"]) == 0
    assert capsys.readouterr().out == "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    picture = tmp_path / "out.png"
    assert main(["pipeline", "zb-v", "--backward", "2", "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 10_000 and "formula" not in capsys.readouterr().out
    assert main(["pipeline", "interleaved", "--microbatches", "6"]) == 1
    assert "needs a multiple of 4 microbatches, not 6" in capsys.readouterr().err
    assert main(["pipeline", "1f1b", "--forward", "0", "--backward", "0", "--weight", "0"]) == 0
    assert main(["pipeline", "1f1b", "--microbatches", str(10 ** 30)]) == 1
    with pytest.raises(SystemExit):
        main(["pipeline", "1f1b", "--forward", "soon"])
    assert "'soon' is not a time" in capsys.readouterr().err
