"""Fixtures of hosts that are network namespaces of this machine (tests/support/hosts.py), and of ranks on them. Without
namespaces all these tests are skipped, with the reason."""
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent / "support", HERE.parent / "python"):
    sys.path.insert(0, str(folder))

import hosts as namespaces  # noqa: E402


@pytest.fixture(scope="session")
def namespaces_work():
    reason = namespaces.why_not()
    if reason:
        pytest.skip(f"hosts are not possible here: {reason}")


@pytest.fixture(scope="module")
def hosts(namespaces_work):
    """Returns hosts(count), which returns that number of hosts, the same ones for all tests of a module."""
    made = {}

    def of_count(count):
        if count not in made:
            made[count] = namespaces.Hosts(count)
        return made[count]

    yield of_count
    for some in made.values():
        some.close()


# ---- ranks on them ----
@pytest.fixture(scope="session")
def lab(namespaces_work):
    """Returns four hosts, on each of which an agent loads torch when it is first needed."""
    pytest.importorskip("torch", reason="torch is not installed")
    from across import BACKEND, Lab
    if BACKEND == "tutti":
        pytest.importorskip("torch_tutti", reason="torch_tutti is not installed")
    with namespaces.Hosts(4) as some:
        laboratory = Lab(some)
        yield laboratory
        laboratory.close()


@pytest.fixture(scope="module")
def ranks(lab):
    """Returns ranks(*placement), which returns ranks that tests share: rank r is on host placement[r]. They also have a
    group of gloo, for comparison."""
    from across import Across
    started = {}

    def of_placement(*placement):
        if placement in started and any(pipe.closed for pipe in started[placement].pipes):
            del started[placement]
        if placement not in started:
            started[placement] = Across(lab, placement, gloo=True)
        return started[placement]

    yield of_placement
    for some in started.values():
        some.close()


@pytest.fixture
def fresh(lab):
    """Returns fresh(*placement, **options), which returns ranks of this test only, which it may break."""
    from across import Across
    started = []

    def of_placement(*placement, **options):
        started.append(Across(lab, placement, **options))
        return started[-1]

    yield of_placement
    for some in started:
        some.close()
