"""Tests of torchft on tutti: its released tests of process groups pass, and training survives killed replicas."""
import re

import pytest
from launching import HOSTS, launch, needs_frameworks

pytestmark = [needs_frameworks, pytest.mark.skipif(HOSTS > 1, reason="each test starts its ranks on one host itself")]


def test_released_tests_of_process_groups_pass():
    assert "Ran 25 tests" in launch("torchft_suite.py", launcher=())


def test_survivors_go_on_when_a_replica_is_killed():
    """Heartbeats may take 1000 ms, because torchft excludes a living replica whose heartbeat is late for a step."""
    text = launch("torchft_kills.py", "tutti", 3, 1000, launcher=())
    assert len(re.findall(r"^kill \d, replica \d, step \d+, ms: ", text, re.MULTILINE)) == 3
    assert "the same parameters after each, the same surviving processes" in text
