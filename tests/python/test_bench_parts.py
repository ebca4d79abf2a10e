"""script/bench in parts: an interrupted run continues with what is missing, and no part takes longer than its limit."""
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from test_bench_page import NEAR, ROOT, module_at

THIS = {"commit": "a1", "changes": "", "machine": {"name": "A", "cores": 2}, "settings": {}}


@pytest.fixture(scope="module")
def parts():
    return module_at("tests/bench/parts.py")


@pytest.fixture(scope="module")
def compare():
    return module_at("tests/bench/peers/compare.py")


def writes(folder, name, status=0):
    return ["sh", "-c", f"echo x >>{folder / name}; exit {status}"]


def run_all(parts, folder, command_of, identity=THIS, again=False, named=()):
    """Runs parts as main does. Returns the parts that were run."""
    run, asked = parts.Run(folder, identity, again), []
    wanted = parts.chosen(run, list(named))

    def command(part):
        asked.append(part)
        return command_of(part)
    late = parts.run_parts(run, wanted, command, dict.fromkeys(parts.FILES, 60))
    return asked, late


def interrupted_at(part, folder, files):
    """Returns command_of for run_all: this part writes its first file and is interrupted."""
    def command_of(name):
        if name == part:
            (folder / files[part][0]).write_text("some rows")
            raise KeyboardInterrupt
        return writes(folder, (files[name] or ["page.txt"])[0])
    return command_of


@pytest.fixture
def interrupted(parts, tmp_path):
    """A folder of results whose run was interrupted in the part before the page."""
    with pytest.raises(KeyboardInterrupt):
        run_all(parts, tmp_path, interrupted_at("peers", tmp_path, parts.FILES))
    return tmp_path


def test_an_interrupted_run_continues_with_the_part_and_its_rows(parts, interrupted):
    seen = {}

    def command_of(part):
        seen[part] = [name for name in parts.FILES[part] if (interrupted / name).exists()]
        return ["true"]
    asked, late = run_all(parts, interrupted, command_of)
    assert asked == ["peers", "page"] and not late and seen["peers"] == ["peers.json"]
    assert (interrupted / "core.json").read_text() == "x\n"


@pytest.mark.parametrize("change", [{"commit": "b2"}, {"changes": "5f"}, {"machine": {"name": "B", "cores": 2}},
                                    {"settings": {"TUTTI_SPINS": "1"}}])
def test_a_run_of_another_commit_or_machine_starts_over(parts, interrupted, change):
    seen = []
    asked, _ = run_all(parts, interrupted, lambda part: seen.append(sorted(os.listdir(interrupted))) or ["true"],
                       {**THIS, **change})
    assert asked == list(parts.LIMITS_S) and seen[0] == ["run.json"]


def test_again_starts_over(parts, interrupted):
    asked, _ = run_all(parts, interrupted, lambda part: ["true"], again=True)
    assert asked == list(parts.LIMITS_S) and not (interrupted / "core.json").exists()


def test_a_run_after_a_finished_one_starts_over(parts, tmp_path):
    for _ in range(2):
        asked, _ = run_all(parts, tmp_path, lambda part: ["true"])
        assert asked == list(parts.LIMITS_S)


def test_a_named_part_is_measured_again_if_it_is_finished_and_continues_otherwise(parts, interrupted):
    seen = {}

    def command_of(part):
        seen[part] = (interrupted / parts.FILES[part][0]).exists()
        return ["true"]
    asked, _ = run_all(parts, interrupted, command_of, named=["core", "peers"])
    assert asked == ["core", "peers"] and seen == {"core": False, "peers": True}


def test_rows_of_another_commit_do_not_stay_in_a_named_part(parts, interrupted):
    seen = []
    run_all(parts, interrupted, lambda part: seen.append((interrupted / "peers.json").exists()) or ["true"],
            {**THIS, "commit": "b2"}, named=["peers"])
    assert seen == [False]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"begun": []}'])
def test_a_broken_state_counts_as_no_run(parts, interrupted, text):
    (interrupted / "run.json").write_text(text)
    asked, _ = run_all(parts, interrupted, lambda part: ["true"])
    assert asked == list(parts.LIMITS_S)


def test_a_part_that_fails_is_named_and_not_finished(parts, tmp_path):
    with pytest.raises(SystemExit, match="the part growth failed with 3; .* it continues with this part"):
        run_all(parts, tmp_path, lambda part: writes(tmp_path, parts.FILES[part][0], 3 * (part == "growth")))
    assert json.loads((tmp_path / "run.json").read_text())["finished"] == []


def test_a_part_that_takes_too_long_is_stopped_and_the_page_waits(parts, tmp_path, capfd):
    run = parts.Run(tmp_path, THIS)
    limits = dict.fromkeys(parts.FILES, 60) | {"growth": 0.1}
    late = parts.run_parts(run, ["growth", "call", "page"],
                           lambda part: ["sleep", "60"] if part == "growth" else ["true"], limits)
    assert late == ["growth"] and run.finished == ["call"]
    assert "growth: stopped after 0 s; its finished rows are kept" in capfd.readouterr().err


def test_a_part_may_take_what_those_before_it_left_over(parts, tmp_path, monkeypatch):
    now, given = [0.0], {}

    def run_limited(command, limit_s):
        given[command] = limit_s
        now[0] += 10
        return 0
    monkeypatch.setattr(parts, "run_limited", run_limited)
    monkeypatch.setattr(parts.time, "monotonic", lambda: now[0])
    parts.run_parts(parts.Run(tmp_path, THIS), ["growth", "call", "page"], str, {"growth": 40, "call": 30, "page": 5})
    assert given == {"growth": 40, "call": 60, "page": 55}


def children_of(session):
    stats = (path.read_text() for path in ROOT.__class__("/proc").glob("[0-9]*/stat") if path.exists())
    return [text for text in stats if text.rpartition(")")[2].split()[3] == str(session)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_processes_of_the_part(parts, tmp_path, number):
    """The part starts a process that ignores SIGTERM and SIGINT, and names its session when that process is there."""
    script = (f"import sys; sys.path.insert(0, {str(ROOT / 'tests/bench')!r}); import parts; "
              "parts.GRACE_S = 0.1; "
              "parts.run_limited(['sh', '-c', 'trap \"\" TERM INT; sleep 60 & echo $$; wait'], 60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        session = int(process.stdout.readline())
        process.send_signal(number)
        process.wait(30)
    until = time.monotonic() + 10
    while children_of(session) and time.monotonic() < until:
        time.sleep(0.01)
    assert children_of(session) == []


def test_interruption_between_parts_ends_the_program(parts):
    with pytest.raises(SystemExit) as ended:
        parts.interrupt(signal.SIGTERM, None)
    assert ended.value.code == 128 + signal.SIGTERM


def test_all_parts_together_take_25_minutes_at_most(parts):
    assert sum(parts.LIMITS_S.values()) <= 25 * 60


def test_every_part_is_a_function_of_the_script(parts):
    script = (ROOT / "script/bench").read_text()
    functions = set(re.findall(r"^(\w+)\(\) \{", script, re.MULTILINE))
    assert set(parts.FILES) == {*parts.LIMITS_S, *parts.LIMITS_OF_OTHERS_S} == functions - {"build"}
    for part, files in parts.FILES.items():
        body = re.search(rf"^{part}\(\) \{{.*?\}}$", script, re.MULTILINE | re.DOTALL)[0]
        assert all(f"$results/{name}" in body for name in files)


def test_a_changed_file_of_the_checkout_is_another_run(parts, monkeypatch):
    outputs = {"rev-parse": b"a1\n", "diff": b""}
    monkeypatch.setattr(parts, "output_of", lambda *command: outputs[command[1]])
    before = parts.identity_of_run()
    outputs["diff"] = b"+int x;\n"
    assert before["commit"] == "a1" and parts.identity_of_run()["changes"] != before["changes"] == ""


# ---- runs of the comparison with MPI ----
def test_an_interrupted_comparison_continues_with_the_next_run(compare, monkeypatch, tmp_path):
    asked, started, wanted = [], {"tutti": [], "MPICH": []}, [("allreduce", 8), ("allreduce", 512)]

    def measured(library, command, missing):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(library)
        return {key: NEAR for key in missing}

    monkeypatch.setattr(compare, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        compare.measure(started, wanted, 2, 0, runs=compare.Runs(tmp_path / "runs.json", "this"))
    del asked[1:]
    found = compare.measure(started, wanted, 2, 0, runs=compare.Runs(tmp_path / "runs.json", "this"))
    assert asked == ["tutti", "MPICH"] and [row["times"] for row in found] == [{"tutti": 1.0, "MPICH": 1.0}] * 2
    assert len(compare.Runs(tmp_path / "runs.json", "this").runs) == 4
    assert compare.Runs(tmp_path / "runs.json", "another request").runs == []


def test_no_round_begins_after_the_budget(compare, monkeypatch):
    asked = []

    def measured(library, command, missing):
        asked.append(library)
        return dict.fromkeys(missing, NEAR)
    monkeypatch.setattr(compare, "measured", measured)
    compare.measure({"tutti": []}, [("allreduce", 8)], 5, 6, budget_s=-1)
    assert asked == ["tutti"]
