"""Runs torchft's released tests of process groups with tutti in place of gloo: `torchft_suite.py`.

Every collective is tested, also the three that torchft leaves out for gloo. The tests expect the error texts of gloo
and NCCL for a rank that is gone, so those of tutti are added here.
"""
import sys
import unittest
from datetime import timedelta

import torchft.process_group_test as released
from parameterized import parameterized
from torchft_on_tutti import ProcessGroupTutti

WORDS = "has ended or destroyed its group|has not joined the group"
released.ProcessGroupGloo = ProcessGroupTutti


class OwnWords(unittest.TestCase):
    def assertRaisesRegex(self, error, words):
        return super().assertRaisesRegex(error, f"{words}|{WORDS}")


class OneRankTest(OwnWords, released.ProcessGroupTest):
    pass


class MultiPgTest(OwnWords, released.MultiPgBaseTest):
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend):
        # torchft's 1 s is too short on a busy machine.
        return ProcessGroupTutti(timeout=timedelta(seconds=60))

    @parameterized.expand(released._ALL_COLLECTIVES)
    def test_collective(self, collective):
        self._run_parallel(collective)

    @parameterized.expand(released._ALL_COLLECTIVES)
    def test_collective_with_resiliency(self, collective):
        self._run_with_resiliency(collective)


suite = unittest.defaultTestLoader.loadTestsFromTestCase(MultiPgTest)
suite.addTests(map(OneRankTest, ("test_gloo_apis_0_cpu", "test_gloo_timeout", "test_functional_collectives")))
sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
