"""A shard's store: a look-up and a restart find what the batches wrote, and nothing else, whatever their sizes."""

import asyncio
import shutil
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from muster_server import _engines
from muster_server.plane.log import Batch
from muster_server.plane.ownership.errors import WentBack
from muster_server.systems.presence.scripts import FEED_MAX
from muster_server.systems.presence.store import BUCKETS, NOBODY, Foreign, Packed, Shard, Waiting, seconds
from tests.presence.rig import Redis

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")

USERS = [number * 0x9E37_79B9_7F4A_7C15 % (1 << 64) for number in range(9_001)]
EPOCH = 5
AGO_S = 100
"""Since the last device of a user went."""


def packed(records: dict[int, str], gone: Sequence[int] = (), changes: Sequence[bytes] = ()) -> Packed:
    """A batch as `core/presence/src/pack.rs` packs it."""
    users = [part for user, record in records.items() for part in (str(user), record)]
    left = [struct.pack(">II", _engines.presence_bucket(user, 1, BUCKETS), AGO_S) + _short(str(user)) for user in gone]
    return Packed(msgspec.msgpack.encode(users), b"".join(left), b"", Batch.of(changes).payload, len(changes))


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


async def looked(shard: Shard, users: list[int]) -> list[str | int]:
    """A record, or the second at which a user was last seen, of each."""
    found = await shard.look(*_engines.PresenceLookup(users, 1).question(0, BUCKETS))
    return msgspec.msgpack.decode(found.answers, type=list[str | int])


async def stored(shard: Shard) -> dict[int, str]:
    """All records, as a writer reads them when it begins."""
    found: dict[int, str] = {}
    async for page in shard.pages():
        told = msgspec.msgpack.decode(page, type=list[str])
        found |= zip(map(int, told[::2]), told[1::2], strict=True)
    return found


async def test_a_store_has_what_was_written_and_tells_when_others_were_seen(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    shard = Shard(redis.url, "", instance="test", site=1, shards=1, shard=0)
    try:
        assert (await shard.claim(EPOCH)).batches == 0
        assert await stored(shard) == {}
        assert await looked(shard, []) == []
        model: dict[int, str] = {}
        for count, size in enumerate((1, 3_000, 6_000), 1):
            records = {user: f"of {user}" for user in USERS[len(model) : len(model) + size]}
            model |= records
            await shard.write(EPOCH, count, packed(records))
            assert await looked(shard, list(reversed(USERS))) == [model.get(user, 0) for user in reversed(USERS)]
            assert await stored(shard) == model
        left = USERS[:100]
        await shard.write(EPOCH, 4, packed({USERS[200]: "other"}, left, [b"came", b"went"]))
        await shard.write(EPOCH, 5, packed({}, [], [b"again"]))
        for user in left:
            del model[user]
        model[USERS[200]] = "other"
        assert await stored(shard) == model
        seen = await looked(shard, left)
        assert all(isinstance(each, int) and abs(each + AGO_S - time.time()) < 60 for each in seen), seen[:3]
        first, second = await shard.changes("")
        assert [list(entry.told.records()) for entry in (first, second)] == [[b"came", b"went"], [b"again"]]
        assert await shard.changes(first.place) == await shard.coming(first.place, 1) == [second]
        assert await shard.changes(second.place) == []
        assert await shard.recent(100) == ([first, second], True)
        with pytest.raises(WentBack):
            await shard.write(EPOCH, 9, Packed(NOBODY, b"", b"", b"", 0))
        await shard.wipe(EPOCH)
        assert await stored(shard) == {}
        assert await looked(shard, USERS[100:200]) == [0] * 100
    finally:
        await shard.close()
        await redis.kill()


async def test_changes_beyond_the_most_are_dropped_from_the_oldest_on(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    shard = Shard(redis.url, "", instance="test", site=1, shards=1, shard=0)
    try:
        await shard.claim(EPOCH)
        for count in range(1, 5):
            told = Packed(NOBODY, b"", b"", b"%d" % count, FEED_MAX // 2)
            await shard.write(EPOCH, count, told)
        assert (await shard.keep_alive(EPOCH, 4, b"{}", whole_at=seconds())).all == 2 * FEED_MAX
        assert await shard.drop_feed() == FEED_MAX
        assert await shard.drop_feed() == 0
        assert (await shard.keep_alive(EPOCH, 4, b"{}", whole_at=seconds())).all == FEED_MAX
        assert [entry.told.payload for entry in await shard.changes("")] == [b"3", b"4"]
        many = [b"x" * 1_000] * 40
        for count in range(5, 65):
            await shard.write(EPOCH, count, packed({}, [], many))
        place, found = "", 0
        while entries := await shard.changes(place):
            place, found = entries[-1].place, found + len(entries)
        assert found == 62
    finally:
        await shard.close()
        await redis.kill()


async def test_a_keepalive_that_a_store_executes_late_makes_no_shard_look_fresh(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    shard = Shard(redis.url, "", instance="test", site=1, shards=1, shard=0)
    question = _engines.PresenceLookup([7], 1).question(0, BUCKETS)
    try:
        await shard.claim(EPOCH)
        await shard.keep_alive(EPOCH, 0, b"{}", whole_at=seconds())
        looked = await shard.look(*question)
        assert 0 < looked.alive <= looked.now
        await shard.keep_alive(EPOCH, 0, b"{}", whole_at=None)
        assert (await shard.look(*question)).alive == looked.alive, "it was not whole"
        redis.signal(signal.SIGSTOP)
        sent_at = seconds()
        late = asyncio.create_task(shard.keep_alive(EPOCH, 0, b"{}", whole_at=sent_at))
        await asyncio.sleep(1.0)
        redis.signal(signal.SIGCONT)
        await asyncio.gather(late, return_exceptions=True)
        looked = await shard.look(*question)
        assert looked.alive <= looked.now - 999
    finally:
        await shard.close()
        await redis.kill()


async def test_all_changes_that_wait_are_counted_not_those_of_one_page(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    shard = Shard(redis.url, "", instance="test", site=1, shards=1, shard=0)
    try:
        await shard.claim(EPOCH)
        assert await shard.keep_alive(EPOCH, 0, b"{}", whole_at=seconds()) == Waiting(0, 0, 0)
        many = [b"x" * 1_000] * 100
        places = [await shard.write(EPOCH, count, packed({}, [], many)) for count in range(1, 51)]
        waiting = await shard.keep_alive(EPOCH, 50, b"{}", whole_at=seconds())
        assert (waiting.all, waiting.unpublished) == (5_000, 5_000)
        await shard.published(EPOCH, places[9], 1_000)
        waiting = await shard.keep_alive(EPOCH, 50, b"{}", whole_at=seconds())
        assert (waiting.all, waiting.unpublished) == (5_000, 4_000)
        oldest = waiting.oldest_ms
        async with asyncio.timeout(60):
            while (await shard.keep_alive(EPOCH, 50, b"{}", whole_at=seconds())).oldest_ms <= oldest:
                pass
        await shard.published(EPOCH, places[-1], 5_000)
        assert await shard.keep_alive(EPOCH, 50, b"{}", whole_at=seconds()) == Waiting(5_000, 0, 0)
    finally:
        await shard.close()
        await redis.kill()


async def test_a_store_of_another_instance_of_the_same_name_is_refused_by_writers_and_readers(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    own, other, unmarked = (
        Shard(redis.url, "", instance="test", site=1, shards=1, shard=0, stamp=stamp) for stamp in ("a", "b", "")
    )
    try:
        assert (await other.look(*_engines.PresenceLookup([7], 1).question(0, BUCKETS))).alive == 0, (
            "an empty store is nobody's"
        )
        await own.claim(EPOCH)
        await own.write(EPOCH, 1, packed({7: "of 7"}))
        for refused in (other.claim(EPOCH + 1), other.look(*_engines.PresenceLookup([7], 1).question(0, BUCKETS))):
            with pytest.raises(
                Foreign, match=r"another instance with the same name 'test'.*instance\.name.*presence\.redis"
            ):
                await refused
        assert await looked(own, [7]) == ["of 7"]
        await own.wipe(EPOCH)
        with pytest.raises(Foreign):
            await other.claim(EPOCH + 1)
        assert (await unmarked.claim(EPOCH)).batches == 0, "a node without the key of room names takes it as its own"
    finally:
        for shard in (own, other, unmarked):
            await shard.close()
        await redis.kill()


async def test_calls_beyond_the_connections_of_a_shard_wait_their_turn(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    shard = Shard(redis.url, "", instance="test", site=1, shards=1, shard=0)
    try:
        await shard.claim(EPOCH)
        await shard.write(EPOCH, 1, packed({7: "of 7"}))
        assert await asyncio.gather(*(looked(shard, [7]) for _ in range(400))) == [["of 7"]] * 400
    finally:
        await shard.close()
        await redis.kill()
