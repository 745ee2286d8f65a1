#!/usr/bin/env python3
"""Runs torch's own tests of a backend (`torch.testing._internal.distributed.distributed_test`, part of torch's wheel) with `anabranch`.

    WORLD_SIZE=2 python3 scripts/torch_own_tests.py [TestDistBackendWithSpawn.test_all_reduce_sum ...]

Needs torch, numpy and expecttest. Each test starts WORLD_SIZE processes (2 by default). BACKEND=gloo runs the same tests with another backend.
Tests that name the backends that they are for skip, and print which.
"""

import os
import tempfile
import unittest

os.environ.setdefault("BACKEND", "anabranch")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("TEMP_DIR", os.path.join(tempfile.gettempdir(), "torch-own-tests"))
os.makedirs(os.environ["TEMP_DIR"], exist_ok=True)

from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402 - reads the environment

for feature in ("gpu", "ddp", "subgroup"):
    DistTestCases.backend_feature[feature].add("anabranch")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402 - reads the sets


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    unittest.main(verbosity=2)
