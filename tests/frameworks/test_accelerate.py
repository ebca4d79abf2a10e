"""Tests of Accelerate on tutti: training, checkpoints and operations give the results of Accelerate on gloo and of one
process; its released tests pass on a group that tutti has taken over; and it refuses the name tutti on CPU."""
import pytest
import torch
from launching import HOSTS, attempt, launch, needs_frameworks, on_both, outcomes, same, same_on_both

pytestmark = needs_frameworks
ACCELERATE = ("-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", HOSTS, "--mixed_precision", "no", "--dynamo_backend", "no", *{
                  1: ("--main_process_port", "0"),
                  2: ("--machine_rank", "$NODE_RANK", "--main_process_ip", "$MASTER_ADDR",
                      "--main_process_port", "$MASTER_PORT")}[HOSTS])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return on_both("accelerate_training.py", tmp_path_factory.mktemp("accelerate"))


def test_prepared_model_trains_as_one_process_would(trained):
    torch.testing.assert_close(same_on_both(trained, "trained"), trained[0][0]["in one process"])


@pytest.mark.parametrize("case", ["accumulated", "bfloat16", "float16 gradients", "PowerSGD"])
def test_training_is_the_same_as_on_gloo(trained, case):
    same_on_both(trained, case)


def test_training_goes_on_from_a_saved_state(trained):
    assert torch.equal(same_on_both(trained, "resumed"), trained[0][0]["trained"])


def test_operations_give_the_same_as_on_gloo(trained):
    found = same_on_both(trained, "exchanged")
    assert found["sum"].tolist() == [10, 12, 14]
    assert found["gather of objects"] == ["rank 0", {"its": 0}, "rank 1", {"its": 1}]
    assert found["broadcast of objects"] == [1, "rank 1"]
    assert found["padded"].tolist() == [[1, 1], [1, 1], [-1, -1]]
    assert found["trigger"]


def test_metrics_of_an_uneven_data_set_are_gathered_once(trained):
    assert sorted(same_on_both(trained, "evaluated").tolist()) == list(range(22))


def test_shuffled_data_is_shared_out_once(trained):
    for order in same_on_both(trained, "shuffled"):
        assert sorted(order.tolist()) == list(range(24)) != order.tolist()


def test_deepspeed_under_accelerate_trains_as_one_process_would(tmp_path):
    both = on_both("accelerate_deepspeed.py", tmp_path)
    torch.testing.assert_close(same_on_both(both, "ZeRO-3"), both[0][0]["in one process"])


@pytest.mark.parametrize("module", ["test_script", "test_sync"])
def test_released_tests_pass_on_a_group_that_was_taken_over(module):
    text = launch(f"accelerate.test_utils.scripts.{module}", ACCELERATE_USE_CPU="true", TUTTI_TAKE_OVER="gloo",
                  TUTTI_LOG="info")
    assert 'asked for backend "gloo" and gets "tutti"' in text


def test_ranks_that_accelerate_launches_train_in_the_same_way(trained, tmp_path):
    found = outcomes("accelerate_training.py", "tutti", tmp_path, launcher=ACCELERATE)
    for result, judge in zip(found, trained[0], strict=True):
        assert result.pop("groups") == ["ProcessGroupTutti"]
        same(result, judge)


def test_accelerate_refuses_the_name_on_cpu():
    """state.py of Accelerate accepts two other names there; docs/frameworks.md has the alternatives."""
    code, text = attempt("accelerate_by_name.py")
    assert code != 0 and "Your assigned backend tutti is not available, please use gloo" in text
