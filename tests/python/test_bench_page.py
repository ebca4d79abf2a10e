"""Tests of the pages that script/bench writes: measured tables replace the text between two marks, and nothing else
changes."""
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = "By hand.\n<!-- measured: {} -->\nold\n<!-- end -->\nAlso by hand.\n"


def module_at(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report():
    return module_at("tests/bench/report.py")


@pytest.fixture(scope="module")
def compare():
    return module_at("tests/bench/peers/compare.py")


@pytest.fixture(scope="module")
def commits():
    return module_at("tests/bench/compare_commits.py")


def row(**changes):
    return {"case": "allreduce", "bytes": 8, "ranks": 2, "dtype": "float32", "in_place": True, "shared": False,
            "beside": "flag barrier", "goal": 1.25, "goal_p99": 3, "goal_p99_us": 0, "median_us": 0.09, "p99_us": 0.2,
            "best_us": 0.08, "slowest_us": 9.0, "beside_us": 0.06, "beside_p99_us": 0.15, "beside_single_us": 0.1,
            "ratio": 1.5, "limit_us": 0.06, "flag_ns": 61.0, "flag_after_ns": 64.0, "met": False, **changes}


def test_only_text_between_the_marks_changes(report):
    pages = {"a": PAGE.format("goals"), "b": PAGE.format("core")}
    report.put(pages, "goals", "new")
    assert pages == {"a": PAGE.format("goals").replace("old", "new"), "b": PAGE.format("core")}


@pytest.mark.parametrize("page", ["no marks", PAGE.format("core"), PAGE.format("goals") * 2])
def test_a_page_without_a_place_is_refused(report, page):
    with pytest.raises(ValueError, match=r"places for 'goals' instead of one: <!-- measured: goals -->"):
        report.put({"page": page}, "goals", "new")


def test_output_with_its_own_tables_is_quoted(report):
    assert report.BLOCKS["ddp"][0]({"ddp": "a  b\n1  2\n\n"}) == "```\na  b\n1  2\n```"


def test_row_of_a_missed_goal_has_the_factor(report):
    found = [row(), row(case="broadcast", bytes=64 << 20, shared=True, goal=0.95, goal_p99=0, median_us=5e3, p99_us=6e3,
                        best_us=4e3, beside="memcpy", beside_us=1e4, ratio=0.5, flag_after_ns=340.0,
                        met=True), row(goal=0, met=None)]
    lines = report.goals({"core": {"rows": found}}).splitlines()
    assert lines[0] == "1 of 2 goals are met." and len(lines) == 13
    assert lines[2] == "Up to 64 KiB:" and lines[8] == "More than 64 KiB:"
    assert lines[6] == ("| allreduce | 8 | private, in place | 90.0 ns | 200 ns | 80.0 ns | flag barrier 60.0 ns | "
                        "1.50 | ≤ 1.25, p99 2.00 ≤ 3 | 61 | **no**; 1.50 × limit |")
    assert lines[12] == ("| broadcast | 64 Mi | shared, in place | 5.00 ms | 6.00 ms | 4.00 ms | memcpy 10.0 ms | "
                        "0.50 | ≤ 0.95 | 61, then 340 | yes |")


def test_a_row_whose_cores_moved_is_neither_met_nor_missed(report):
    rows = [row(met=True), row(bytes=48, met=None, moved=True, tries=3, flag_after_ns=340.0)]
    lines = report.goals({"core": {"rows": rows}}).splitlines()
    assert lines[0] == "1 of 1 goals are met. Rows not judged, because the cores moved each time: 1."
    assert lines[6].endswith("| yes |") and lines[7].endswith("| 61, then 340 | moved |")
    assert "| allreduce | 48 | 90.0 ns (moved) |" in report.core({"core": {"rows": rows}})


def test_all_programs_call_cores_moved_by_the_same_factor(report):
    header = (ROOT / "tests/bench/measure.h").read_text()
    assert f"#define FLAG_MOVED {report.is_alike.__globals__['FLAG_MOVED']}\n" in header


@pytest.mark.parametrize("count, apart", [(65536, False), (65537, True)])
def test_long_rows_stand_apart_from_short_ones(report, count, apart):
    for text in (report.goals({"core": {"rows": [row(), row(bytes=count)]}}),
                 report.core({"core": {"rows": [row(), row(bytes=count)]}})):
        assert ("More than 64 KiB:" in text) == apart


@pytest.mark.parametrize("microseconds, text", [(0.0615, "61.5 ns"), (0.9996, "1.00 µs"), (1.234, "1.23 µs"),
                                                (123.4, "123 µs"), (999.4, "999 µs"), (999.6, "1.00 ms"),
                                                (56789.0, "56.8 ms"), (1234567.0, "1235 ms")])
def test_times_have_three_digits(report, microseconds, text):
    assert report.time(microseconds) == text


def test_ratios_divide_times_of_others_by_ours(report):
    times = {"tutti": 2.0, "tutti, shared": 1.0, "Open MPI": 3.0, "MPICH": 40.0}
    rows = [{"collective": "allgather", "bytes": 4096, "flag_ns": 61.0, "times": times},
            {"collective": "allgather", "bytes": 8192, "flag_ns": None, "times": times}]
    text = report.peers({"peers": {"rows": rows}})
    assert "| allgather | 1.50 / 20 | 1.50 / 20* |" in text and "| allgather | 3.00 / 40 | 3.00 / 40* |" in text
    assert "| bytes | 4 Ki | 8 Ki |" in text and "in 1 of 2 comparisons, and in 0 not; 1, marked *, were" in text


def test_peers_that_are_not_installed_are_named(report):
    text = report.peers({"peers": {"rows": [{"collective": "allgather", "bytes": 8, "times": {"tutti": 2.0}}]}})
    assert text == "Neither Open MPI nor MPICH was installed."


def test_peers_between_hosts_have_tables_by_ranks_of_a_host(report):
    times = {"tutti": 2.0, "Open MPI": 3.0, "MPICH": 9.0}
    alone = {"collective": "allgather", "bytes": 4096, "flag_ns": 61.0, "times": times}
    crowded = {**alone, "flag_ns": 0.0, "times": {"tutti": 2.0, "Open MPI": 1.0}}
    text = report.hosts_peers({"hosts_peers": {"rows": {"1": [alone], "2": [crowded]}}})
    assert "2 hosts x 1. The cores shared a level-3 cache in 1 of 1" in text and "| allgather | 1.50 / 4.50 |" in text
    assert "2 hosts x 2. Open MPI ÷ tutti, private tensors:" in text and "| allgather | 0.50 |" in text


def test_each_way_between_hosts_has_its_curve(report):
    line = {size: 1e-5 for size in report.compare_hosts.SIZES.split(",")}
    # The names are those under which a run writes its figures.
    figures = {name: line for name in report.compare_hosts.cases(with_ucx=True)}
    row_of_hosts = {"collective": "allreduce", "bytes": 8, "times": {"tutti": 2.0}}
    results = {"hosts": {"figures": figures}, "hosts_peers": {"rows": {"1": [row_of_hosts]}}}
    curves = {label: points for label, _, points in report.hosts_curves(results, "1", "allreduce")}
    for way in ("tutti by ucx", "tutti by tcp", "gloo"):
        assert curves[f"{way} through torch"][65536] == pytest.approx(10)
    del figures["tutti by ucx 2 x 1"]
    with pytest.raises(ValueError, match=r"hosts\.json lacks 'tutti by ucx 2 x 1': .* run script/bench hosts again"):
        list(report.hosts_curves(results, "1", "allreduce"))


@pytest.mark.parametrize("flags, text", [([61, 70], "share a level-3 cache"), ([210, 390], "share no cache"),
                                         ([60, 300], "in 50% of the rows they share")])
def test_placement_of_the_cores_is_described(report, flags, text):
    assert text in report.placement({"rows": [row(flag_ns=flag) for flag in flags]})


def test_table_that_was_not_measured_stays_and_is_reported(report, capsys):
    pages = {"page": "".join(PAGE.format(name) for name in report.BLOCKS)}
    report.write(pages, {"core": {"rows": [row()]}})
    changed = pages["page"]
    assert changed.count("old") == len(report.BLOCKS) - 3 and "0 of 1 goals are met." in changed
    errors = capsys.readouterr().err
    assert "'peers' keeps what it has: there is no peers.json" in errors and "'torch' keeps what it has" in errors


def test_the_pages_have_a_place_for_every_table(report):
    pages = {path: path.read_text(encoding="utf-8") for path in report.PAGES}
    for name in report.BLOCKS:
        report.put(pages, name, "measured")


# ---- only samples of one placement of the cores are compared ----
NEAR, APART, MOVED = (1.0, 60.0, 62.0), (3.0, 340.0, 330.0), (2.0, 61.0, 335.0)


@pytest.mark.parametrize("ours, theirs, place, times", [
    ([NEAR, NEAR, APART], [APART, NEAR], 60, (1.0, 1.0)),
    ([NEAR, APART, APART], [(5.0, 350.0, 340.0), (4.0, 350.0, 340.0), MOVED], 330, (3.0, 4.5)),
    ([NEAR, MOVED], [APART, MOVED], None, (1.5, 2.5)),
    # More ranks than cores: there is no placement.
    ([(1.0, 0.0, 0.0)], [(2.0, 0.0, 0.0)], 0, (1.0, 2.0)),
])
def test_only_samples_of_one_placement_are_compared(compare, ours, theirs, place, times):
    found = compare.row(("allreduce", 8), {"tutti": ours, "MPICH": theirs})
    assert (found["times"]["tutti"], found["times"]["MPICH"]) == times
    assert found["flag_ns"] is None if place is None else found["flag_ns"] == pytest.approx(place, rel=0.1)


def test_rows_are_repeated_until_placements_match(compare, monkeypatch):
    asked = []

    def measured(library, command, wanted):
        asked.append((library, wanted))
        turn = sum(name == library for name, _ in asked)
        return {key: APART if library == "MPICH" and key[1] == 8 and turn < 4 else NEAR for key in wanted}

    monkeypatch.setattr(compare, "measured", measured)
    wanted = [("allreduce", 8), ("allreduce", 512)]
    found = compare.measure({"tutti": [], "MPICH": []}, wanted, 2, 6)
    assert [row["flag_ns"] for row in found] == pytest.approx([60, 60], rel=0.1)
    assert [keys for name, keys in asked if name == "MPICH"] == [wanted] * 2 + [wanted[:1]] * 2


@pytest.mark.parametrize(("ranks", "is_compared"), [(2, True), (4, False)])
def test_mpich_is_left_out_with_more_ranks_than_cores(compare, monkeypatch, capsys, ranks, is_compared):
    monkeypatch.setattr(compare, "programs", lambda: {"tutti": "a", "Open MPI": "b", "MPICH": "c"})
    monkeypatch.setattr(compare.os, "sched_getaffinity", lambda process: {0, 1})
    commands = compare.commands(ranks)
    assert {"tutti", "Open MPI"} < set(commands) and ("MPICH" in commands) == is_compared
    assert ("MPICH: left out" in capsys.readouterr().err) != is_compared


def test_regret_names_the_better_choice(report):
    found = [{"case": "allgather", "bytes": 1 << 20, "in_place": True, "shared": shared, "choice": "read 512Kx2",
              "choice_us": 20.0, "best": "write 512Kx2 stored", "best_us": best, "regret": 20.0 / best,
              "flag_ns": 412.0, "flag_after_ns": 85.0} for shared, best in ((False, 20.0), (True, 10.0))]
    text = report.regret({"regret": {"ranks": 2, "good": 1.05, "rows": found}})
    assert "2 ranks. At most 1.05 in 1 of 2 rows (50%), 1.500 on average." in text
    assert "| allgather | 1.00 / **2.00** |" in text
    assert ("| allgather | 1 Mi | shared, in place | read 512Kx2, 20.0 µs | write 512Kx2 stored, 10.0 µs | 2.00 | "
            "412, then 85 |") in text


# ---- comparing two commits ----
@pytest.mark.parametrize("this, that, again, word", [
    ([100, 101, 102], [100, 101, 102], [100, 101, 102], ""),
    ([110, 111, 112], [100, 101, 102], [110, 111, 112], "SLOWER"),
    # The same code, measured again, differs from itself as much.
    ([110, 111, 112], [100, 101, 102], [120, 122, 124], ""),
    ([100, 111, 112], [100, 101, 102], [100, 111, 112], "slower, not at its best"),
    ([110, 101, 112], [90, 111, 112], [110, 101, 112], "slower at its best only"),
    ([90, 91, 92], [100, 101, 102], [90, 91, 92], ""),
])
def test_only_a_difference_beyond_noise_is_slower(commits, this, that, again, word):
    samples = {name: [(value, value) for value in values]
               for name, values in (("this", this), ("that", that), ("again", again))}
    assert commits.verdict(samples)[2] == word


def test_cases_of_a_comparison_are_chosen_by_label(commits):
    assert list(commits.runs_of(4, "allreduce 4 KiB private")) == [(4, False, {"allreduce": [4096]})]
    everything = list(commits.runs_of(8, ""))
    assert [(ranks, shared, len(wanted)) for ranks, shared, wanted in everything] == [(8, False, 9), (8, True, 9)]
    assert everything[0][2]["allreduce"] == [8, 4096, 65536, 1 << 20, 64 << 20]
