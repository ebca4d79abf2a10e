"""Tests of DeepSpeed on tutti: ZeRO-0 to ZeRO-3, checkpoints, experts, a pipeline and split sequences give the results
of DeepSpeed on gloo and of one process."""
import pytest
import torch
from launching import needs_frameworks, on_both, same_on_both

pytestmark = needs_frameworks
STAGES = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return on_both("deepspeed_zero.py", tmp_path_factory.mktemp("deepspeed"))


@pytest.mark.parametrize("stage", STAGES)
def test_zero_trains_as_one_process_would(trained, stage):
    parameters = same_on_both(trained, f"ZeRO-{stage}")
    torch.testing.assert_close(parameters, trained[0][0]["in one process"])


@pytest.mark.parametrize("stage", STAGES)
def test_zero_clips_by_the_norm_of_the_whole_gradient(trained, stage):
    parameters = same_on_both(trained, f"ZeRO-{stage} clipped")
    torch.testing.assert_close(parameters, trained[0][0]["ZeRO-0 clipped"])


@pytest.mark.parametrize("stage", STAGES)
def test_zero_trains_in_bfloat16(trained, stage):
    same_on_both(trained, f"ZeRO-{stage} bf16")


@pytest.mark.parametrize("stage", STAGES)
def test_zero_goes_on_from_a_checkpoint(trained, stage):
    parameters = same_on_both(trained, f"ZeRO-{stage} resumed")
    assert torch.equal(parameters, trained[0][0][f"ZeRO-{stage}"])


@pytest.mark.parametrize("case", ["experts", "pipeline", "sequences"])
def test_other_parallelisms_give_the_same_as_on_gloo(trained, case):
    same_on_both(trained, case)
