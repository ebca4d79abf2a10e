"""zero.shard(state_directory=…): the optimizer's state in a file, which changes no result."""
import copy
import pathlib

import pytest
import torch
from zero_training import OPTIMIZERS, STEPS, Network, equal, go_back, goes_on, values

from torch_tutti import zero

WIDTH = 64


def sharded(name, **options):
    kind, settings = OPTIMIZERS[name]
    model = Network(WIDTH)
    return zero.shard(model, kind(model.parameters(), **settings), **options)


def run_training(world, folder, name, options):
    """A run with its state in a file equals one with its state in memory, and their states have the same values."""
    in_memory, in_file = sharded(name, **options), sharded(name, state_directory=folder, **options)
    for step in range(STEPS):
        for model, optimizer in (in_memory, in_file):
            go_back(model, optimizer, step, world.rank)
            optimizer.clip_grad_norm_(0.5)
            optimizer.step()
    for _, optimizer in (in_memory, in_file):
        optimizer.wait()
    with in_memory[1].whole(), in_file[1].whole():
        equal(world, values(in_file[0]), values(in_memory[0]))
    mine, theirs = in_file[1].state_dict(), in_memory[1].state_dict()
    torch.testing.assert_close(mine["state"], theirs["state"], rtol=0, atol=0)
    memory, file = in_memory[1].report(), in_file[1].report()
    assert memory["state_bytes"] and not memory["state_file_bytes"]
    assert not file["state_bytes"] and file["state_file_bytes"] >= memory["state_bytes"]


@pytest.mark.parametrize("name, options", [
    ("adamw", {"stage": 3}), ("adam", {"stage": 3, "hosts": "sharded"}), ("momentum", {"stage": 2, "ahead": True}),
    ("adamw", {"stage": 0}), ("adamw", {"stage": 3, "precision": "bf16"})])
def test_results_are_those_of_a_state_in_memory(shared, tmp_path, name, options):
    shared(2).run(run_training, str(tmp_path), name, options)
    assert not list(tmp_path.iterdir()), "the files have no names"


def run_resume(world, folder):
    """A run that ended continues from a checkpoint, with a new file."""
    model, optimizer = sharded("adamw", state_directory=folder)
    for step in range(3):
        go_back(model, optimizer, step, world.rank)
        optimizer.step()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = goes_on(world, model, optimizer)
    del model, optimizer
    other, again = sharded("adamw", state_directory=folder)
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    equal(world, goes_on(world, other, again), expected)


def test_resumes_from_a_checkpoint(shared, tmp_path):
    shared(2).run(run_resume, str(tmp_path))


# ---- refusals ----
def run_refusal(world, name, folder_of_rank, error, text, other_text):
    with pytest.raises(error, match=text if folder_of_rank[world.rank] else other_text):
        sharded(name, state_directory=folder_of_rank[world.rank] or None)


def test_a_missing_directory_is_an_error_on_all_ranks(shared, tmp_path):
    missing = str(tmp_path / "missing")
    text = "optimizer state cannot be in a file in .*missing: a file cannot be created: No such file"
    shared(2).run(run_refusal, "adamw", [missing, ""], ValueError, text, "another rank's model was refused")


@pytest.mark.skipif(not pathlib.Path("/dev/shm").is_mount(), reason="no tmpfs at /dev/shm")
def test_a_file_in_memory_is_refused(shared):
    shared(2).run(run_refusal, "adamw", ["/dev/shm"] * 2, ValueError, "in memory, because this is a tmpfs", "")


def test_an_optimizer_in_python_is_refused(shared, tmp_path):
    shared(2).run(run_refusal, "none", [str(tmp_path)] * 2, NotImplementedError, "optimizer that runs in C", "")
