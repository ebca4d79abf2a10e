"""Tests of Lightning on tutti: Fabric and Trainer give the results of gloo and of one process."""
import pytest
import torch
from launching import needs_frameworks, on_both, same_on_both

pytestmark = needs_frameworks


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return on_both("lightning_training.py", tmp_path_factory.mktemp("lightning"))


def test_fabric_trains_as_one_process_would(trained):
    torch.testing.assert_close(same_on_both(trained, "fabric"), trained[0][0]["one process"])


def test_operations_of_fabric_give_the_same_as_on_gloo(trained):
    """The mean is torch's AVG on tutti. On gloo, which has no AVG, it is a sum that is divided."""
    found = same_on_both(trained, "operations")
    assert found["gather"].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert found["mean"].tolist() == [0.5, 1.5, 2.5]


def test_trainer_gives_the_same_as_on_gloo(trained):
    same_on_both(trained, "trainer")


def test_fabric_shards_over_a_device_mesh(trained):
    torch.testing.assert_close(same_on_both(trained, "sharded"), trained[0][0]["one process"])
