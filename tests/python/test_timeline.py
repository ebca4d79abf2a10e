"""Tests of the timeline of a training: the file that optimizer.trace writes, and `tutti zero`, which reads it."""
import json

import pytest
import torch
from ranks import hosts_of_job
from zero_training import Network, ids_of, loss_of

from torch_tutti import _timeline, cli, zero
from torch_tutti._timeline import ASKED, GATHERED, READY, SETTLED, STEPPED, SUMMED, UPDATED, USED, Event

UNITS = ["model", "blocks.0"]
REPORT = {"parameter_bytes": 3e6, "gradient_bytes": 2e6, "state_bytes": 1e6}
# Two steps of two units. The first has no beginning. The second waits 3 + 0.05 ms for parameters, and 1 + 4 - 2 ms for
# gradients.
EVENTS = [Event(STEPPED, -1, 0, 10, 0),
          Event(USED, 0, 11, 14, 0), Event(USED, 1, 16, 16.05, 0), Event(READY, 1, 20, 20, 0),
          Event(SUMMED, 1, 20, 26, 400), Event(ASKED, 0, 21, 22, 0), Event(READY, 0, 24, 24, 0),
          Event(UPDATED, 1, 26, 27, 0), Event(UPDATED, 0, 27, 28, 0), Event(STEPPED, -1, 25, 29, 0),
          Event(GATHERED, 0, 28, 28.5, 100)]


def write(path, ranks, missed=0):
    path.write_text(json.dumps(_timeline.chrome(ranks, UNITS, [REPORT] * len(ranks), missed)))
    return str(path)


def test_step_is_divided_into_waits():
    step, = _timeline.steps_of(EVENTS)
    assert step == (19, pytest.approx(3.05), pytest.approx(3), pytest.approx(2), 1, 400, 100)
    ahead = [*EVENTS, Event(STEPPED, -1, 29, 29, 0), Event(UPDATED, 1, 30, 35, 0), Event(STEPPED, -1, 39, 40, 0)]
    # Updates that run beside the program are not counted as its waits.
    assert _timeline.steps_of(ahead)[2][2:4] == (1, 5)


def test_bars_of_the_program_leave_no_gap():
    program = [bar for bar in _timeline.bars_of_rank(EVENTS, UNITS) if bar.row == "program"]
    assert [(bar.name, bar.began, bar.ended) for bar in program] == [
        ("step", 0, 10), ("other", 10, 11), ("wait for model", 11, 14), ("forward model", 14, 16),
        ("wait for blocks.0", 16, 16.05), ("backward blocks.0", 16.05, 20), ("backward blocks.0", 20, 21),
        ("wait for a buffer of model", 21, 22), ("backward model", 22, 24), ("backward model", 24, 25),
        ("step", 25, 29)]


def test_command_prints_a_table(tmp_path, capsys):
    assert cli.main(["zero", write(tmp_path / "trace.json", [EVENTS, EVENTS])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks, 2 units, 1 steps; ms and MB, means over the ranks"
    assert lines[4].split() == ["1", "19.00", "12.95", "3.05", "3.00", "31.8%", "2.00", "1", "0.00", "0.00"]
    assert lines[5].split()[1:] == lines[4].split()[1:]
    assert lines[7] == "memory of a rank, MB: 3.0 parameters, 2.0 gradients, 1.0 optimizer state"
    assert len(lines) == 8


def test_command_draws_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    assert cli.main(["zero", write(tmp_path / "trace.json", [EVENTS], 3), "--picture", str(path), "--steps", "1"]) == 0
    assert "3 events were dropped" in capsys.readouterr().out
    assert "<svg" in path.read_text()


@pytest.mark.parametrize("content, problem", [
    ("no json", "is not a trace of torch_tutti.zero"), ("[]", "is not a trace of torch_tutti.zero"),
    ('{"tutti": {"version": 2}}', "is of version 2; this command reads version 1"),
])
def test_files_that_are_no_traces_are_refused(tmp_path, capsys, content, problem):
    path = tmp_path / "trace.json"
    path.write_text(content)
    assert cli.main(["zero", str(path)]) == 1
    assert f"{path} {problem}" in capsys.readouterr().err


def test_missing_file_and_missing_steps_are_errors(tmp_path, capsys):
    assert cli.main(["zero", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert cli.main(["zero", write(tmp_path / "trace.json", [EVENTS[:3]])]) == 1
    assert "call step() at least twice" in capsys.readouterr().err


# ---- traces of training ----
def trace(world, path, stage, ahead, hosts):
    torch.manual_seed(world.rank)
    model = Network(16)
    model, optimizer = zero.shard(model, torch.optim.AdamW(model.parameters()), stage=stage, ahead=ahead, hosts=hosts)

    def train(steps):
        for step in range(steps):
            loss_of(model(ids_of(step, world.rank))).backward()
            optimizer.step()
            optimizer.zero_grad()
    train(1)
    with optimizer.trace(path):
        train(3)
        optimizer.wait()
    # This step is not traced.
    train(1)
    with pytest.raises(KeyError), optimizer.trace(f"{path}.none"):
        raise KeyError("of the program")
    with pytest.raises(ValueError, match="room for at least one"), optimizer.trace(path, events=0):
        pass
    with optimizer.trace(f"{path}.short", events=2):
        train(1)


@pytest.mark.parametrize("stage, ahead, hosts", [(1, False, None), (2, True, None), (3, True, None),
                                                 (3, False, "sharded")])
def test_trace_has_the_events_of_training(shared, tmp_path, stage, ahead, hosts):
    path = tmp_path / "trace.json"
    shared(2).run(trace, str(path), stage, ahead, hosts)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["trace.json", "trace.json.short"]
    found = _timeline.read(str(path))
    assert found.units == ["model", "blocks.0", "blocks.1", "blocks.2"] and not found.missed
    spread = len(set(hosts_of_job(2))) > 1
    for events in found.ranks:
        kinds = [event.kind for event in events]
        assert kinds.count(STEPPED) == 3 and kinds.count(SUMMED) == kinds.count(UPDATED) == 3 * 4
        assert kinds.count(READY) == 3 * 4 and kinds.count(SETTLED) == 0
        if stage < 3 or spread and not hosts:
            assert kinds.count(GATHERED) == 3 * 4
        assert all(0 <= event.began <= event.ended for event in events)
        assert len(_timeline.steps_of(events)) == 2
    assert {event["pid"] for event in json.loads(path.read_text())["traceEvents"]} == {0, 1}
    assert _timeline.read(f"{path}.short").missed > 0
