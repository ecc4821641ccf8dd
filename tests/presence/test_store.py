"""A shard's store: a look-up and a restart find what the batches wrote, and nothing else, whatever their sizes."""

import shutil
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from muster import _core
from plane.presence.store import BUCKETS, NO_CHANGE, Packed, Shard, WentBack
from tests.presence.rig import Redis

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")

USERS = [number * 0x9E37_79B9_7F4A_7C15 % (1 << 64) for number in range(9_001)]
EPOCH = 5


def packed(records: dict[int, str], gone: Sequence[int] = (), changes: Sequence[tuple[int, str]] = ()) -> Packed:
    """A batch as `core/presence/src/pack.rs` packs it."""
    users = [part for user, record in records.items() for part in (str(user), record)]
    left = [struct.pack(">I", _core.presence_bucket(user, 1, BUCKETS)) + _short(str(user)) for user in gone]
    told = [part for user, change in changes for part in (str(user), change)]
    return Packed(msgspec.msgpack.encode(users), b"".join(left), b"", msgspec.msgpack.encode(told))


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


async def looked(shard: Shard, users: list[int]) -> list[str | int]:
    """A record, or the second at which a user was last seen, of each."""
    found = await shard.look(*_core.presence_questions(users, 1, BUCKETS))
    return msgspec.msgpack.decode(found.answers, type=list[str | int])


async def stored(shard: Shard) -> dict[int, str]:
    """All records, as a writer reads them when it begins."""
    found: dict[int, str] = {}
    async for page in shard.pages():
        rest = page
        while rest:
            user, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
            (length,) = struct.unpack_from(">I", rest)
            found[int(user)], rest = rest[4 : 4 + length].decode(), rest[4 + length :]
    return found


async def test_a_store_has_what_was_written_and_tells_when_others_were_seen(tmp_path: Path) -> None:
    redis = Redis(tmp_path)
    await redis.serves()
    shard = Shard(redis.url, "", instance="test", site=1, shards=1, shard=0)
    try:
        assert (await shard.begin(EPOCH)).batches == 0
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
        await shard.write(EPOCH, 4, packed({USERS[200]: "other"}, left, [(7, "came"), (8, "went")]))
        for user in left:
            del model[user]
        model[USERS[200]] = "other"
        assert await stored(shard) == model
        seen = await looked(shard, left)
        assert all(isinstance(each, int) and abs(each - time.time()) < 60 for each in seen), seen[:3]
        first, second = await shard.changes("", 10)
        assert [(change.user, change.told) for change in (first, second)] == [(7, b"came"), (8, b"went")]
        assert await shard.changes(first.place, 10) == [second]
        assert await shard.changes(second.place, 10) == []
        with pytest.raises(WentBack):
            await shard.write(EPOCH, 9, Packed(NO_CHANGE, b"", b"", NO_CHANGE))
        await shard.wipe(EPOCH)
        assert await stored(shard) == {}
        assert await looked(shard, USERS[100:200]) == [0] * 100
    finally:
        await shard.close()
        await redis.kill()
