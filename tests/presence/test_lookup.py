"""A site's answer, which compiled code writes, is that of the slow model, for any users in any shards."""

import gc
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server._engines import PresenceLookup
from muster_server.systems.presence.questions import Found
from muster_server.systems.presence.store import BUCKETS
from tests.reference import presence

NUMBERS = st.one_of(st.integers(0, 200), st.integers(0, (1 << 64) - 1))
HELD = st.builds(
    presence.Held,
    gateway=st.integers(0, (1 << 32) - 1),
    epoch=st.integers(0, (1 << 32) - 1),
    version=NUMBERS,
    index=st.integers(0, (1 << 16) - 1),
    state=st.integers(0, 5),
    at_ms=NUMBERS,
    device=st.text("ab:7", min_size=1, max_size=23),
)
ANSWERS = st.one_of(st.lists(HELD, max_size=20), st.integers(0, (1 << 32) - 1))
"""A store's answer for a user: the devices of its record, or the second at which it was seen last."""
TIMES = st.tuples(st.integers(1, 1 << 42), st.integers(1, 1 << 42))


def texts(values: Sequence[bytes | int]) -> bytes:
    """A list in MessagePack, with texts that are no Unicode, as a script writes it."""
    parts = [b"\xdd" + len(values).to_bytes(4, "big")]
    for value in values:
        if isinstance(value, int):
            parts.append(msgspec.msgpack.encode(value))
        else:
            size = len(value)
            head = bytes([0xA0 | size]) if size < 32 else b"\xdb" + size.to_bytes(4, "big")
            parts += [head if size > 255 or size < 32 else b"\xd9" + bytes([size]), value]
    return b"".join(parts)


@given(
    known=st.lists(st.tuples(NUMBERS, ANSWERS), max_size=40),
    shards=st.integers(1, 5),
    times=st.lists(TIMES, min_size=5, max_size=5),
    site=st.integers(1, 300),
)
def test_the_answer_is_that_of_the_model(
    known: list[tuple[int, list[presence.Held] | int]], shards: int, times: list[tuple[int, int]], site: int
) -> None:
    users = [user for user, _ in known]
    lookup = PresenceLookup(users, shards)
    assert lookup.shards() == sorted({user % shards for user in users})
    parts = []
    for shard in reversed(lookup.shards()):
        mine = [(user, value) for user, value in known if user % shards == shard]
        names, buckets = lookup.question(shard, BUCKETS)
        assert msgspec.msgpack.decode(names) == [str(user) for user, _ in mine]
        wanted = [(user // shards % BUCKETS).to_bytes(4, "big") for user, _ in mine]
        assert buckets == b"".join(wanted)
        values = [value if isinstance(value, int) else presence.record(value) for _, value in mine]
        parts.append((shard, texts(values), *times[shard]))
    told = lookup.found(site, parts)
    assert msgspec.msgpack.decode(told) == presence.found(site, known, shards, times)
    assert [user.user for user in msgspec.msgpack.decode(told, type=Found).users] == users


@given(answers=st.binary(max_size=60), count=st.integers(0, 3))
def test_any_answer_of_a_store_is_read_or_refused(answers: bytes, count: int) -> None:
    lookup = PresenceLookup(list(range(count)), 1)
    try:
        found = lookup.found(1, [(0, answers, 1, 1)])
    except ValueError:
        return
    assert len(msgspec.msgpack.decode(found, type=Found).users) == count


def test_a_user_without_an_answer_is_an_error() -> None:
    lookup = PresenceLookup([1, 2], 2)
    one, other = (0, b"\x91\x00", 1, 1), (1, b"\x91\x00", 1, 1)
    assert lookup.found(1, [one, other])
    for parts in ([one], [], [one, (2, b"\x90", 1, 1)], [one, (1, b"\x92\x00\x00", 1, 1)]):
        with pytest.raises(ValueError, match="malformed"):
            lookup.found(1, parts)


def test_users_and_devices_of_an_answer_are_out_of_sight_of_the_garbage_collector() -> None:
    answer = msgspec.msgpack.encode([1, [[7, [["phone", 1, 5], ["tv", 2, 6]], 5], [8, [], None]]])
    users = msgspec.msgpack.decode(answer, type=Found).users
    assert [gc.is_tracked(each) for user in users for each in (user, *user.devices)] == [False] * 4
