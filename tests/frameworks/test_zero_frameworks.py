"""Tests of programs of the frameworks in which zero makes the steps: over 50 steps, and after a save in the middle,
they have the losses of the same programs with the framework's own data parallelism on tutti. Runs in bfloat16 are equal
up to 1e-3. Runs that clip are equal up to 1e-5, because norms are sums in another order. All others are
bit-identical."""
import pytest
import torch
from launching import needs_frameworks, outcomes, same

pytestmark = needs_frameworks


def close(mine, judge, error=1e-5):
    torch.testing.assert_close(mine, judge, rtol=error, atol=error)


@pytest.fixture(scope="module")
def accelerated(tmp_path_factory):
    return outcomes("zero_accelerate.py", "tutti", tmp_path_factory.mktemp("zero_accelerate"))


@pytest.mark.parametrize("way", ["stage 0", "stage 2", "stage 3", "sharded"])
def test_accelerate_has_the_losses_of_ddp(accelerated, way):
    """The runs have accumulation, norms, a scheduler, save_state and load_state."""
    for result in accelerated:
        assert len(result[way]) == 100
        same(result[way], result["DDP"])
        same(result[f"{way} resumed"], result["DDP"][60:])


def test_accelerate_resumes_without_zero(accelerated):
    for result in accelerated:
        same(result["DDP resumed from stage 2"], result["DDP"][60:])


def test_accelerate_requires_a_prepared_model(accelerated):
    assert ("ValueError: zero.accelerate.shard: pass the model and the optimizer that accelerator.prepare returned"
            in accelerated[0]["not prepared"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return outcomes("zero_transformers.py", "tutti", tmp_path_factory.mktemp("zero_transformers"))


@pytest.mark.parametrize("way", ["stage 2", "stage 3"])
def test_trainer_has_the_losses_of_ddp(trained, way):
    """Compares losses, norms and evaluations, those after a checkpoint, and the best model that is saved in the end."""
    for result in trained:
        close(result[way], result["DDP"])
        close(result[f"{way} resumed"], result["DDP resumed"])
        close(result[f"{way} end"], result["DDP end"])


def test_trainer_resumes_without_zero(trained):
    for result in trained:
        close(result["DDP resumed from stage 2"], result["DDP resumed"])


def test_trainer_cannot_save_sharded_parameters(trained):
    assert 'ZeroCallback: hosts="sharded" is not supported, because the Trainer saves' in trained[0]["sharded"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return outcomes("zero_lightning.py", "tutti", tmp_path_factory.mktemp("zero_lightning"))


@pytest.mark.parametrize("way", ["stage 2", "stage 3", "sharded"])
def test_lightning_has_the_losses_of_ddp(fitted, way):
    """Compares losses, validation and parameters of runs with accumulation, norms, a schedule and checkpoints."""
    for result in fitted:
        assert len(result[way][0]) == 100
        same(result[way], result["DDP"])
        same(result[f"{way} resumed"], result["DDP resumed"])


def test_lightning_resumes_without_zero(fitted):
    for result in fitted:
        same(result["DDP resumed from stage 2"], result["DDP resumed"])


def test_lightning_refuses_two_optimizers(fitted):
    assert "NotImplementedError: zero.lightning.ZeroStrategy: configure_optimizers() gives 2" in fitted[0][
        "two optimizers"]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    return outcomes("zero_deepspeed.py", "tutti", tmp_path_factory.mktemp("zero_deepspeed"))


@pytest.mark.parametrize("case, stage, error", [*(("SGD", stage, 0) for stage in range(4)),
                                                ("Adam, clipped", 2, 1e-5), ("bf16", 3, 1e-3)])
def test_deepspeed_script_has_the_losses_of_deepspeed(scripted, case, stage, error):
    """The losses are those of DeepSpeed; they are bit-identical after loading a checkpoint."""
    for result in scripted:
        mine = result[f"{case}, stage {stage}"]
        close(mine, result[case], error)
        same(result[f"{case}, stage {stage} resumed"], mine[50:])
