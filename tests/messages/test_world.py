"""Delayed messages in virtual time, by seeds: nothing accepted is lost, nothing is early, and what is told is true."""

import os
from pathlib import Path

import pytest

from tests.messages.world import play

SEEDS = int(os.environ.get("MUSTERTEST_WORLDS", "10"))
FIRST = int(os.environ.get("MUSTERTEST_SEED", "0"))


@pytest.mark.parametrize("logged", [False, True], ids=["redis", "redis, logged"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_what_is_promised_holds_whatever_dies_and_stands_still(seed: int, logged: bool, tmp_path: Path) -> None:
    world = play(seed, tmp_path, logged=logged)
    assert len(world.calls) > 10
