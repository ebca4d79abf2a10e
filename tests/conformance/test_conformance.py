"""Tests of the runner of torch's tests, on small cases of our own: it has an outcome for every way to end, leaves no
process behind, runs no case twice, and shares the cases with other runners."""
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import time
import types
import unittest

import pytest

from conformance import cases, known_failures, report, results, ways
from conformance.results import FAILED, PASSED, SKIPPED, Result, Results
from conformance.runner import Runner
from conformance.skips import skip_lines

WAY = ways.WAYS["gloo"]
LIMIT_S = 60
# A spawned process has one thread, even if this one has more.
fresh = multiprocessing.get_context("spawn")


class Cases(unittest.TestCase):
    # The runner uses this class; pytest must not collect it.
    __test__ = False

    def test_dies(self):
        os._exit(3)

    def test_fails(self):
        self.assertEqual("ours", "theirs")

    def test_hangs(self):
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LIMIT_S})"])
        with open(os.environ["CHILD"], "w") as file:
            file.write(str(child.pid))
        time.sleep(LIMIT_S)

    def test_passes(self):
        with open(os.environ["RUNS"], "a") as file:
            file.write("once ")

    @unittest.skip("a reason")
    def test_skips(self):
        pass


def run(folder, environment, pattern="*", again=False):
    os.environ.update(environment, **{ways.MODE_VARIABLE: "fork"})
    suite = types.SimpleNamespace(Cases=Cases, SKIP_LINES={"test_skips": [(7, "another reason"), (8, "a reason")]})
    Runner(suite, WAY, folder, pattern, jobs=2, again=again, limit_s=3).run()


def run_elsewhere(folder, pattern="*", again=False):
    """Runs cases by a runner in a new process, and returns the stored results."""
    environment = {"CHILD": str(folder / "child"), "RUNS": str(folder / "runs")}
    process = fresh.Process(target=run, args=(folder, environment, pattern, again))
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0
    return report.read(folder, WAY)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    return folder, run_elsewhere(folder)


def test_every_end_has_its_outcome(ended):
    _, found = ended
    assert {case: result.outcome for case, result in found.items()} == {
        "test_dies": FAILED, "test_fails": FAILED, "test_hangs": FAILED, "test_passes": PASSED, "test_skips": SKIPPED}
    assert "ended with status 768" in found["test_dies"].detail
    assert found["test_fails"].reason == "AssertionError: 'ours' != 'theirs'"
    assert "took longer than 3 s" in found["test_hangs"].detail
    assert (found["test_skips"].reason, found["test_skips"].lines) == ("a reason", [8])


def test_nothing_is_left_of_a_case_that_hangs(ended):
    folder, _ = ended
    child = int((folder / "child").read_text())
    until = time.monotonic() + LIMIT_S
    while is_alive(child):
        assert time.monotonic() < until, f"process {child} is still there"
        time.sleep(0.05)


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_known_cases_run_again_only_when_asked_or_changed(tmp_path, monkeypatch):
    def runs():
        return (tmp_path / "runs").read_text().count("once")

    run_elsewhere(tmp_path, "test_passes")
    run_elsewhere(tmp_path, "test_passes")
    assert runs() == 1
    run_elsewhere(tmp_path, "test_passes", again=True)
    assert runs() == 2
    store = Results(tmp_path, WAY.name)
    store.write(Result(**{**vars(store.read("test_passes")), "basis": "of another build"}))
    run_elsewhere(tmp_path, "test_passes")
    assert runs() == 3


def hold(folder, pipe):
    store = Results(folder, WAY.name)
    pipe.send(store.claim("test_passes"))
    pipe.recv()
    store.write(Result("test_passes", WAY.name, FAILED, "written by the other", basis=results.basis(WAY.runs)))


def test_runners_share_the_work(tmp_path):
    """A runner does not run a case that another one has claimed, but waits for it and takes its result. The claim ends
    with the process that made it."""
    ours, theirs = fresh.Pipe()
    other = fresh.Process(target=hold, args=(tmp_path, theirs))
    other.start()
    assert ours.poll(LIMIT_S) and ours.recv() is True
    assert not Results(tmp_path, WAY.name).claim("test_passes")
    waiting = fresh.Process(target=run, args=(tmp_path, {"RUNS": str(tmp_path / "runs")}, "test_pass*"))
    waiting.start()
    waiting.join(2)
    assert waiting.is_alive(), "it did not wait for the other"
    ours.send("finish")
    for process in (other, waiting):
        process.join(LIMIT_S)
        assert process.exitcode == 0
    assert Results(tmp_path, WAY.name).read("test_passes").reason == "written by the other"
    assert not (tmp_path / "runs").exists()
    assert Results(tmp_path, WAY.name).claim("test_passes")


def test_library_is_part_of_the_basis():
    assert results.basis("tutti") != results.basis("gloo")


TRACES = """RuntimeError: Process 2 exited with error code 10 and exception:
Traceback (most recent call last):
  File "/x/distributed_test.py", line 5, in test_a
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/common_distributed.py", line 7, in run_test
  File "/x/distributed_test.py", line 899, in test_a
  File "/x/distributed_test.py", line 850, in _test_a
torch_tutti.exceptions.PeerError: rank 1 is gone

Process 3 exited with error code 10 and exception:
ValueError: last
"""


def test_reason_is_what_ended_the_first_rank():
    assert cases.what_failed(TRACES) == ("rank 2: torch_tutti.exceptions.PeerError: rank 1 is gone", [899, 850])


MODULE = '''
import sys, unittest
from collections import namedtuple
TEST_SKIPS = {"small": namedtuple("Skip", "exit_code message")(73, "small world")}
def skip_small(function):
    return lambda self: sys.exit(73)
class Base(unittest.TestCase):
    @unittest.skipIf(False, "never")
    @skip_small
    @unittest.skip("always")
    def test_a(self):
        raise AssertionError("it ran")
    @unittest.skipUnless(True, "never")
    def test_b(self):
        pass
'''


def test_lines_of_skips_are_found(tmp_path):
    (tmp_path / "skipping_tests.py").write_text(MODULE)
    spec = importlib.util.spec_from_file_location("skipping_tests", tmp_path / "skipping_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert skip_lines(module, module.Base) == {"test_a": [(9, "small world"), (10, "always")]}


def summary(folder, capsys, **outcomes):
    """Stores these outcomes. Returns the status and the text of their summary."""
    store = Results(folder, "tutti")
    for case, outcome in outcomes.items():
        store.write(Result(case, "tutti", outcome, "a text" if outcome != PASSED else ""))
    status = report.print_summary(folder, [ways.WAYS["tutti"]], "*")
    return status, capsys.readouterr().out


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(report, "KNOWN", {("tutti", "test_known"): "for a reason"})


def test_only_known_failures_are_forgiven(tmp_path, capsys, known):
    status, text = summary(tmp_path, capsys, test_known=FAILED, test_other=PASSED)
    assert status == 0 and "conformance: 1 passed, 0 skipped, 1 failed as known, 0 failed otherwise" in text
    status, text = summary(tmp_path, capsys, test_other=FAILED)
    assert status == 1 and "failed: test_other: a text" in text and "1 failed otherwise" in text


def test_known_failure_that_passes_is_reported(tmp_path, capsys, known):
    status, text = summary(tmp_path, capsys, test_known=PASSED)
    assert status == 0 and "known to fail, but passed: test_known" in text


def test_summary_without_cases_is_a_failure(tmp_path, capsys):
    assert summary(tmp_path, capsys)[0] == 1


def test_cases_that_end_differently_over_hosts_are_reported(tmp_path, capsys):
    one, several, way = tmp_path / "one", tmp_path / "several", ways.WAYS["tutti"]
    for folder in (one, several):
        Results(folder, "tutti").write(Result("test_a", "tutti", PASSED))
    assert report.print_differences(one, several, [way], "*") == 0
    assert "hosts: 1 of 1 cases end as on one host" in capsys.readouterr().out
    Results(one, "tutti").write(Result("test_b", "tutti", PASSED))
    Results(several, "tutti").write(Result("test_b", "tutti", FAILED, "a text"))
    Results(one, "tutti").write(Result("test_c", "tutti", SKIPPED))
    assert report.print_differences(one, several, [way], "*") == 1
    text = capsys.readouterr().out
    assert "test_b: passed on one host, failed over several: a text" in text
    assert "test_c: skipped on one host, not run over several" in text and "hosts: 1 of 3 cases" in text


def test_known_failures_name_cases_of_torch():
    spec = importlib.util.find_spec("torch")
    if spec is None:
        pytest.skip("torch is not installed")
    text = open(os.path.join(os.path.dirname(spec.origin), os.path.relpath(report.SOURCE, "torch"))).read()
    assert all(way in ways.WAYS and f"def {case}(" in text for way, case in known_failures.KNOWN)
