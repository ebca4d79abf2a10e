"""Tests of released optimizers at each stage of zero: nine that compute on whole tensors, of torch, transformers and
timm, and three with quantized states, of torchao."""
import pytest
from launching import HOSTS, attempt, needs_frameworks

pytestmark = [needs_frameworks, pytest.mark.skipif(HOSTS != 1, reason="the test needs any number of ranks on one host")]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_whole_optimizers_give_the_parameters_of_ddp(ranks):
    code, text = attempt("whole_optimizers.py", launcher=("-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                                                          "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"))
    assert code == 0, text
    results = [line.split() for line in text.splitlines() if line.startswith("RESULT ")]
    assert len(results) == 9 * 5
    assert not [result for result in results if not float(result[-1]) < 2e-5], text


def test_quantized_states_give_the_parameters_of_ddp():
    code, text = attempt("quantized_optimizers.py", TORCHDYNAMO_DISABLE="1")
    assert code == 0, text
    results = [line.split() for line in text.splitlines() if line.startswith("RESULT ")]
    assert len(results) == 3 * 5
    assert not [result for result in results if float(result[-1]) != 0], text
