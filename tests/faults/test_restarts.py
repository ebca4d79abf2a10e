"""Tests of a job whose rank dies: it forms a group again through the same store. Restarts by restart_storm.py, and by
torchrun with both of its rendezvous."""
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_tutti")
HERE = Path(__file__).resolve().parent
RESTARTS = int(os.environ.get("STORM_RESTARTS", "12"))
PROGRAM = """
import os
import torch
import torch.distributed as dist

attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
dist.init_process_group("tutti")
total = torch.ones(1)
dist.all_reduce(total)
if attempt == 0 and rank == int(os.environ["VICTIM"]):
    os.kill(os.getpid(), 9)
os.write(1, f"rank {rank} in attempt {attempt}: {total.item():.0f}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_killed_ranks_join_again_through_one_store(store):
    command = [sys.executable, str(HERE / "restart_storm.py"), "--restarts", str(RESTARTS), "--store", store]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120 + 10 * RESTARTS)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{RESTARTS} recovered" in run.stdout


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_ranks_restarted_by_torchrun_join_again(tmp_path, rendezvous):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    where = ["--standalone"] if rendezvous == "c10d" else ["--master-port", str(free_port())]
    command = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", "2",
               "--max-restarts", "1", "--monitor-interval", "0.1", str(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VICTIM": "0" if rendezvous == "c10d" else "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    second = [line for line in sorted(run.stdout.splitlines()) if "attempt 1" in line]
    assert second == ["rank 0 in attempt 1: 2", "rank 1 in attempt 1: 2"]
