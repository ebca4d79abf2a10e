"""Fixtures of ranks with CUDA tensors: `on_gpu` has ranks whose operations run on streams, `through_host` ranks whose
tensors go through the host, and `started` starts ranks for one test."""
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import gpu_ranks


@pytest.fixture(scope="session")
def on_gpu(tmp_path_factory):
    """Returns on_gpu(size), which returns ranks that have joined a group of tutti."""
    with gpu_ranks.kept(tmp_path_factory) as of_size:
        yield of_size


@pytest.fixture(scope="session")
def through_host(tmp_path_factory):
    """Returns through_host(size), as on_gpu, for ranks whose CUDA tensors go through the host."""
    with gpu_ranks.kept(tmp_path_factory, TUTTI_CUDA="0") as of_size:
        yield of_size


@pytest.fixture(params=["streams", "host"])
def either(request):
    """Returns on_gpu or through_host."""
    return request.getfixturevalue("on_gpu" if request.param == "streams" else "through_host")


@pytest.fixture
def started(tmp_path):
    """Returns started(size, join=True, **environment), which starts ranks for this test alone."""
    running = []

    def of_size(size, **options):
        running.append(gpu_ranks.start(size, tmp_path, **options))
        return running[-1]

    yield of_size
    for ranks in running:
        ranks.close()
