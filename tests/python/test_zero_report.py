"""The report as text, and the most memory by kind."""
import pytest
from zero_training import OPTIMIZERS, Network, go_back

from torch_tutti import zero


def run_text(world, name, options, first_line):
    kind, settings = OPTIMIZERS[name]
    model = Network(64)
    model, optimizer = zero.shard(model, kind(model.parameters(), **settings), **options)
    for step in range(2):
        optimizer.zero_grad()
        go_back(model, optimizer, step, world.rank, turns=2)
        optimizer.step()
    report, count = optimizer.report(), sum(parameter.numel() for parameter in model.parameters())
    lines = str(report).splitlines()
    assert lines[0] == first_line
    assert lines[1].startswith(f"memory at most: {report.memory()}; the process ")
    assert lines[2].startswith("waits: ") and lines[3].startswith("bytes: ") and len(lines) == 4
    assert 0 < report["gradient_bytes"] <= report["gradient_peak_bytes"] < report["process_peak_bytes"]
    # two numbers for each element, also with RMSprop; a rank may have fewer elements than its share
    assert report["state_bytes"] > 4 * count / world.size
    assert report == dict(report)


@pytest.mark.parametrize("name, options, first_line", [
    ("adamw", {"stage": 2}, "zero stage 2, parameters replicated, 2 steps"),
    ("none", {"stage": 3, "hosts": "sharded"}, "zero stage 3, parameters sharded, 2 steps")])
def test_report_as_text(shared, name, options, first_line):
    shared(2).run(run_text, name, options, first_line)
