"""Statuses: which of two is newer, when one turns away or ends, and that all sites agree, whatever was away meanwhile."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from bench.presence_nodes import SECRET, settings, spec
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.ownership.errors import Full
from muster_server.plane.service import Context
from muster_server.systems.presence import statuses as limits
from muster_server.systems.presence.asking import Readers
from muster_server.systems.presence.reader import Reader
from muster_server.systems.presence.status import (
    MODES,
    NewStatus,
    Record,
    Status,
    check_text,
    others_see,
    record_of,
    shown,
)
from muster_server.systems.presence.statuses import BURIED_MS, Statuses
from tests.ports import free_ports
from tests.presence.rig import Redis
from tests.waiting import PATIENT_S

needs_redis = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")
NOW = 1_790_000_000_000

news = st.builds(
    NewStatus,
    mode=st.sampled_from(MODES),
    text=st.sampled_from(["", "a"]),
    away_ms=st.integers(0, 1_000),
    end_ms=st.integers(0, 1_000),
)


@given(news, st.integers(0, 2_000))
def test_a_status_is_what_was_set_until_it_turns_away_or_ends(new: NewStatus, later_ms: int) -> None:
    status = shown(record_of(new, None, NOW, 1), NOW + later_ms)
    is_over = bool(new.end_ms) and later_ms >= new.end_ms
    is_away = new.mode == "available" and 0 < new.away_ms <= later_ms
    says_nothing = new.mode == "available" and not new.text and not is_away
    if is_over or says_nothing:
        assert status is None
        return
    assert status is not None
    assert (status.mode, status.text) == ("away" if is_away else new.mode, new.text)
    assert (status.until is None) == (not new.end_ms)


@given(st.lists(st.tuples(news, st.integers(-5_000, 5_000), st.integers(1, 4)), min_size=1))
def test_a_later_status_has_a_greater_version_even_where_clocks_go_back(sets: list[tuple[NewStatus, int, int]]) -> None:
    before: Record | None = None
    for new, ahead_ms, site in sets:
        record = record_of(new, before, NOW + ahead_ms, site)
        assert before is None or record.version > before.version
        before = record


def test_others_learn_nothing_of_an_invisible_user() -> None:
    hidden = Status(mode="invisible", text="", at=NOW, until=None)
    assert others_see(hidden) is None
    assert others_see(None) is None
    assert others_see(Status(mode="invisible", text="back soon", at=NOW, until=None)) is None
    busy = Status(mode="dnd", text="", at=NOW, until=None)
    assert others_see(busy) == busy


def test_a_text_has_256_bytes_and_no_line_breaks() -> None:
    for text in ("", "x" * 256, "\N{GRINNING FACE}" * 64, "family \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}"):
        check_text(text)
    for text in ("x" * 257, "\N{GRINNING FACE}" * 65, "a\nb", "a\0", "a\N{LINE SEPARATOR}b", "\ud800"):
        with pytest.raises(ValueError, match="text: "):
            check_text(text)


@contextlib.asynccontextmanager
async def stored(folder: Path) -> AsyncIterator[Statuses]:
    """The statuses of one site in a Redis of their own."""
    redis = Redis(folder)
    await redis.serves()
    made = Statuses(redis.url, "", instance="test", site=1)
    try:
        yield made
    finally:
        await made.close()
        await redis.kill()


@needs_redis
async def test_a_store_takes_newer_statuses_alone_and_tells_each_once(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        assert await store.end() == "0-0"
        old = record_of(NewStatus(text="old"), None, NOW, 1)
        new = record_of(NewStatus(text="new"), old, NOW, 2)
        assert await store.take([(7, new), (7, old), (8, old), (8, old)]) == [1, 0, 1, 0]
        place, records = await store.records_after("0-0", 0.001)
        assert records == [(7, new), (8, old)]
        assert await store.records_after(place, 0.001) == (place, [])
        assert [sorted(page, key=lambda each: each[0]) async for page in store.all()] == [[(7, new), (8, old)]]
        entries, is_whole = await store.recent(100)
        assert ([entry.place for entry in entries][-1], is_whole) == (place, True)
        assert (await store.recent(1))[1] is False
        many = [(user, old) for user in range(1_000, 2_500)]
        for at in range(0, len(many), 1_000):
            await store.take(many[at : at + 1_000])
        assert set((await store.look([user for user, _ in many]))[1]) == {user for user, _ in many}


@needs_redis
async def test_a_full_store_says_so_and_those_with_a_status_may_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUT", limits.PUT.replace(str(limits.STATUSES_MAX), "2"))
    async with stored(tmp_path) as store:
        for user in (7, 8):
            assert await store.set(user, NewStatus(text="x")) is not None
        with pytest.raises(Full, match="have a status"):
            await store.set(9, NewStatus(text="x"))
        assert (await store.shown([7, 8, 9])).keys() == {7, 8}
        changed = await store.set(7, NewStatus(mode="dnd"))
        assert changed is not None
        assert changed.mode == "dnd"


@needs_redis
async def test_a_status_that_ended_long_ago_is_removed(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        now, _ = await store.look([])
        over = record_of(NewStatus(text="x", end_ms=1), None, now - BURIED_MS - 10, 1)
        lately = record_of(NewStatus(text="x", end_ms=1), None, now - 10, 1)
        await store.take([(7, over), (8, lately), (9, record_of(NewStatus(text="x"), None, now, 1))])
        assert await store.step("a", "1") == (2, "")
        assert (await store.look([7, 8, 9]))[1].keys() == {8, 9}
        assert (await store.shown([7, 8, 9])).keys() == {9}
        assert await store.step("a", "2") == (2, "1")


class Sites:
    """Readers of two sites in this process, each with a Redis of its own."""

    def __init__(self, folder: Path) -> None:
        self.redis = [Redis(folder), Redis(folder)]
        secret = folder / "cluster.secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        ports = free_ports(4)
        self.addresses: list[tuple[str, int]] = [("127.0.0.1", port) for port in ports[:2]]
        self.cut = False
        """Return whether readers find each other."""
        told = settings([each.url for each in self.redis], str(folder), writers=(1, 1))
        context = Context(structlog.get_logger(), lambda: SimpleNamespace(of=self._nodes), lambda: None)
        self._readers = [
            Reader(
                spec(
                    "online-reader",
                    index,
                    epoch=1,
                    told=told,
                    secret_file=str(secret),
                    port=ports[index],
                    admin=ports[2 + index],
                    gateways={},
                ),
                told,
                context,
            )
            for index in range(2)
        ]
        self._stop = asyncio.Event()
        self.asking = [Readers(lambda at=at: [at], key_of(bytes.fromhex(SECRET))) for at in self.addresses]  # type: ignore[misc]

    def _nodes(self, role: str) -> Sequence[SimpleNamespace]:
        places = [] if self.cut else self.addresses
        return [SimpleNamespace(client=place, state="running") for place in places]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Sites"]:
        """Run them."""
        for redis in self.redis:
            await redis.serves()
        tasks = [asyncio.create_task(reader.run(self._stop, 0)) for reader in self._readers]
        try:
            yield self
        finally:
            self._stop.set()
            for readers in self.asking:
                await readers.close()
            await asyncio.gather(*tasks)
            for redis in self.redis:
                await redis.kill()

    async def sets(self, site: int, user: int, text: str) -> None:
        """Set a status, as soon as the site takes it."""
        async with asyncio.timeout(PATIENT_S):
            while True:
                with contextlib.suppress(CallError):
                    await self.asking[site - 1].set_status(user, NewStatus(text=text))
                    return
                await asyncio.sleep(0.02)

    async def says(self, site: int, user: int, text: str) -> None:
        """Return once a site has this text of a user."""
        async with asyncio.timeout(PATIENT_S):
            while True:
                with contextlib.suppress(CallError):
                    found = await self.asking[site - 1].statuses([user])
                    if user in found and found[user].text == text:
                        return
                await asyncio.sleep(0.02)


@needs_redis
async def test_a_status_set_at_one_site_is_seen_at_the_other_and_the_last_one_stays(tmp_path: Path) -> None:
    async with Sites(tmp_path).running() as sites:
        await sites.sets(1, 7, "one")
        await sites.says(2, 7, "one")
        await sites.asking[1].set_status(7, NewStatus(text="two"))
        await sites.says(1, 7, "two")
        with pytest.raises(CallError) as refused:
            await sites.asking[0].set_status(7, NewStatus(text="x" * 257))
        assert refused.value.code == "question"


@needs_redis
async def test_a_site_that_was_away_or_came_back_empty_has_all_statuses_again(tmp_path: Path) -> None:
    async with Sites(tmp_path).running() as sites:
        await sites.sets(1, 7, "one")
        await sites.says(2, 7, "one")
        await sites.redis[0].kill()
        await sites.asking[1].set_status(7, NewStatus(text="two"))
        await sites.asking[1].set_status(8, NewStatus(text="other"))
        with pytest.raises(CallError) as away:
            await sites.asking[0].statuses([7])
        assert away.value.code == "store"
        await sites.redis[0].serves()  # empty
        await sites.says(1, 7, "two")
        await sites.says(1, 8, "other")
        await sites.redis[0].told("flushall")  # while no reader notices
        await sites.says(1, 8, "other")
