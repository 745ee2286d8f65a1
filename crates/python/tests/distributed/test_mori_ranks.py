"""The module of mori's interface on ranks that are processes, on the host runtime."""

import pytest
from test_backend import passed

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_semantics_and_calls_of_engines(start, finish, ranks):
    passed(finish(start("mori_program.py", ranks, MORI_SHMEM_HEAP_SIZE="64M")))


def test_in_the_world_of_the_backend(start, finish):
    passed(finish(start("mori_program.py", 2, "backend")))
