"""Tests of the command `tutti plan`: its output, its errors, and links that it measures."""
import json
import subprocess
import sys

import pytest
from program_start import run_python, run_ranks, succeeded

from torch_tutti._planning.communication import DEVICES
from torch_tutti.cli import main

# ---- the command ----
PLAN = ["plan", "--model", "llama-70b", "--gpus", "64", "--hosts", "8", "--link", "400gbit", "--memory", "80GB"]


def test_command_prints_and_draws_a_ranking(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn = tmp_path / "plan.png"
    assert main([*PLAN, "--top", "3", "--picture", str(drawn)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "68.98 B parameters; bf16, AdamW" and "64 devices on 8 hosts: 989 TFLOP/s" in lines[1]
    assert "between hosts 50 GB/s" in lines[2] and lines[6].split()[:5] == ["tp", "pp", "dp", "ep", "zero"]
    assert lines[7].endswith("best") and lines[10] == "others:" and "out of memory by" in lines[11]
    assert any(line.startswith("recommended: ") for line in lines) and drawn.stat().st_size > 10_000
    assert any(line.startswith("efficiency: MFU ") for line in lines)


def test_json_has_the_ranking(capsys):
    assert main([*PLAN, "--top", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["version"]) == ("tutti plan", 1)
    assert found["cluster"]["across"] == {"speed": 50e9, "latency": 15e-6} and len(found["strategies"]) == 3
    for one in found["strategies"] + found["others"]:
        assert one["seconds"] == pytest.approx(sum(one[name] for name in (
            "compute", "bubble", "tensor", "experts", "pipeline", "data", "update")))
        assert one["tp"] * one["pp"] * one["dp"] == 64 and one["memory"] == one["kept"] + one["activations"]
    assert found["strategies"][0]["reason"] == "best" and found["roofline"]
    assert main(["plan", "--parameters", "350M", "--layers", "24", "--width", "1024", "--heads", "16", "--gpus", "4",
                 "--device", "a100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["flops"] == 312e12


def test_given_degrees_are_kept(capsys):
    assert main([*PLAN, "--tp", "8", "--batch", "4", "--schedule", "zb-h1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "schedule zb-h1" in lines[3] and all(line.split()[0] == "8" for line in lines[7:9])


REFUSED = [
    (["--model", "llama-7b", "--gpus", "64", "--hosts", "3", "--link", "1GB/s"],
     "64 ranks are not the same number on each of 3 hosts"),
    (["--model", "gpt3-175b", "--gpus", "8", "--memory", "80GB"], "nothing fits 80.0 GB of a device; the least is "),
    (["--model", "llama-7b", "--gpus", "7", "--tp", "3"],
     "no division fits 7 devices with --tp 3: tp divides the model's 32"),
    (["--model", "llama-7b", "--gpus", "8", "--zero", "3", "--pp", "2"], "its stages 2 and 3 exclude a pipeline"),
    (["--model", "llama-7b", "--gpus", "8", "--batch-tokens", "2000"], "the next possible number is 2048"),
    (["--model", "llama-7b", "--gpus", "8", "--top", "3", "--compress", "int8"],
     "--compress applies only to the table of ZeRO"),
    (["--model", "llama-7b", "--gpus", "8", "--measure", "--link", "1GB/s"], "leave out --link and --local-link"),
    (["--gpus", "8", "--memory", "80GB"], "give --model"),
    (["--model", "llama-7b", "--gpus", str(10 ** 30), "--top", "3"], "a plan has at most 1048576"),
    (["--model", "llama-7b", "--gpus", "8", "--batch-tokens", str(10 ** 30)], "--batch-tokens is more than"),
    (["--parameters", "1B", "--layers", str(10 ** 400), "--width", "8", "--heads", "1", "--gpus", "8", "--json"],
     "--layers is more than"),
]


@pytest.mark.parametrize("words, text", REFUSED)
def test_impossible_plans_are_refused(capsys, words, text):
    assert main(["plan", *words]) == 1
    assert text in capsys.readouterr().err


NOT_UNDERSTOOD = [
    ("--link", "400", "'400' is not a speed of a link, such as 400gbit"),
    ("--link", "400gbit,x", "'x' is not a latency"),
    ("--memory", "80", "'80' is not an amount of memory, such as 80GB"),
    ("--memory", "0GB", "is not an amount of memory"),
    ("--flops", "fast", "'fast' is not a speed of a device"), ("--efficiency", "1.5", "not a share in (0, 1]"),
    ("--batch-tokens", "4e6", "'4e6' is not a number of tokens"), ("--picture", "plan.gif", "must end in .png"),
    ("--tp", "0", "is not a whole number of at least 1"), ("--zero", "4", "invalid choice"),
    ("--device", "b300", "invalid choice"),
    ("--schedule", "dualpipe", "invalid choice"), ("--parameters", "9" * 400 + "B", "is not a number of parameters")]


@pytest.mark.parametrize("option, value, text", NOT_UNDERSTOOD)
def test_unreadable_options_are_refused(capsys, option, value, text):
    with pytest.raises(SystemExit):
        main([*PLAN, option, value])
    assert text in capsys.readouterr().err


def test_picture_without_matplotlib_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*PLAN, "--picture", "plan.png"]) == 1
    assert "a picture needs matplotlib: pip install matplotlib" in capsys.readouterr().err


def test_planning_needs_no_torch():
    code = f"import sys; from torch_tutti.cli import main; main({PLAN!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


# ---- measured links ----
TUTTI = ("-m", "torch_tutti")
MEASURED = ("plan", "--model", "llama-7b", "--gpus", "8", "--device", "cpu", "--memory", "200GB", "--measure", "--json")


def cluster_of(ended):
    return json.loads(succeeded(ended))["cluster"]


def test_command_measures_links_by_its_own_ranks():
    found, usual = cluster_of(run_python(*TUTTI, *MEASURED, TUTTI_HOSTS=None)), DEVICES["cpu"]
    assert found["local"]["speed"] > 0 and found["local"] != usual.local._asdict()


@pytest.mark.one_host("the test simulates hosts itself")
def test_links_are_measured_under_torchrun():
    found, usual = cluster_of(run_ranks(2, *TUTTI, *MEASURED, "--hosts", "2", TUTTI_HOSTS="2")), DEVICES["cpu"]
    assert found["local"] == usual.local._asdict() and found["across"]["latency"] > 0
    assert found["across"]["speed"] not in (0, 4 * usual.across.speed)


def test_measuring_with_one_rank_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main([*MEASURED]) == 1
    assert "--measure needs two ranks or more, and torchrun has started one" in capsys.readouterr().err


def test_link_is_fitted_through_times():
    """An all-reduce of 4 ranks takes 4 messages, and sends its bytes 1.5 times."""
    from torch_tutti._planning.measure import link_through
    times = [(n, (4 * 5e-6 + 1.5 * n / 2e9) * 1e6) for n in (1 << 12, 1 << 16, 1 << 20)]
    assert tuple(link_through(times, 4)) == pytest.approx((2e9, 5e-6))
    worst = link_through([(1 << 12, 30.0), (1 << 16, 20.0), (1 << 20, 10.0)], 2)
    assert worst.speed > 0 and worst.latency == pytest.approx(15e-6)
