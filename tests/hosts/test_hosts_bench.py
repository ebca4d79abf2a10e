"""Tests of the program that compares tutti between hosts with Open MPI and MPICH (tests/bench/hosts/compare_peers.py):
it runs, and refuses figures that were not measured over the network. The comparison with perftest (beside_perftest.py)
runs only in a virtual machine, so only its table is tested."""
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/bench/hosts/compare_peers.py"


def loaded(program):
    spec = importlib.util.spec_from_file_location(program.stem, program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compare_peers():
    return loaded(PROGRAM)


class Wire:
    """Stands for the hosts: each measurement adds `sent` bytes to the counter of each host."""

    def __init__(self, sent):
        self.total, self.sent = 1000, sent

    def sent_bytes(self, host):
        return self.total

    def measured(self, *_):
        self.total += self.sent
        return {}


def test_results_of_all_collectives_are_checked_on_two_hosts(namespaces_work, tmp_path):
    """Two ranks run on each host. On a machine with few cores no flag barrier is measured then, which would take long
    on a busy machine."""
    if not (ROOT / "shim/torch_tutti/libtutti.so").exists() or not shutil.which("cc"):
        pytest.skip("libtutti is not built, or there is no compiler")
    words = ["--alone", "--rounds", "1", "--more", "0", "--per-host", "2", "--sizes", "262144"]
    run = subprocess.run([sys.executable, PROGRAM, *words, "--json", tmp_path / "found.json"], capture_output=True,
                         text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]["2"]
    assert [row["collective"] for row in rows][:3] == ["allreduce", "allreduce, out of place", "reduce_scatter"]
    assert len(rows) == 10 and all(row["times"]["tutti"] > 1 for row in rows)


def test_sizes_are_raised_to_one_element_for_each_rank(compare_peers):
    assert compare_peers.rows_of(2, ["gather"], [8, 16, 4096]) == [("gather", 16), ("gather", 4096)]


@pytest.mark.parametrize("sent, fits", [(9 * 4096, True), (9 * 4096 - 1, False)])
def test_figures_of_bytes_not_sent_over_the_network_are_refused(compare_peers, monkeypatch, sent, fits):
    """An all-reduce of two hosts sends the bytes of each host to the other one."""
    wire = Wire(sent)
    monkeypatch.setattr(compare_peers.compare, "measured", wire.measured)
    run = compare_peers.watched(wire, 1)
    if fits:
        assert run("MPICH", [], [("allreduce", 4096)]) == {}
    else:
        with pytest.raises(SystemExit, match="MPICH has sent 73726 bytes between hosts, and needs 73728 at least"):
            run("MPICH", [], [("allreduce", 4096)])


def test_a_ratio_to_perftest_is_of_one_turn():
    """A ratio to perftest is taken within each turn. The machine is faster in one turn than in another, so a ratio of
    the medians would differ."""
    beside = loaded(PROGRAM.with_name("beside_perftest.py"))
    least = {other: 1e-6 for _, other in beside.ROWS.values()}
    found = [{"perftest": {name: slower * value for name, value in {**least, "ib_send_lat": 2e-6}.items()},
              "bare": {"message": 1.5e-6 * slower, "allreduce": 4e-6 * slower},
              "core": dict.fromkeys(beside.ROWS, core), "torch": dict.fromkeys(beside.ROWS, 4e-6 * slower)}
             for slower, core in ((1, 3e-6), (10, 9e-6), (2, 8e-6))]
    lines = list(beside.table(found))
    assert lines[1] == "| 8 bytes one way | ib_write_lat | 2 | 8 | 3.00 | 8 | 4.00 |"
    assert lines[-3:-1] == ["bare writes of 8 bytes, one way: 3 µs; the core ÷ that 2.00",
                            "bare writes of 8 bytes, both write, then both hear: 8 µs; the core ÷ that 0.75"]
    assert lines[-1] == "beside: ib_send_lat 4 µs"
