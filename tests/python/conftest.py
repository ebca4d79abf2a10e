"""Fixtures of ranks: `shared` has ranks that many tests use, in a tutti group and a gloo group to compare with; `fresh`
starts ranks for one test."""
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import sim_device
from ranks import Ranks, kept_ranks


def pytest_configure(config):
    config.addinivalue_line("markers", "one_host(why): the test makes sense on one host only, so it runs without "
                            "TUTTI_HOSTS")


def pytest_collection_finish(session):
    asked = any(item.path.name == "test_devices.py" for item in session.items)
    if asked and not session.config.option.collectonly and not sim_device.missing():
        sim_device.begin_building()


@pytest.fixture(autouse=True)
def one_host(request, monkeypatch):
    if request.node.get_closest_marker("one_host"):
        monkeypatch.delenv("TUTTI_HOSTS", raising=False)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A function: shared(size) returns Ranks of that size. The first call starts them, and so does the next call after
    a test has broken them."""
    with kept_ranks(lambda size: Ranks(size, tmp_path_factory.mktemp(f"ranks{size}"), gloo=True)) as of_size:
        yield of_size


@pytest.fixture
def fresh(tmp_path):
    """A function: fresh(size, **options) starts Ranks for this test alone, which may break them."""
    started = []

    def of_size(size, **options):
        started.append(Ranks(size, tmp_path, **options))
        return started[-1]

    yield of_size
    for ranks in started:
        ranks.close()
