"""Tests of random programs of collectives and messages with CUDA tensors, as tests/python/test_properties.py on CPU
tensors: with several streams, tensors that are freed or overwritten early, and kernels between operations. The results
are, to the last bit, those that one process computes from the same inputs.

A case is one operation, checked on all ranks of its group. `--cases 20000` runs more of them than continuous
integration does, `--first-seed 7` others. A failing program is shrunk and printed with a line that runs it again.
"""
import math

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install hypothesis")

import gpu_ranks
import random_programs
import stream_programs
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(),
                                reason="needs a GPU: torch.cuda.is_available() is False on this machine")
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# Ranks, and settings of the ranks.
SETTINGS = {
    "one rank": (1, {"FAKE_CUDA_DELAY": "immediate"}),
    "immediate": (2, {"FAKE_CUDA_DELAY": "immediate"}),
    "delayed": (2, {"FAKE_CUDA_DELAY": "delayed", "FAKE_CUDA_DELAY_US": "300"}),
    "shuffled": (2, {"FAKE_CUDA_DELAY": "shuffled"}),
    "expandable segments": (2, EXPANDABLE),
    "small slots": (2, {"TUTTI_CUDA_SLOT_BYTES": "65536"}),
    "through the host": (2, {"TUTTI_CUDA": "0"}),
    "four ranks": (4, {"FAKE_CUDA_DELAY": "shuffled"}),
    "four ranks with expandable segments": (4, EXPANDABLE),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_random_programs_give_the_results_of_the_model(setting, request, tmp_path_factory):
    size, environment = SETTINGS[setting]
    cases = math.ceil((request.config.getoption("cases") or 540) / len(SETTINGS))
    before = "".join(f"{name}={value} " for name, value in environment.items())
    again, hung = f"{before}script/test-cuda -- python tests/gpu/stream_programs.py {size}", {}
    with gpu_ranks.kept(tmp_path_factory, **environment) as of_size:
        done = random_programs.rounds(
            request.config.getoption("first_seed"), cases, lambda program:
            random_programs.check(lambda: of_size(size), again, hung, program, stream_programs.carry_out),
            times=3, examples=min(100, math.ceil(cases / 10)))
    print(f"{len(done)} cases on {size} ranks")
