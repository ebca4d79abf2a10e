"""Tests of random programs on random placements (properties.py), and of the placements that are drawn."""
import os

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install hypothesis")

import properties
from across import BACKEND

CASES = int(os.environ.get("HOSTS_CASES", "100"))
SEED = int(os.environ.get("HOSTS_SEED", "1"))


def test_placements_are_of_all_kinds():
    drawn, tiles = zip(*(properties.drawn_placement(seed) for seed in range(300)))
    assert set(tiles) == set(properties.TILES)
    assert {len(set(placement)) for placement in drawn} == {2, 3, 4}
    assert {placement.count(host) for placement in drawn for host in placement} == {1, 2, 3}
    assert any(placement != sorted(placement) for placement in drawn)


@pytest.mark.skipif(BACKEND != "tutti", reason="the model has tutti's groups")
def test_random_programs_give_the_results_of_the_model(lab):
    assert properties.check(lab, SEED, CASES) == 0
