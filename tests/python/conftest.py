"""Ranks that many tests share: two, three and four processes that have joined a tutti group, with gloo beside it as
the judge."""
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import sim_device
from ranks import Ranks, kept_ranks


def pytest_addoption(parser):
    parser.addoption("--cases", type=int, default=10_000, help="how many operations test_properties.py checks")
    parser.addoption("--first-seed", type=int, default=1, help="the seed of its first programs")


def pytest_configure(config):
    config.addinivalue_line("markers", "one_host(why): what cannot be the same over several hosts, so it runs on "
                            "one where TUTTI_HOSTS pretends others")


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
    """shared(size): the ranks of that size, started when first asked for, and again if a test has broken them."""
    with kept_ranks(lambda size: Ranks(size, tmp_path_factory.mktemp(f"ranks{size}"), gloo=True)) as of_size:
        yield of_size


@pytest.fixture
def fresh(tmp_path):
    """fresh(size, **options): ranks of the test's own, which it may break."""
    started = []

    def of_size(size, **options):
        started.append(Ranks(size, tmp_path, **options))
        return started[-1]

    yield of_size
    for ranks in started:
        ranks.close()
