"""Known bugs of delayed messages, planted one at a time: the world of `world.py` must find each (`docs/testing.md`)."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster_server import _engines
from muster_server.systems.messages import redis_scripts as scripts
from muster_server.systems.messages.logged import LoggedSchedule
from tests.messages.world import HOUR_MS, play
from tests.virtual import Stuck

SEEDS = 24
OLDER = "if count < seen then return {-2, count} end"
Plant = Callable[[pytest.MonkeyPatch], None]


def _script(name: str, old: str, new: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        script: str = getattr(scripts, name)
        assert old in script
        patch.setattr(scripts, name, script.replace(old, new))

    return plant


def _answers_before_the_log(patch: pytest.MonkeyPatch) -> None:
    append = LoggedSchedule._append
    kept: set[asyncio.Task[None]] = set()

    async def soon(self: LoggedSchedule, records: Sequence[tuple[Any, ...]]) -> None:
        kept.add(asyncio.create_task(append(self, records)))

    patch.setattr(LoggedSchedule, "_append", soon)


def _comes_back_unnoticed(patch: pytest.MonkeyPatch) -> None:
    for name, script in vars(scripts).items():
        if isinstance(script, str) and OLDER in script:
            patch.setattr(scripts, name, script.replace(OLDER, "count = math.max(count, seen)"))


def _marks_what_is_not_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoggedSchedule, "_place", lambda self: self._log.end + 40)


def _drops_what_it_should_carry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("muster_server.systems.messages.logged._whole", lambda found: [])


def _does_not_wait_for_the_log(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: LoggedSchedule) -> int:
        return self._life

    patch.setattr(LoggedSchedule, "_is_whole", at_once)


def _forgets_what_was_asked_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_core, "stored_meet", lambda there, new: new)


def _claims_last(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("muster_server.systems.messages.center.lease_ms", lambda topic: 24 * HOUR_MS)


def _follows_any_clock(patch: pytest.MonkeyPatch) -> None:
    class Followed:
        def __init__(self, wall: int, monotonic: int) -> None:
            pass

        def read(self, wall: int, monotonic: int) -> tuple[int, int | None]:
            return wall, None

    patch.setattr(_core, "FiringClock", Followed)
    # That of Redis, which holds as well, is not asked.
    _script("DUE", "math.min(now, here)", "now")(patch)
    _script("DUE", "{0, count, here}", "{0, count, now}")(patch)


BUGS: dict[str, tuple[bool, Plant]] = {
    "an entry is set without a look at the one there": (
        False,
        _script("WRITE", "if there ~= expected then", "if false then"),
    ),
    "a step of the center's clock is followed at once": (False, _follows_any_clock),
    "what was asked ahead of a message is forgotten": (False, _forgets_what_was_asked_ahead),
    "a claim never runs out": (False, _claims_last),
    "an answer does not wait for the log": (True, _answers_before_the_log),
    "an older Redis goes unnoticed": (True, _comes_back_unnoticed),
    "the place in the log is kept before its records are": (True, _marks_what_is_not_there),
    "what a shortened log drops is not carried": (True, _drops_what_it_should_carry),
    "answers are given while the schedule is mended": (True, _does_not_wait_for_the_log),
}
"""With a log or without, and how it is planted."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    logged, plant = BUGS[bug]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(SEEDS):
            try:
                play(seed, tmp_path, logged=logged)
            except (AssertionError, Stuck) as found:
                record_property("found", f"seed {seed}: {found}")
                return
    pytest.fail(f"{SEEDS} seeds do not find it")
