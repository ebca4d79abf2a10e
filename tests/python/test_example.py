"""Tests of examples/train_gpt.py on a tiny model: it goes on from a checkpoint as if it had not stopped, agrees with
gloo, and ends cleanly on Ctrl-C. In two tests the program itself starts torchrun; the others fork its ranks where torch
is loaded already."""
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from program_start import run_python, run_ranks, succeeded

ROOT = Path(__file__).resolve().parents[2]
TINY = "--steps 12 --layers 1 --width 32 --heads 2 --context 16 --batch 2 --sample 20".split()


def installed():
    try:
        return bool(importlib.metadata.version("torch-tutti"))
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not installed(), reason="torch-tutti is not installed")


SCRIPT = ROOT / "examples/train_gpt.py"
sys.path.append(str(SCRIPT.parent))
import train_gpt  # noqa: E402


def test_network_policy_admits_the_ports_of_the_job():
    text = (ROOT / "examples/kubernetes.yaml").read_text()
    admitted = re.findall(r"\{protocol: TCP, port: (\d+)(?:, endPort: (\d+))?\}", text)
    assert admitted == [(re.search(r"--master-port (\d+)", text)[1], ""),
                        re.search(r"TUTTI_PORTS, value: (\d+)-(\d+)", text).groups()]
    assert text.count("TCP") == 2


def options(*arguments):
    return [*TINY, "--data", str(ROOT / "include/tutti.h"), *map(str, arguments)]


def train(*arguments):
    """Runs as many ranks as the program would start itself. Returns their output."""
    words = options(*arguments)
    return succeeded(run_ranks(train_gpt.parse(words).ranks, SCRIPT, *words))


def test_resumed_run_has_the_same_losses(tmp_path):
    train("--checkpoint", tmp_path / "at8", "--every", 8, "--losses", tmp_path / "whole")
    shown = train("--resume", tmp_path / "at8", "--losses", tmp_path / "resumed")
    whole, resumed = (torch.load(tmp_path / name)["tutti"] for name in ("whole", "resumed"))
    assert " 12/12" in shown and " 8/12" not in shown
    assert len(whole) == 12 and whole == resumed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["at8", "resumed", "whole"]


def test_losses_equal_those_on_gloo():
    """The program itself starts torchrun."""
    shown = succeeded(run_python(SCRIPT, *options("--compare")))
    assert "differ by at most 0 " in shown and "the same bits" in shown and "DIFFERENT" not in shown


def test_zero_goes_on_where_data_parallel_training_stopped(tmp_path):
    """ZeRO with one copy of the parameters goes on from a checkpoint of data parallelism. --compare finds the losses of
    gloo."""
    train("--checkpoint", tmp_path / "at8", "--every", 8, "--losses", tmp_path / "whole")
    train("--zero", 3, "--resume", tmp_path / "at8", "--checkpoint", tmp_path / "at12", "--every", 12,
          "--losses", tmp_path / "zero")
    whole, zero = (torch.load(tmp_path / name)["tutti"] for name in ("whole", "zero"))
    torch.testing.assert_close(zero, whole, rtol=0, atol=1e-5)
    assert zero[:8] == whole[:8]
    assert " 14/14" in train("--resume", tmp_path / "at12", "--steps", 14)
    assert "DIFFERENT" not in train("--zero", 2, "--compare")
    assert "identical" in train("--zero", 3, "--precision", "bf16")


def test_compressed_training_resumes_with_its_residuals(tmp_path):
    """A checkpoint has the residuals of compression, with DistributedDataParallel and with ZeRO, so the resumed losses
    agree."""
    for way in ([], ["--zero", 2]):
        paths = [tmp_path / f"{name}{len(way)}" for name in ("at8", "whole", "resumed")]
        packed = [*way, "--compress", "topk", "--share", 0.1]
        train(*packed, "--checkpoint", paths[0], "--every", 8, "--losses", paths[1])
        shown = train(*packed, "--resume", paths[0], "--losses", paths[2])
        whole, resumed = (torch.load(path)["tutti"] for path in paths[1:])
        torch.testing.assert_close(resumed, whole, rtol=0, atol=0.01)
        assert resumed[:8] == whole[:8] and "identical" in shown


def processes_of(run):
    """Returns the processes whose environment has the mark of this run."""
    mark, found = f"TEST_RUN={run}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_interrupt_leaves_no_process():
    mark = f"of {os.getpid()}"
    run = subprocess.Popen([sys.executable, SCRIPT, *options("--steps", 10**6)], env=dict(os.environ, TEST_RUN=mark),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        assert "parameters" in run.stdout.readline()
        time.sleep(0.5)
        # A terminal does this on Ctrl-C.
        os.killpg(run.pid, signal.SIGINT)
        rest, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130 and "Traceback" not in rest, rest
    assert not processes_of(mark)


# ---- divided among the ranks of a grid ----
SMALL = "--steps 20 --layers 4 --heads 4 --batch 16".split()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Returns the losses of one rank, with MLPs and with experts."""
    folder = tmp_path_factory.mktemp("one")
    train(*SMALL, "--tp", 1, "--losses", folder / "mlp")
    train(*SMALL, "--tp", 1, "--experts", 8, "--losses", folder / "experts")
    return {name: torch.load(folder / name)["tutti"] for name in ("mlp", "experts")}


@pytest.mark.parametrize("division", ["--tp 2 --pp 2 --zero 3 --schedule zb-v", "--ep 2 --pp 2 --zero 2",
                                      "--ep 2 --tp 2"])
def test_a_divided_model_trains_as_one_process(one_process, tmp_path, division):
    shown = train(*SMALL, *division.split(), "--losses", tmp_path / "losses")
    expected = one_process["experts" if "--ep" in division else "mlp"]
    assert torch.load(tmp_path / "losses")["tutti"] == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < expected[0] - 0.05 and "loss on unseen text" in shown


@pytest.mark.parametrize("wrong, text", [
    ("--tp 3", "--tp 3 does not divide 2 heads"),
    ("--dp 2 --batch 3", "--batch 3 sequences are not a multiple of 2 ranks of dp x 1 microbatches"),
    ("--experts 8", "--experts and --microbatches need --tp, --pp, --dp or --ep"),
    ("--tp 2 --compare", "work only with tutti, the CPU and adamw")])
def test_impossible_divisions_are_refused(capsys, wrong, text):
    with pytest.raises(SystemExit):
        train_gpt.parse([*TINY, *wrong.split()])
    assert text in capsys.readouterr().err
