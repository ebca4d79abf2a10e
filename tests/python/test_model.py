"""Tests of `tutti model`: its options, that all ranks have the same predictions, that its table, its file and its
picture agree, and its algorithms on one host and on several. No test judges a time."""
import contextlib
import io
import json
import sys

import pytest
import torch
import torch.distributed as dist
from program_start import run_python, run_ranks, succeeded

from torch_tutti import algorithms, cli
from torch_tutti._bench.measure import Ranks
from torch_tutti._extension import backend_of
from torch_tutti._model import _core, command, picture, report
from torch_tutti._model.options import CORE_NAMES

TUTTI = ["-m", "torch_tutti"]
QUICK = ("-b", "1K", "-e", "64K", "-f", "64", "-n", "2")


def options(*words):
    return cli._parser().parse_args(["model", *words])


# ---- options ----
WRONG_WORDS = {
    "": "COLLECTIVE", "allreduce": "choose from", "alltoall": "choose from", "all_reduce -b 8Q": "64K, 1.5M or 1G",
    "all_reduce -b 64M -e 8": "must not exceed", "all_reduce -f 1": "at least 2", "all_reduce -n 0": "at least 1",
    "all_reduce --nproc 1": "at least 2", "all_reduce --algorithms ring,ring": "different algorithms",
    "all_reduce --algorithms rign": "all_reduce has no algorithm 'rign'; it has naive", "all_reduce -b 0": "at least 1",
    "all_reduce -J nowhere/out.json": "-J nowhere/out.json cannot be written", "all_reduce --plot a.gif": ".svg",
}


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_error_of_a_wrong_option_names_what_is_allowed(words, capsys):
    try:
        code = cli.main(["model", *words.split()])
    except SystemExit as left:
        code = left.code
    assert code in (1, 2) and WRONG_WORDS[words] in capsys.readouterr().err


def test_collectives_are_those_of_the_core():
    assert set(CORE_NAMES.values()) <= set(algorithms())


# ---- on ranks ----
def shown(world, *words):
    """Returns the document of a run, and the output of this rank."""
    ranks = Ranks(world.rank, world.size, world.gloo, {"tutti": dist.group.WORLD})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        document = command.run(options(*words), list(words), ranks)
    return document, printed.getvalue()


def test_ranks_agree_and_the_table_has_every_cell(shared):
    outcomes = shared(3).run(shown, "all_reduce", *QUICK)
    assert len({json.dumps([d["results"], d["chosen"], d["fastest"]]) for d, _ in outcomes}) == 1
    document, printed = outcomes[0]
    assert not outcomes[1][1] and sum(document["group"]["ranks_of_host"]) == 3
    assert [row["size"] for row in document["results"]] == [1 << 10, 1 << 16]
    table = [line.split() for line in printed.splitlines() if not line.startswith("#")]
    cells = [(row, name) for row in document["results"] for name in row["algorithms"]]
    assert [line[:2] for line in table] == [[str(row["size"]), name] for row, name in cells]
    for line, (row, name) in zip(table, cells):
        assert ("chosen" in line, "fastest" in line) == (row["chosen"] == name, row["fastest"] == name)
        cell = row["algorithms"][name]
        assert cell["measured"] >= cell["best"] > 0 and cell["slots"] >= 1 and 0 < cell["tile_bytes"] <= row["size"]
        assert (line[2] == "N/A") == (cell["predicted"] is None) and (cell["predicted"] or not cell["candidate"])
    assert all(row["algorithms"][row["chosen"]]["candidate"] for row in document["results"])
    assert f"# chosen:  {document['chosen'][0]['algorithm']} from 1024" in printed and "# regret" in printed


def every_collective(world):
    return [shown(world, name, "-b", "3000", "-e", "3000", "-n", "1", "--algorithms", "candidates")[0]
            for name in CORE_NAMES]


def test_candidates_of_every_collective_have_costs(shared):
    for name, document in zip(CORE_NAMES, shared(3).run(every_collective)[0]):
        row, = document["results"]
        assert row["size"] == (3000 if name in ("all_reduce", "broadcast", "reduce") else 3000 // 12 * 12)
        assert all(cell["candidate"] and cell["predicted"] > 0 for cell in row["algorithms"].values())
        assert row["chosen"] in row["algorithms"] and row["fastest"] in row["algorithms"]


def predict_all(world):
    """Returns the public predictions of this rank; rank 0 alone predicts twice."""
    import torch_tutti
    sizes = (3000, 1 << 24)
    times = {name: [torch_tutti.predict(name, size) for size in sizes] for name in CORE_NAMES}
    backend = backend_of(dist.group.WORLD)
    for name, found in times.items():
        assert 0 < found[0] < found[1]
        assert found[0] == _core.predict(backend, CORE_NAMES[name], "", sizes[0])["ns"] / 1e9
    if world.rank == 0:
        assert torch_tutti.predict("all_reduce", sizes[0], dist.group.WORLD) == times["all_reduce"][0]
    assert torch_tutti.predict("barrier", 0) == 0.0
    with pytest.raises(ValueError, match="predict: 'allreduce' is no collective that has a prediction; .* all_re"):
        torch_tutti.predict("allreduce", 8)
    with pytest.raises(ValueError, match="-1 bytes is negative"):
        torch_tutti.predict("all_reduce", -1)
    with pytest.raises(ValueError, match="predict: the group has no tutti backend"):
        torch_tutti.predict("all_reduce", 8, world.gloo)
    return times


def test_programs_get_predictions(shared):
    times = shared(2).run(predict_all)
    assert times[0] == times[1]


def only_two(world):
    return shown(world, "all_reduce", *QUICK, "--algorithms", "ring,tree")[0]


def test_only_listed_algorithms_are_measured(shared):
    document = shared(2).run(only_two)[0]
    assert all(list(row["algorithms"]) == ["ring", "tree"] for row in document["results"])
    assert all(found["ratio"] is None for found in document["regret"])


def ask(world):
    core = dist.group.WORLD._get_backend(torch.device("cpu"))
    texts = []
    for collective, algorithm in (("allreduec", ""), ("allreduce", "rign")):
        with pytest.raises(ValueError) as raised:
            _core.predict(core, collective, algorithm, 8)
        texts.append(str(raised.value))
    return texts, _core.machine_parameters(core)


def test_unknown_names_are_refused_with_the_nearest(shared):
    for texts, figures in shared(2).run(ask):
        assert 'did you mean "allreduce"' in texts[0] and 'did you mean "ring"' in texts[1]
        assert {"message", "announced", "wire", "line"} <= set(figures["figures"]) and figures["ranks"] == 2


# ---- output ----
def test_fit_finds_the_line_through_times():
    """The line through times on a line has its values: 20 us for a call, 0.25 ns for a byte. So a call of 80,000 bytes
    reaches half of the rate. Two points, or times that fall, give no line."""
    found = report.fit([(n, 20 + n * 0.25e-3) for n in (1 << 10, 1 << 14, 1 << 18, 1 << 22)])
    assert found == pytest.approx({"alpha_us": 20, "beta_ns": 0.25})
    first, second = report.advice(found, 100 << 20)
    assert "20 us" in first and "from 78.1 KiB on" in first and "from 703 KiB" in first
    # The square root of 104,857,600 x 80,000 bytes.
    assert "2.76 MiB" in second and "bucket_cap_mb=2.8" in second
    # Not less than the size that reaches nine tenths of the rate.
    assert "bucket_cap_mb=0.69" in report.advice(found, 1 << 20)[1]
    assert report.fit([(1, 1.0), (2, 1.0)]) is None
    assert report.fit([(1 << 10, 30.0), (1 << 14, 20.0), (1 << 18, 10.0)]) is None
    assert report.fit([]) is None


def test_stretches_join_equal_neighbours():
    assert report.stretches([(1, "a"), (2, "a"), (3, "b"), (4, "a")]) == [
        {"algorithm": "a", "first_bytes": 1, "last_bytes": 2}, {"algorithm": "b", "first_bytes": 3, "last_bytes": 3},
        {"algorithm": "a", "first_bytes": 4, "last_bytes": 4}]


@pytest.mark.parametrize("message, wire, text", [
    (20000.0, 0.1, "20 us (α), {}, a byte 0.1 ns (β), so 10 GB/s; measured when the group joined"),
    (15000.0, 0.32, "15 us (α), {}, a byte 0.32 ns (β), so 3.12 GB/s; typical parameters: they were not measured")])
def test_cost_between_hosts_is_described(message, wire, text):
    figures = {"message": {"value": message, "typical": 15000.0},
               "announced": {"value": 40000.0, "typical": 45000.0}, "wire": {"value": wire, "typical": 0.32}}
    expected = "a message takes " + text.format("one of more than 64 KiB 40 us")
    assert report.between_hosts({"figures": figures}) == expected


def test_picture_has_both_lines_of_predicted_algorithms():
    cells = {"a": {"predicted": None, "measured": 2.0}, "b": {"predicted": 3.0, "measured": 4.0}}
    assert picture.lines({"results": [{"size": 8, "algorithms": cells}]}) == {
        ("a", "measured"): {8: 2.0}, ("b", "predicted"): {8: 3.0}, ("b", "measured"): {8: 4.0}}


def test_plot_without_matplotlib_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["model", "all_reduce", "--plot", str(tmp_path / "picture.png")]) == 1
    assert "--plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err


# ---- processes ----
ONE_HOST = {"TUTTI_HOSTS": None}


def names_of(document):
    return {name for row in document["results"] for name in row["algorithms"]}


def test_model_starts_its_own_ranks(tmp_path):
    saved, drawn = tmp_path / "out.json", tmp_path / "out.svg"
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    printed = succeeded(run_python(*TUTTI, "model", "all_reduce", *QUICK, "--nproc", "2", "-J", saved, "--plot", drawn,
                                   **ONE_HOST))
    document = json.loads(saved.read_text())
    assert (document["format"], document["version"]) == ("tutti model", 1)
    assert {"one_shot", "two_shot", "ring"} <= names_of(document) and "<svg" in drawn.read_text()
    assert "on one host" in printed and "between hosts" not in printed
    assert all(row["algorithms"]["ring"]["predicted"] is None for row in document["results"])


def test_model_runs_on_simulated_hosts(tmp_path):
    saved = tmp_path / "out.json"
    printed = succeeded(run_ranks(2, *TUTTI, "model", "all_reduce", *QUICK, "-J", saved, TUTTI_HOSTS="2"))
    document = json.loads(saved.read_text())
    names = names_of(document)
    assert {"leaders", "hierarchy_ring", "ring"} <= names and not {"one_shot", "two_shot"} & names
    assert all(cell["predicted"] > 0 for row in document["results"] for cell in row["algorithms"].values())
    assert printed.count("# between hosts: a message takes") == 1 and "on 2 hosts (1, 1 ranks)" in printed


def test_algorithm_of_one_host_is_refused_on_several():
    ended = run_ranks(2, *TUTTI, "model", "all_reduce", *QUICK, "--algorithms", "two_shot", TUTTI_HOSTS="2")
    assert ended.exitcodes == [1, 1]
    assert ended.stderr.count("allreduce by algorithm two_shot needs all ranks on one host") == 2
