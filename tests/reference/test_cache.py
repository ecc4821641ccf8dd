"""The rules of the cache as a model: no interleaving breaks a promise, and each rule left out breaks one."""

import os
from typing import Final

import pytest

from tests.reference import cache

RUNS: Final = 20_000
RUNS_LONG: Final = int(os.environ.get("MUSTERTEST_RUNS", "1000000"))
FIRST: Final = int(os.environ.get("MUSTERTEST_SEED", "0"))


def test_no_interleaving_breaks_a_promise_of_the_cache() -> None:
    assert cache.first_wrong("", range(RUNS)) is None


@pytest.mark.parametrize("bug", cache.BUGS)
def test_a_rule_left_out_breaks_a_promise(bug: str) -> None:
    found = cache.first_wrong(bug, range(RUNS))
    assert found is not None, bug


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_interleavings_break_no_promise_of_the_cache() -> None:
    assert cache.first_wrong("", range(FIRST, FIRST + RUNS_LONG)) is None
