"""Tests of `tutti bench`: its options, that it finds wrong results, that backends take turns, its output and its files,
and that no rank is left behind. No test judges a time."""
import contextlib
import io
import itertools
import os
import re
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from memory import is_shared

from torch_tutti import _takeover, cli, take_over
from torch_tutti._bench import command, picture, report
from torch_tutti._bench.collectives import POISON, TABLE, Shape, buffers, count_wrong, source
from torch_tutti._bench.measure import Ranks, percentile, turns
from torch_tutti._bench.options import COLLECTIVES, OPERATIONS, TYPES, size, sizes

TUTTI = [sys.executable, "-m", "torch_tutti"]


def options(*words):
    return cli._parser().parse_args(["bench", *words])


# ---- options ----
def test_defaults_are_those_of_nccl_tests():
    found = options("all_reduce")
    assert (found.iters, found.warmup_iters, found.agg_iters, found.check, found.root) == (20, 5, 1, 1, 0)
    assert (found.op, found.datatype, found.stepbytes, found.stepfactor) == (["sum"], ["float"], 1 << 20, None)
    assert sizes(found.minbytes, found.maxbytes, found.stepbytes, found.stepfactor) == [32 << 20]


def test_every_flag_has_its_letter_and_its_name():
    short = options(*"all_reduce -b 8 -e 64M -f 2 -n 20 -w 5 -m 3 -o max -d half -r all -c 1 -a 0 -T 9 -J o".split())
    long = options(*"all_reduce --minbytes 8 --maxbytes 64M --stepfactor 2 --iters 20 --warmup_iters 5 --agg_iters 3 "
                    "--op MAX --datatype half --root all --check 1 --average 0 --timeout 9 --output_file o".split())
    assert vars(short) == vars(long) and short.root is None and short.op == ["max"]


@pytest.mark.parametrize("text, value", [("8", 8), ("64K", 65536), ("64k", 65536), ("1.5M", 3 << 19), ("1G", 1 << 30)])
def test_size_accepts_suffixes(text, value):
    assert size(text) == value


def test_sizes_grow_by_step_or_factor():
    assert sizes(8, 64, 1, 2) == [8, 16, 32, 64] and sizes(8, 63, 1, 2) == [8, 16, 32]
    assert sizes(10, 30, 10, None) == [10, 20, 30] and sizes(64 << 20, None, 1, 2) == [64 << 20]
    assert sizes(0, 20, 10, None) == [0, 10, 20]


WRONG_WORDS = {
    "allreduce": "choose from 'all_reduce'", "all_reduce -b 8Q": "64K, 1.5M or 1G",
    "all_reduce -b 64M -e 8": "must not exceed", "all_reduce -d float3": "bfloat16, all",
    "all_reduce -o mean": "choose from sum, prod", "all_reduce -n 0": "at least 1", "all_reduce -w -1": "at least 0",
    "all_reduce -i 1 -f 2": "not allowed with", "all_reduce -e 8 -b 4 -i 0": "never reaches",
    "all_reduce -b 0 -f 2": "at least 1", "all_reduce -G 1": "unrecognized arguments: -G",
    "all_reduce --backend tutti,tutti": "different backends",
    "all_reduce --backend elsewhere": "no backend 'elsewhere'; it has gloo, ",
    "all_reduce -r 7 --nproc 2": "from 0 to 1", "all_reduce --plot picture.gif": ".png, .svg, .pdf",
    "all_reduce -J nowhere/out.json": "-J nowhere/out.json cannot be written", "": "COLLECTIVE",
}


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_error_of_a_wrong_option_names_what_is_allowed(words, capsys):
    try:
        code = cli.main(["bench", *words.split()])
    except SystemExit as left:
        code = left.code
    assert code in (1, 2) and WRONG_WORDS[words] in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("words", ["--backend nccl", "--backend tutti,nccl", "--device cuda"])
def test_cuda_is_refused_without_a_device(words, capsys):
    assert cli.main(["bench", "all_reduce", *words.split()]) == 1
    assert "needs a CUDA device, and torch finds none here" in capsys.readouterr().err


def test_a_take_over_is_not_measured_under_another_name(capsys):
    with take_over("gloo"):
        assert cli.main(["bench", "all_reduce", "--backend", "gloo"]) == 1
    assert f"{_takeover.VARIABLE} makes groups of gloo" in capsys.readouterr().err


def test_nproc_that_contradicts_torchrun_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert cli.main(["bench", "all_reduce", "--nproc", "2"]) == 1
    assert "contradicts torchrun, which has started 4 ranks" in capsys.readouterr().err


# ---- contents and limits ----
def test_bus_bandwidth_factors():
    """The factors of bus bandwidth are those of nccl-tests (its doc/PERFORMANCE.md)."""
    for n in (2, 3, 8):
        of = {name: row.bus_factor(n) for name, row in TABLE.items()}
        assert of.pop("all_reduce") == pytest.approx(2 * (n - 1) / n)
        for name in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter"):
            assert of.pop(name) == pytest.approx((n - 1) / n)
        assert set(of) == {"broadcast", "reduce", "sendrecv"} and set(of.values()) == {1.0}
    assert tuple(TABLE) == COLLECTIVES


# {collective: (out of place, in place)}: what each of 4 ranks reads and writes on average, in blocks of one rank. None:
# the collective has no such placement.
TOUCHED = {"all_reduce": (2, 2), "all_gather": (5, 4), "reduce_scatter": (5, 5), "broadcast": (1.25, 1),
           "reduce": (1.25, 1.25), "alltoall": (8, None), "gather": (2, 1.5), "scatter": (2, 1.5),
           "sendrecv": (2, None)}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_limit_is_every_byte_read_and_written_once(name):
    shape = Shape(0, 4, 100, "float", "sum", 0, "cpu")
    for in_place, blocks in enumerate(TOUCHED[name]):
        assert blocks is None or TABLE[name].touched(shape, bool(in_place)) == 100 * blocks


def reduce_in_order(values, operation):
    total = values[0]
    for value in values[1:]:
        total = {"sum": torch.add, "avg": torch.add, "prod": torch.mul, "max": torch.maximum,
                 "min": torch.minimum}[operation](total, value)
    return total


@pytest.mark.parametrize("kind", TYPES)
def test_results_are_exact_in_every_type_and_order(kind):
    for operation, ranks in itertools.product(OPERATIONS, (1, 2, 3, 7, 64, 300)):
        shape = Shape(0, ranks, 500, kind, operation, -1, "cpu")
        contents = [source(shape, rank, shape.count, repetition=3) for rank in range(ranks)]
        expected = TABLE["all_reduce"].expected(shape, contents.__getitem__)
        values = [content.to(shape.dtype) for content in contents]
        assert all(torch.equal(value.long(), content.long()) for value, content in zip(values, contents))
        for order in (values, values[::-1]):
            got = reduce_in_order(order, operation)
            if operation == "avg":
                got = got / ranks if shape.dtype.is_floating_point else got.long() // ranks
            assert count_wrong(shape, got, expected) == 0, (operation, ranks)
        assert not (expected == POISON).any()
        assert count_wrong(shape, torch.full_like(values[0], POISON), expected) == shape.count


def test_contents_tell_ranks_blocks_and_repetitions_apart():
    shape = Shape(0, 4, 4096, "float", "none", -1, "cpu")
    first = source(shape, 0, 16384, 0)
    assert len(first.unique()) == 121
    for other in (source(shape, 1, 16384, 0), source(shape, 0, 16384, 1), first.roll(4096), first.roll(1)):
        assert (first != other).float().mean() > 0.9


def test_turns_hold_all_iterations():
    assert turns(20) == [4] * 5 and turns(7) == [2, 2, 1, 1, 1] and turns(2) == [1, 1]


def test_percentile_is_the_nearest_rank():
    times = [float(value) for value in range(1, 101)]
    assert percentile(times, 99) == 99 and percentile(times[:20], 99) == 20 and percentile([3.0], 99) == 3


# ---- on ranks ----
def measured(world, *words, patch=None, backends=("tutti", "gloo")):
    """Measures on groups that exist already. Returns the document and the output of this rank; only rank 0 prints."""
    groups = {"tutti": dist.group.WORLD,
              "gloo": world.made_once("gloo of bench", lambda: dist.new_group(backend="gloo"))}
    ranks = Ranks(world.rank, world.size, world.gloo, {name: groups[name] for name in backends})
    found = options(*words, "--backend", ",".join(backends))
    command.resolve(found, world.size, world.size)
    printed = io.StringIO()
    with patch or contextlib.nullcontext(), contextlib.redirect_stdout(printed):
        document = command.run(found, list(words), ranks, None)
    return document, printed.getvalue()


@contextlib.contextmanager
def replaced(world, name, make):
    """A context in which `dist.name` is make(original), except on the group through which the ranks of `tutti bench`
    agree."""
    original = getattr(dist, name)
    changed = make(original)

    def call(*arguments, group=None, **keywords):
        return (original if group is world.gloo else changed)(*arguments, group=group, **keywords)
    setattr(dist, name, call)
    try:
        yield
    finally:
        setattr(dist, name, original)


QUICK = ("-b", "2000", "-e", "2000", "-n", "2", "-w", "1")


def everything(world):
    return measured(world, "all", "-b", "2000", "-e", "2000", "-n", "1", "-w", "0", "-d", "all", "-o", "all", "-r",
                    str(world.size - 1))


def test_every_collective_type_and_operation_has_right_results(shared):
    document, printed = shared(3).run(everything)[0]
    assert document["out_of_bounds"] == {"count": 0, "okay": True} and "FAILED" not in printed
    rows = document["results"]
    assert {row["collective"] for row in rows} == set(COLLECTIVES) and {row["type"] for row in rows} == set(TYPES)
    for row in rows:
        placements = set(TABLE[row["collective"]].placements)
        assert {name for name in report.PLACEMENTS if row[name]} == placements
        for name in placements:
            refused = row["backend"] == "gloo" and row["redop"] == "avg" and "int" in row["type"]
            assert ("refused" in row[name]) == refused, row
            assert refused or (row[name]["nwrong"] == 0 and row[name]["iterations"] == 1 and row[name]["time"] > 0)
    assert [row["root"] for row in rows if row["collective"] == "gather"] == [2] * 2 * len(TYPES)
    assert "# gloo does not support all_reduce of int32 with avg: " in printed


def in_shared_memory(world):
    return measured(world, "all", *QUICK, "--shared", backends=("tutti",))


def test_shared_tensors_are_measured(shared):
    document, printed = shared(3).run(in_shared_memory)[0]
    assert document["config"]["shared_tensors"] and "# tensors in shared memory" in printed
    assert document["out_of_bounds"] == {"count": 0, "okay": True}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_buffers_are_shared_only_on_request(name):
    for in_place in (placement == "in_place" for placement in TABLE[name].placements):
        for asked in (False, True):
            shape = Shape(0, 2, 1 << 15, "float", "sum", 0, "cpu", asked)
            assert [is_shared(tensor) for tensor in buffers(TABLE[name], shape, in_place)] == [asked] * 2


def add_one(world):
    def make(original):
        def call(tensor, *arguments, **keywords):
            original(tensor, *arguments, **keywords)
            tensor[17] += world.rank == 1
        return call
    return measured(world, "all_reduce", *QUICK, "-c", "3", patch=replaced(world, "all_reduce", make))


def swap_blocks(world):
    def make(original):
        def call(tensor, blocks, *arguments, **keywords):
            original(tensor, blocks, *arguments, **keywords)
            if blocks:
                blocks[0].copy_(blocks[1])
        return call
    return measured(world, "gather", *QUICK, patch=replaced(world, "gather", make), backends=("tutti",))


def leave_undone(world):
    return measured(world, "broadcast", *QUICK, "-c", "1",
                    patch=replaced(world, "broadcast", lambda _: lambda *_, **__: None), backends=("gloo",))


def test_planted_errors_are_counted(shared):
    outcomes = shared(3).run(add_one)
    # All ranks have the same document.
    for document, _ in outcomes:
        assert [row["in_place"]["nwrong"] for row in document["results"]] == [3, 3]
        assert document["out_of_bounds"] == {"count": 6, "okay": False}
    assert re.search(r"Out of bounds values +: 6 FAILED", outcomes[0][1]) and not outcomes[1][1]
    row, = shared(3).run(swap_blocks)[0][0]["results"]
    assert 100 < row["out_of_place"]["nwrong"] <= row["count"] and row["in_place"]["nwrong"] > 100
    row, = shared(3).run(leave_undone)[0][0]["results"]
    # The root's buffer is right without a broadcast, so two of three ranks are wrong.
    assert row["in_place"]["nwrong"] == 2 * row["count"]


def record(world):
    """Returns (backend, contents) of every all_reduce, in order."""
    seen = []

    def make(original):
        def call(tensor, *arguments, group, **keywords):
            seen.append(("tutti" if group is dist.group.WORLD else "gloo", tensor.unique().tolist()))
            return original(tensor, *arguments, group=group, **keywords)
        return call
    measured(world, "all_reduce", "-b", "40", "-e", "40", "-n", "10", "-w", "3", "-m", "2", "-c", "1",
             patch=replaced(world, "all_reduce", make))
    return seen


def test_backends_take_turns_and_buffers_are_dirtied(shared):
    for seen in shared(3).run(record):
        checked, warmed, timed = seen[:2], seen[2:14], seen[14:]
        assert [name for name, _ in checked] == ["tutti", "gloo"]
        assert [name for name, _ in warmed] == ["tutti"] * 6 + ["gloo"] * 6
        in_turns = [name for name, calls in itertools.groupby(name for name, _ in timed) for _ in [len(list(calls))]]
        # 2 backends, 5 turns, 3 iterations in each turn (the first is not timed), 2 operations in each iteration.
        assert len(timed) == 2 * 5 * 3 * 2
        # The backend that was last in a turn is first in the next one.
        assert in_turns == ["tutti", "gloo", "tutti", "gloo", "tutti", "gloo"]
        # The first operation of an iteration finds new contents, the second one the result of the first.
        assert [value for _, value in timed[0::2]] == [[1.0]] * 30
        assert [value for _, value in timed[1::2]] == [[3.0]] * 30


def fail_on_one(world):
    def make(_):
        def call(*_, **__):
            if world.rank == 1:
                raise ValueError("only here")
        return call
    measured(world, "all_reduce", *QUICK, patch=replaced(world, "all_reduce", make))


def test_an_error_of_one_rank_ends_the_run_and_is_named(shared):
    outcomes = shared(3).outcomes(fail_on_one)
    assert all("tutti failed on rank 1 but not on the others" in outcome.text for outcome in outcomes)
    assert "only here" in outcomes[1].text


def averages(world):
    return [measured(world, "reduce", *QUICK, "-a", str(which), "-c", "0", backends=("gloo",)) for which in range(4)]


def test_ranks_agree_on_times(shared):
    """All ranks get the same results, whichever average (-a) is chosen."""
    per_rank = shared(3).run(averages)
    for which in range(4):
        assert len({str(outcomes[which][0]["results"]) for outcomes in per_rank}) == 1
    # -c 0 checks nothing.
    assert per_rank[0][0][0]["results"][0]["in_place"]["nwrong"] is None
    assert re.search(r" N/A$", per_rank[0][0][1].splitlines()[-6])


def test_no_rank_waits_for_the_clock_of_another_host(monkeypatch):
    monkeypatch.setattr(dist, "broadcast", lambda moment, **_: moment.fill_(time.monotonic_ns() + 3600 * 10**9))
    waiting = threading.Thread(target=Ranks(1, 2, None, {}).begin_together, daemon=True)
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()


# ---- output ----
def test_columns_are_those_of_nccl_tests():
    names = report.Table(stats=False, several=False).header()[2].split()
    block = ["time", "algbw", "busbw", "#wrong"]
    assert names == ["#", "size", "count", "type", "redop", "root", *block, *block]
    names = report.Table(stats=True, several=True).header()[2].split()
    block += ["median", "p99", "best", "ratio"]
    assert names == ["#", "size", "count", "type", "redop", "root", *block, *block, "backend"]


@pytest.mark.parametrize("value, text", [(0.126, "   0.13"), (20.36, "  20.36"), (9999.99, "9999.99"),
                                         (12345.67, "12345.7"), (1234567.8, "1234568"), (12345678.0, "1.2e+07"),
                                         (None, "    N/A")])
def test_numbers_use_the_width_of_their_column(value, text):
    assert report.number(value, 7) == text


def example(backends=("tutti", "gloo"), **changes):
    """Returns a document with one row for each backend. Each backend takes four times as long as the one before."""
    cell = {"time": 10.0, "alg_bw": 13.0, "bus_bw": 13.0, "nwrong": 0, "median": 8.0, "p99": 20.0, "best": 7.0,
            "iterations": 20, "ratio": 1.0, "limit": 2.0}
    row = {"collective": "all_reduce", "size": 131072, "count": 32768, "type": "float", "redop": "sum", "root": -1,
           "out_of_place": None, "memcpy": 4.0, **changes}
    found = options("all_reduce", "--backend", ",".join(backends))
    document = report.begin(found, ["bench"], [{}, {}])
    for index, name in enumerate(backends):
        times = {key: cell[key] * 4**index for key in ("time", "median", "p99", "best", "ratio")}
        document["results"].append({**row, "backend": name, "in_place": {**cell, **times}})
    report.finish(document)
    return document


def test_lines_stand_under_their_columns():
    document = example()
    table = report.Table(stats=True, several=True)
    names, first, second = table.header()[2], *(table.line(row) for row in document["results"])
    assert len(first) == len(names) - len("backend") + len("tutti")
    for line, median, ratio in ((first, "8.00", "1.00"), (second, "32.00", "4.00")):
        assert line[:names.rindex("median") + len("median")].endswith(median)
        assert line[:names.rindex("ratio") + len("ratio")].endswith(ratio)
        assert line.split().count("N/A") == 8


# ---- saved files ----
def test_saved_document_is_loaded_unchanged(tmp_path):
    path = tmp_path / "saved.json"
    document = example()
    report.save(document, str(path))
    loaded = report.load(str(path))
    assert loaded == document
    assert loaded["machine"]["cores"] == os.cpu_count()
    # The metadata of a torch with CUDA omits "+cu130".
    assert torch.__version__.split("+")[0] == loaded["versions"]["torch"].split("+")[0]
    assert loaded["config"]["iterations"] == 20 and loaded["average_bus_bandwidth"]["tutti"]["bandwidth"] == 13.0


def compared(tmp_path, one, other, *words):
    paths = [str(tmp_path / name) for name in ("one.json", "other.json")]
    for path, document in zip(paths, (one, other)):
        report.save(document, path)
    return cli.main(["bench", "compare", *paths, *words])


def test_compare_shows_both_times_and_their_ratio(tmp_path, capsys):
    slow = example(["gloo"])
    slow["results"][0]["in_place"]["median"] = 20.0
    assert compared(tmp_path, example(["tutti"]), slow) == 0
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:5] == ["all_reduce", "131072", "float", "sum", "-1"] and line[5:10] == ["N/A"] * 5
    assert line[10:13] == ["8.00", "20.00", "2.50"]


def test_compare_matches_rows_by_backend(tmp_path, capsys):
    other = example()
    other["machine"]["name"] += "'s neighbour"
    other["results"].append({**other["results"][0], "size": 7})
    assert compared(tmp_path, example(), other) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("machines differ" in line for line in lines)
    assert [line.split()[-1] for line in lines[-3:-1]] == ["tutti", "gloo"] and "only in B: 1" in lines[-1]
    assert all("1.00" in line for line in lines[-3:-1])


def test_compare_names_what_it_cannot_compare(tmp_path, capsys):
    assert compared(tmp_path, example(), example(collective="gather")) == 1
    assert "no line in common: all_reduce on tutti, gloo against gather" in capsys.readouterr().err
    for text, answer in (("no", "is not JSON"), ("{}", "was not written by tutti bench"),
                         ('{"format": "tutti bench", "version": 99}', "format version 99")):
        (tmp_path / "wrong.json").write_text(text)
        assert cli.main(["bench", "compare", str(tmp_path / "wrong.json"), str(tmp_path / "one.json")]) == 1
        assert answer in capsys.readouterr().err
    assert cli.main(["bench", "compare", str(tmp_path / "absent.json"), str(tmp_path / "one.json")]) == 1
    assert "absent.json" in capsys.readouterr().err


# ---- pictures ----
def test_picture_has_a_line_for_each_backend_and_the_limit(tmp_path):
    documents = [("a", example()), ("b", example(["gloo"], size=262144, count=65536))]
    drawn = picture.lines(documents)["all_reduce"]
    assert {key: list(line) for key, line in drawn.items()} == {
        ("tutti (a)", "in_place"): [131072], ("gloo (a)", "in_place"): [131072], ("gloo (b)", "in_place"): [262144]}
    assert picture.copies(documents, "all_reduce") == {"a": {131072: 4.0}, "b": {262144: 4.0}}
    assert picture.limits(documents, "all_reduce") == {
        ("a", "in_place"): {131072: 2.0}, ("b", "in_place"): {262144: 2.0}}
    assert picture.median_bandwidth(drawn["tutti (a)", "in_place"][131072]) == 13.0 * 10 / 8
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture.draw(documents, str(tmp_path / "both.svg"))
    assert compared(tmp_path, example(), example(), "--plot", str(tmp_path / "both.png")) == 0
    assert "<svg" in (tmp_path / "both.svg").read_text() and (tmp_path / "both.png").read_bytes()[1:4] == b"PNG"


def test_plot_without_matplotlib_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["bench", "all_reduce", "--plot", str(tmp_path / "picture.png")]) == 1
    assert "--plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err
