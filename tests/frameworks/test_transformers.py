"""Tests of the Trainer of transformers on tutti: training, checkpoints, evaluation and prediction, as on gloo."""
import pytest
import torch
from launching import attempt, needs_frameworks, on_both, outcomes, same, same_on_both

pytestmark = needs_frameworks


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return on_both("transformers_trainer.py", tmp_path_factory.mktemp("transformers"))


@pytest.mark.parametrize("case", ["trained", "evaluated"])
def test_trainer_gives_the_same_as_on_gloo(trained, case):
    same_on_both(trained, case)


def test_ranks_have_the_same_model(trained):
    assert torch.equal(trained[0][0]["trained"], trained[0][1]["trained"])


def test_training_goes_on_from_a_checkpoint(trained):
    torch.testing.assert_close(same_on_both(trained, "resumed"), trained[0][0]["trained"])


def test_every_sentence_is_predicted_once(trained):
    assert same_on_both(trained, "predicted").shape == (11, 16, 64)


def test_trainer_makes_a_group_that_is_taken_over(trained, tmp_path):
    found = outcomes("transformers_trainer.py", "taken over", tmp_path, TUTTI_TAKE_OVER="gloo")
    for result, judge in zip(found, trained[0], strict=True):
        assert result.pop("groups") == ["ProcessGroupTutti"]
        same(result, judge)


def test_trainer_refuses_the_name_on_cpu(tmp_path):
    """Accelerate refuses it, as in test_accelerate.py; docs/frameworks.md has the alternatives."""
    code, text = attempt("transformers_trainer.py", "name", tmp_path)
    assert code != 0 and "Your assigned backend tutti is not available, please use gloo" in text
