"""A reader's copy of a shard: it has what the store has, and no answer of it is older than one of the store may be."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from bench.presence_nodes import SECRET, settings, spec
from muster_server._engines import PresenceLookup, PresenceTable, presence_bucket
from muster_server.plane.calls import CallError
from muster_server.plane.ownership.errors import Away
from muster_server.plane.service import Context
from muster_server.systems.presence import near as module
from muster_server.systems.presence import scripts
from muster_server.systems.presence.near import Fresh, Near, Standing
from muster_server.systems.presence.questions import Found, User, Who
from muster_server.systems.presence.reader import Reader
from muster_server.systems.presence.store import BUCKETS, Head, Packed, Shard, seconds
from tests.ports import free_ports
from tests.presence.rig import Redis, Rig
from tests.reference import presence
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until

needs_redis = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")
FRESH_MS = 3_000
EPOCH = 5

# ---- Freshness, by a model --------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("alive"), st.booleans()),
        st.tuples(st.just("wait"), st.integers(0, 1_500)),
        st.tuples(st.just("asks"), st.just(0)),
        st.tuples(st.just("answered"), st.just(0)),
        st.tuples(st.just("taken"), st.integers(1, 4)),
        st.tuples(st.just("begins"), st.just(0)),
    ),
    max_size=60,
)


class Copied:
    """Stands for a `PresenceTable`."""

    is_whole, batches = True, 0


class Model:
    """A store and its copy on one clock; the store's own is ahead by an hour. A question and its answer take time."""

    def __init__(self, standing: type[Standing]) -> None:
        self.now, self.ahead = 1_000_000, 3_600_000
        self.batches, self.alive = 0, 0
        self.had: dict[int, int] = {}
        """Batches of the store at each keepalive, by its time."""
        self.copy = Copied()
        self.standing = standing(self.copy, FRESH_MS)
        self.asked: list[tuple[Head, int]] = []
        """Questions that the store has answered, and when they were asked; the answers are on their way."""

    def step(self, name: str, value: int) -> None:
        """One step, and what is asked of the copy after it."""
        if name == "write":
            self.batches += value
        elif name == "alive" and value:
            self.alive = self.now + self.ahead
            self.had[self.alive] = self.batches
        elif name == "wait":
            self.now += value
        elif name == "asks":
            asked_at = self.now
            self.now += self.now % 700  # on its way to the store
            self.asked.append((Head(self.now + self.ahead, self.alive, "life", self.batches, ""), asked_at))
        elif name == "answered" and self.asked:
            head, asked_at = self.asked.pop(0)
            self.take(head, asked_at)
        elif name == "taken":
            self.copy.batches = min(self.batches, self.copy.batches + value)
        elif name == "begins":
            self.alive = 0

    def take(self, head: Head, asked_at: int) -> None:
        """As `Near` does."""
        self.standing.take(head, asked_at / 1_000)

    def check(self) -> bool:
        """Whether the copy may be asked; it must be true then."""
        fresh = self.standing.fresh(self.now / 1_000)
        if fresh is None:
            return False
        assert self.copy.batches >= self.had[fresh.alive], "the copy lacks what the store had when it was whole"
        assert self.now + self.ahead - fresh.alive <= FRESH_MS, "the copy is older than an answer may be"
        assert abs(fresh.now - fresh.alive) <= FRESH_MS
        return True


@given(STEPS)
def test_a_copy_is_asked_only_while_it_has_what_a_fresh_store_had(steps: list[tuple[str, int]]) -> None:
    model = Model(Standing)
    for name, value in steps:
        model.step(name, value)
        model.check()


def test_a_copy_that_follows_is_asked() -> None:
    model = Model(Standing)
    for step in (("write", 2), ("alive", 1), ("asks", 0), ("answered", 0)):
        model.step(*step)
        assert not model.check(), "it has no batch"
    model.step("taken", 2)
    assert model.check()
    model.step("wait", 1_000)
    assert model.check()
    model.copy.is_whole = False
    assert not model.check()
    model.copy.is_whole = True
    model.step("wait", FRESH_MS)
    assert not model.check(), "no state of the store came for too long"
    for step in (("alive", 1), ("asks", 0), ("answered", 0)):
        model.step(*step)
    assert model.check()
    for step in (("begins", 0), ("asks", 0), ("answered", 0)):
        model.step(*step)
    assert not model.check(), "the writer takes back that the shard is whole"


class Late(Standing):
    """A planted bug: the store's clock counts from the answer, not from the question."""

    def fresh(self, now: float) -> Any:
        """As if every question took a second less."""
        return super().fresh(now - 1.0)


class Hasty(Standing):
    """A planted bug: the state of the store holds for a copy that has not its batches."""

    def _advance(self) -> None:
        if self._waiting is not None:
            (self._head, self._asked_at), self._waiting = self._waiting, None


@pytest.mark.parametrize("standing", [Late, Hasty])
def test_a_planted_bug_is_found(standing: type[Standing]) -> None:
    _walk(Standing)
    with pytest.raises(AssertionError, match="the copy"):
        _walk(standing)


def _walk(standing: type[Standing]) -> None:
    dice = random.Random(1)
    names = ("write", "alive", "wait", "asks", "answered", "taken")
    for _ in range(500):
        model = Model(standing)
        for _ in range(60):
            name = dice.choice(names)
            model.step(name, dice.randrange(1, 1_500) if name == "wait" else 1)
            model.check()


# ---- Beside its store ---------------------------------------------------------------------------------------------------


class Written:
    """A shard's writer that writes what a test likes, and a copy of the same shard."""

    def __init__(self, redis: Redis) -> None:
        self.shard, self.other = (Shard(redis.url, "", instance="test", site=1, shards=1, shard=0) for _ in range(2))
        self.near = Near(self.other, FRESH_MS, structlog.get_logger())
        self.count, self.epoch, self.known = 0, EPOCH, set[int]()
        self._dice = random.Random(3)

    async def begin(self) -> None:
        """A writer begins, or a later one."""
        self.epoch += 1
        self.count = (await self.shard.claim(self.epoch)).batches

    async def write(self, users: int = 200) -> None:
        """Some come, change or go."""
        records: list[bytes | str] = []
        gone = b""
        for user in self._dice.sample(range(users), 10):
            if user in self.known and self._dice.random() < 0.5:
                self.known.discard(user)
                bucket, ago_s, name = presence_bucket(user, 1, BUCKETS), self._dice.randrange(9), str(user).encode()
                gone += struct.pack(">IIB", bucket, ago_s, len(name)) + name
            elif str(user) not in records:
                self.known.add(user)
                held = presence.Held(1, 9, self._dice.randrange(1, 99), 0, 0, self._dice.randrange(1, 1 << 40), "phone")
                records += [str(user), presence.record([held])]
        packed = texts(records)
        await self.shard.write(self.epoch, self.count + 1, Packed(packed, gone, b"", b"", 0))
        self.count += 1

    async def alive(self) -> None:
        """The keepalive."""
        await self.shard.keep_alive(self.epoch, self.count, b"{}", whole_at=seconds())

    async def copied(self) -> None:
        """Return once the copy may be asked, and has the last batch."""
        async with asyncio.timeout(PATIENT_S):
            while self.near.fresh() is None or self.near.table.batches != self.count:
                await self.alive()
                await asyncio.sleep(0.02)

    async def same(self, users: Sequence[int] = range(220)) -> None:
        """The copy answers what the store does."""
        lookup = PresenceLookup(list(users), 1)
        looked = await self.shard.look(*lookup.question(0, BUCKETS))
        times = looked.now, looked.alive
        by_store = lookup.found(1, [(0, looked.answers, *times)], True)
        assert msgspec.msgpack.decode(lookup.found(1, [(0, self.near.table, *times)], True)) == msgspec.msgpack.decode(
            by_store
        )


def texts(values: Sequence[bytes | str]) -> bytes:
    """A list in MessagePack, as a writer packs it."""
    parts = [b"\xdd" + len(values).to_bytes(4, "big")]
    for value in values:
        raw = value.encode() if isinstance(value, str) else value
        head = bytes([0xA0 | len(raw)]) if len(raw) < 32 else bytes([0xD9, len(raw)])
        parts += [head, raw]
    return b"".join(parts)


@contextlib.asynccontextmanager
async def written(tmp_path: Path) -> AsyncIterator[tuple[Redis, Written]]:
    """A store, and a copy that follows it."""
    redis = Redis(tmp_path)
    await redis.serves()
    both = Written(redis)
    following = asyncio.create_task(both.near.run())
    try:
        yield redis, both
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await asyncio.gather(both.shard.close(), both.other.close())
        await redis.kill()


@needs_redis
async def test_a_copy_has_what_its_store_has_however_often_it_is_loaded(tmp_path: Path) -> None:
    async with written(tmp_path) as (_, both):
        assert both.near.fresh() is None, "no writer has begun"
        await both.begin()
        for _ in range(4):  # later writers: each begins another life
            for _ in range(20):
                await both.write()
            await both.copied()
            await both.same()
            loads = both.near.loads
            for _ in range(20):
                await both.write()
            await both.copied()
            await both.same()
            assert both.near.loads == loads, "batches are enough"
            await both.begin()
        await both.shard.wipe(both.epoch)
        both.count, both.known = 0, set()
        await both.write()
        await both.copied()
        await both.same()
        assert both.near.table.users == len(both.known)
        assert both.near.stats().why == ""


@needs_redis
async def test_a_copy_is_loaded_while_its_store_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_server.systems.presence.store.PAGE_USERS", 16)
    async with written(tmp_path) as (_, both):
        await both.begin()
        for _ in range(2):
            loads, stop = both.near.loads, asyncio.Event()
            writing = asyncio.create_task(_write(both, stop))
            await until(lambda: both.near.loads > loads and both.count > 500)  # noqa: B023
            stop.set()
            await writing
            await both.copied()
            await both.same(range(3_010))
            await both.begin()
        await both.copied()
        await both.same(range(3_010))


async def _write(both: Written, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await both.write(3_000)


@needs_redis
async def test_a_copy_that_misses_batches_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    async with written(tmp_path) as (redis, both):
        await both.begin()
        await both.write()
        await both.copied()
        assert both.near.loads == 1
        batches = both.shard._keys[4]
        for _ in range(5):
            await both.write()
        await redis.told("XTRIM", batches, "MAXLEN", "0")
        await both.write()
        await both.copied()
        await both.same()
        await redis.told("XTRIM", batches, "MAXLEN", "0")  # of what it has: nothing is missing
        await both.write()
        await both.copied()
        await both.same()


@needs_redis
async def test_a_store_that_went_back_is_not_what_a_copy_answers(tmp_path: Path) -> None:
    async with written(tmp_path) as (redis, both):
        await both.begin()
        for _ in range(3):
            await both.write()
        await both.copied()
        await redis.told("SAVE")
        for _ in range(3):
            await both.write()
        await both.copied()
        await redis.kill()
        await redis.serves()
        await until(lambda: both.near.table.batches <= 3 and both.near.loads > 1)
        await both.same()


@needs_redis
async def test_a_copy_grows_old_beside_a_store_that_stalls_and_is_asked_again(tmp_path: Path) -> None:
    async with written(tmp_path) as (redis, both):
        await both.begin()
        await both.write()
        await both.copied()
        redis.signal(signal.SIGSTOP)
        await until(lambda: both.near.fresh() is None)
        redis.signal(signal.SIGCONT)
        await both.write()
        await both.copied()
        await both.same()
        assert both.near.loads == 1, "nothing was missing"


@needs_redis
async def test_a_stream_of_batches_stays_small(tmp_path: Path) -> None:
    async with written(tmp_path) as (_, both):
        await both.begin()
        for _ in range(scripts.BATCHES_MAX + 50):
            await both.write()
        assert len(await both.shard.written("0-0", None)) > 0
        client = both.shard._redis
        assert await client.call("xlen", both.shard._keys[4]) == scripts.BATCHES_MAX
        later = scripts.ALIVE.replace(str(scripts.BATCHES_MS), "-2000")  # as if it ran two seconds later
        assert later != scripts.ALIVE
        await both.shard._run(later, both.epoch, both.count, 1, b"{}")
        assert await client.call("xlen", both.shard._keys[4]) == 0


@needs_redis
async def test_a_writer_without_copies_leaves_nothing_for_them(tmp_path: Path) -> None:
    async with written(tmp_path) as (_, both):
        await both.begin()
        await both.write()
        await both.copied()
        shard, both.shard._near = both.shard, False
        await both.begin()
        await both.write()
        await both.alive()
        await until(lambda: "presence.near" in both.near.stats().why)
        assert both.near.fresh() is None
        assert await shard.written("0-0", None) == []


class Behind:
    """A copy without any user, which says that it is fresh."""

    loads = 0

    def __init__(self) -> None:
        self.table = PresenceTable(shards=1, buckets=BUCKETS, seed=1)
        self.table.begin(0)
        self.table.loaded()
        self.asked = 0

    def fresh(self) -> Fresh:
        """Always."""
        self.asked += 1
        return Fresh(1_000, 1_000)


@needs_redis
async def test_a_watch_begins_with_the_state_of_the_store_as_a_copy_may_be_behind_the_feed(tmp_path: Path) -> None:
    async with written(tmp_path) as (redis, both):
        await both.begin()
        await both.write()
        await both.alive()
        users = sorted(both.known)
        reader = made(tmp_path, redis.url, near=True)
        copy: Any = Behind()
        reader._near, reader._shards = [copy], [both.shard]
        found = msgspec.msgpack.decode(await reader._who(Who(users)), type=Found).users
        assert [len(user.devices) for user in found] == [0] * len(users), "the copy was asked"
        assert copy.asked == 1
        states = await reader._users(users)
        assert [len(user.devices) for user in states] == [1] * len(users)
        assert copy.asked == 1
        figures = {name: value for name, _, value in reader.counters()}
        assert (figures["presence_looked_near"], figures["presence_looked_in_store"]) == (1, 1)


@needs_redis
async def test_a_reader_without_copies_asks_the_store(tmp_path: Path) -> None:
    async with written(tmp_path) as (redis, both):
        await both.begin()
        await both.write()
        await both.alive()
        reader = made(tmp_path, redis.url, near=False)
        reader._shards = [both.shard]
        (user, *_) = both.known
        (found,) = msgspec.msgpack.decode(await reader._who(Who([user])), type=Found).users
        assert found.devices
        assert "copies" not in reader.status()
        assert not reader._near


def made(folder: Path, url: str, *, near: bool) -> Reader:
    """A reader that does not run."""
    secret = folder / "cluster.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    told = msgspec.structs.replace(
        settings([url], str(folder), writers=(1,)), near=near, fresh_ms=round(PATIENT_S * 1_000)
    )
    own, admin = free_ports(2)
    of = spec("online-reader", 0, epoch=1, told=told, secret_file=str(secret), port=own, admin=admin, gateways={})
    return Reader(of, told, Context(structlog.get_logger(), lambda: None, lambda: None))


async def test_an_absent_store_is_no_error() -> None:
    shard = Shard("redis://127.0.0.1:1/0", "", instance="test", site=1, shards=1, shard=0)
    near = Near(shard, FRESH_MS, structlog.get_logger())
    following = asyncio.create_task(near.run())
    await until(lambda: "does not answer" in near.stats().why)
    assert near.fresh() is None
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    with pytest.raises(Away):
        await shard.head()
    await shard.close()


# ---- Under faults ---------------------------------------------------------------------------------------------------------

ANSWERS = int(os.environ.get("MUSTERTEST_ANSWERS", "60000"))
"""Answers for one user each that the oracle judges, at least."""
LATE_S = 3.0
"""A shard that is whole has every event of a gateway that is older, on a usual machine: two seconds of missing versions
make it refuse, and it says that it is whole once a second. So with `FRESH_MS` an answer is late by 6 s at most, as
`docs/presence.md` promises."""


class Oracle:
    """Judges each answer: it is no older than it may be, and was true of each gateway then or later. It need not be true
    of both at one moment (PRES-10, and `test_engines` shows one): with a gateway's restart each second, 137 of a million
    answers of a store were not, and these were late for a gateway by 0.3 s at most."""

    def __init__(self, rig: Rig, users: Sequence[int]) -> None:
        self._rig, self.users = rig, list(users)
        self._slowness = Slowness()
        self.truth: dict[int, list[tuple[float, frozenset[int]]]] = {
            user: [(0.0, frozenset[int]())] for user in self.users
        }
        """The gateways at which a user was, each with the time since when, by this machine's clock."""
        self.judged = self.refused = 0
        self._dice = random.Random(7)

    def move(self) -> None:
        """One user comes or goes."""
        user = self._dice.choice(self.users)
        gateway = self._rig.gateways[self._dice.choice(list(self._rig.gateways))]
        if (user, "phone", gateway.node) in gateway.devices:
            gateway.offline([user])
        else:
            gateway.online([user])
        self.note([user])

    def note(self, users: Sequence[int]) -> None:
        """These users may be elsewhere now."""
        for user in users:
            at = frozenset(
                each.node for each in self._rig.gateways.values() if (user, "phone", each.node) in each.devices
            )
            self.truth[user].append((time.time(), at))

    def judge(self, asked_at: float, found: Sequence[User]) -> None:
        """One answer; `asked_at`: by this machine's clock. Raises `AssertionError`."""
        now = time.time()
        slack = self._slowness.limit(LATE_S)
        alive = min((user.last_seen_ms or 0) / 1_000 for user in found if user.devices)
        assert alive >= asked_at - FRESH_MS / 1_000 - 0.002, f"{asked_at - alive:.3f} s old"
        for user in found:
            known, told = self.truth[user.user], frozenset(each.gateway for each in user.devices)
            until = [*(at for at, _ in known[1:]), now]
            ever = [at for (_, at), ended in zip(known, until, strict=True) if ended >= alive - slack]
            for gateway in (1, 2):
                was = {gateway in at for at in ever}
                assert (gateway in told) in was, f"user {user.user} at {told}, but lately only at {ever}, {slack:.1f} s"
            self.judged += 1

    async def ask(self) -> None:
        """Ask the first site until cancelled."""
        while True:
            asked_at = time.time()
            try:
                found = (await self._rig.asking.who(self.users, 1)).users
            except CallError:
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            self.judge(asked_at, found)
            await asyncio.sleep(0.005)


def test_the_oracle_finds_an_old_and_a_false_answer() -> None:
    oracle = Oracle.__new__(Oracle)
    oracle._slowness, oracle.judged = Slowness(), 0
    now = time.time()
    oracle.truth = {7: [(0.0, frozenset()), (now - 900, frozenset({1})), (now - 800, frozenset({2}))]}
    found = msgspec.convert([7, [["phone", 2, 5]], round(now * 1_000)], User)
    oracle.judge(now, [found])
    with pytest.raises(AssertionError, match="s old"):
        oracle.judge(now + 4, [found])
    with pytest.raises(AssertionError, match="lately only at"):
        oracle.judge(now, [msgspec.convert([7, [["phone", 1, 5]], round(now * 1_000)], User)])


async def _writer_dies(rig: Rig, oracle: Oracle) -> None:
    await rig.writers[1, 0].kill()
    await asyncio.sleep(0.5)
    await rig.writers[1, 0].start()


async def _store_stalls(rig: Rig, oracle: Oracle) -> None:
    rig.redis[0].signal(signal.SIGSTOP)
    await asyncio.sleep(5)
    rig.redis[0].signal(signal.SIGCONT)


async def _store_is_empty(rig: Rig, oracle: Oracle) -> None:
    await rig.redis[0].kill()
    await rig.redis[0].serves()


async def _store_is_older(rig: Rig, oracle: Oracle) -> None:
    await rig.redis[0].told("SAVE")
    await asyncio.sleep(1.0)
    await rig.redis[0].kill()
    await rig.redis[0].serves()
    await asyncio.sleep(0.5)
    (rig.redis[0].folder / "dump.rdb").unlink()


async def _writer_stalls(rig: Rig, oracle: Oracle) -> None:
    rig.writers[1, 0].signal(signal.SIGSTOP)
    await asyncio.sleep(4.5)
    rig.writers[1, 0].signal(signal.SIGCONT)


async def _reader_stalls(rig: Rig, oracle: Oracle) -> None:
    rig.readers[1].signal(signal.SIGSTOP)
    await asyncio.sleep(4.5)
    rig.readers[1].signal(signal.SIGCONT)


async def _reader_dies(rig: Rig, oracle: Oracle) -> None:
    await rig.readers[1].kill()
    await rig.readers[1].start()


async def _gateway_begins_again(rig: Rig, oracle: Oracle) -> None:
    was = rig.gateways[1].devices
    await rig.end_gateway(1)
    rig.begin_gateway(1)
    rig.gateways[1].online([user for user, _, _ in was][::2])
    oracle.note(oracle.users)


async def _later_writer(rig: Rig, oracle: Oracle) -> None:
    """A second writer takes the shard; the first one stands still meanwhile, and goes on."""
    rig.writers[1, 0].signal(signal.SIGSTOP)
    later = rig.another_writer()
    await later.start()
    await asyncio.sleep(4)
    rig.writers[1, 0].signal(signal.SIGCONT)
    await asyncio.sleep(1)
    await rig.writers[1, 0].kill()
    await later.kill()
    await rig.writers[1, 0].start()


FAULTS: list[Callable[[Rig, Oracle], Awaitable[None]]] = [
    _writer_dies,
    _store_stalls,
    _store_is_empty,
    _gateway_begins_again,
    _store_is_older,
    _writer_stalls,
    _reader_stalls,
    _later_writer,
    _reader_dies,
]


async def _judged(tmp_path: Path, answers: int) -> Oracle:
    async with Rig(tmp_path, grace_ms=300, lease_ms=60_000) as rig:
        oracle = Oracle(rig, range(200))
        rig.gateways[1].online(range(100))
        rig.gateways[2].online(range(100, 200))
        oracle.note(oracle.users)
        await rig.right(oracle.users)
        # One user never moves, so that each answer says when the shard was whole.
        rig.gateways[2].online([200])
        oracle.users.append(200)
        oracle.truth[200] = [(0.0, frozenset({2}))]
        await rig.right(oracle.users)
        asking = asyncio.create_task(oracle.ask())

        async def move() -> None:
            while True:
                user = oracle.users.pop()
                oracle.move()
                oracle.users.append(user)
                await asyncio.sleep(0.01)

        moving = asyncio.create_task(move())
        try:
            faults = 0
            while faults < len(FAULTS) or oracle.judged < answers:
                await FAULTS[faults % len(FAULTS)](rig, oracle)
                faults += 1
                before = oracle.judged
                async with asyncio.timeout(PATIENT_S):  # until the site answers again, and a while longer
                    while oracle.judged < before + 4_000 and not asking.done():  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                if asking.done():
                    break
        finally:
            for task in (asking, moving):
                task.cancel()
            for said in await asyncio.gather(asking, moving, return_exceptions=True):
                if isinstance(said, Exception):
                    raise said
        await rig.right(oracle.users[:200])
        async with asyncio.timeout(PATIENT_S):  # until the copy answers again
            while (copy := (await rig.stats())[1, 0].copy) is None or copy.why:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return oracle


@needs_redis
async def test_no_answer_is_false_while_all_that_may_fail_fails(tmp_path: Path) -> None:
    oracle = await _judged(tmp_path, 0)
    assert oracle.refused > 0, "nothing failed"


@needs_redis
@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_no_answer_of_many_is_false(tmp_path: Path) -> None:
    oracle = await _judged(tmp_path, ANSWERS)
    print(f"{oracle.judged} answers, and {oracle.refused} times a refusal")
