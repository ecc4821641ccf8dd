"""Each rule left out of the real code makes its test fail."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cache import far, hearing, scripts
from muster.cache.entry import found
from muster.cache.reading import Reading
from tests.cache import test_fence as fence
from tests.cache import test_hearing as hears
from tests.cache import test_lives as lives
from tests.cache.conftest import Makes
from tests.cache.way import Way
from tests.redis_server import RedisServer
from tests.waiting import PLANTED_S

Plant = Callable[[pytest.MonkeyPatch], None]
Around = dict[str, Any]


def script(name: str, old: str, new: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        text: str = getattr(scripts, name)
        assert old in text
        patch.setattr(scripts, name, text.replace(old, new))

    return plant


def no_token(patch: pytest.MonkeyPatch) -> None:
    script("FILL", "if had[1] ~= ARGV[1] then return '' end", "")(patch)
    script("FILL", "if had[2] ~= life then return '' end", "")(patch)  # a token that has gone has no life either


def no_flight_is_dirty(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Reading, key: str) -> None:
        self._near.remove(key)
        self._joined.pop(key, None)

    patch.setattr(Reading, "drop", drop)
    no_token(patch)  # else the fence alone is enough here


def callers_join_dirty_flights(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Reading, key: str) -> None:
        self._near.remove(key)
        for flight in self._flights.get(key, ()):
            flight.dirty = True

    patch.setattr(Reading, "drop", drop)


def any_life_is_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(far.InRedis, "_read", lambda self, entry: found(entry, 0.0))
    script("TAKE", "if string.sub(entry, 1, 41) ~= '1' .. life then", "if false then")(patch)


def level_1_serves_longer(patch: pytest.MonkeyPatch) -> None:
    made = hearing.Hearing.__init__

    def longer(self: hearing.Hearing, of: far.InRedis, lease_s: float, *more: Any) -> None:
        made(self, of, 3 * lease_s, *more)

    patch.setattr(hearing.Hearing, "__init__", longer)


def slow(around: Around) -> Awaitable[None]:
    return fence.test_a_slow_load_does_not_write_back_what_was_dropped(around["cache"])


def later(around: Around) -> Awaitable[None]:
    return fence.test_a_caller_after_a_drop_joins_no_load_from_before_it(around["cache"])


def dead(around: Around) -> Awaitable[None]:
    return fence.test_nothing_is_stored_while_a_mark_stands_and_no_level_keeps_it_if_its_writer_dies(
        around["caches"], around["redis"]
    )


def owned(around: Around) -> Awaitable[None]:
    return fence.test_a_mark_belongs_to_its_writer(around["cache"])


def cut(around: Around) -> Awaitable[None]:
    return hears.test_a_process_that_is_cut_off_serves_level_1_for_its_lease_and_no_longer(
        around["caches"], around["redis"], around["way"]
    )


def older(around: Around) -> Awaitable[None]:
    return lives.test_a_server_that_comes_back_with_what_it_had_serves_nothing_of_it(around["path"])


def restarted(around: Around) -> Awaitable[None]:
    return lives.test_a_load_from_before_a_restart_is_not_stored_after_it(around["path"])


PLANTED: dict[str, tuple[Plant, Callable[[Around], Awaitable[None]]]] = {
    "C-1: a fill needs no token": (no_token, slow),
    "C-2: no flight is dirty": (no_flight_is_dirty, slow),
    "C-3: callers join dirty flights": (callers_join_dirty_flights, later),
    "C-4: a load under a mark is stored": (script("TAKE", "if marked then return {'marked'} end", ""), dead),
    "C-4: all writers share one mark": (script("CHANGE", "'m:' .. ARGV[1]", "'m:'"), owned),
    "C-7: level 1 serves longer than its lease": (level_1_serves_longer, cut),
    "C-8: entries of any life are served": (any_life_is_served, older),
    "C-8: a token outlives its Redis": (script("FILL", "if had[2] ~= life then return '' end", ""), restarted),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", PLANTED)
async def test_a_rule_left_out_is_found(
    bug: str, caches: Makes, redis_of_the_run: RedisServer, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, shows = PLANTED[bug]
    plant(monkeypatch)
    around = {"cache": await caches(redis_of_the_run.url), "caches": caches, "redis": redis_of_the_run, "way": way}
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(PLANTED_S):
            await shows(around | {"path": tmp_path})
    gc.collect()  # a connection that the bug left half used ends in this test, not in a later one
