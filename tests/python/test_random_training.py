"""Random training programs (random_training.py) give what DistributedDataParallel gives."""
import pytest
from random_training import run_seeds


@pytest.mark.parametrize("size, first, programs", [(2, 1, 21), (3, 1001, 5)])
@pytest.mark.one_host("over hosts sums have another order")
def test_random_programs(shared, size, first, programs):
    shared(size).run(run_seeds, list(range(first, first + programs)))
