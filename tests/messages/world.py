"""Delayed messages in virtual time: the real receiver, center, schedule in Redis and its log, with users, workers, a target
and faults that a seed chooses.

A center is killed, succeeded, or stands still; a worker too; requests and answers are lost; Redis dies, stands still, or
comes back older; the log's acknowledgements are lost; wall clocks of centers and workers are set. What users were told and
what the target saw is kept in plain dicts. `check` holds them against each other.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from muster_server.plane.log import Failed
from muster_server.plane.log.shared import SharedLog
from muster_server.plane.ownership.errors import Away, StoreError
from muster_server.plane.ownership.redis import RedisStore
from muster_server.systems.messages.answers import Answers
from muster_server.systems.messages.center import Center, Session
from muster_server.systems.messages.firing import BEHIND_MS
from muster_server.systems.messages.logged import LoggedSchedule
from muster_server.systems.messages.receiver import Receiver, Unreachable
from muster_server.systems.messages.redis import RedisSchedule
from muster_server.systems.messages.schedule import NewChange, NewMessage, Reply, Schedule
from muster_server.systems.messages.shapes import Change, Changed, Fire, Numbers, Refused, Result, Scrubbed, Send, Sent
from muster_server.systems.messages.topics import FILE, Book, NewTopic, TopicsFile
from tests.messages.redis_in_memory import RedisInMemory
from tests.virtual import VirtualLoop

T = TypeVar("T")
BEGIN_MS: Final = 1_780_000_000_000
HOUR_MS: Final = 3_600_000
AHEAD_MS: Final = 4 * HOUR_MS
"""Longer than a clock is set by: what a center writes in its log has the time by its own clock."""
CALL_S: Final = 5.0
TIMEOUT_S: Final = 2.0
"""Of a callback."""
FAULTS_S: Final = 90.0
"""Faults begin in this time; then the world is left in peace."""
END_S: Final = 900.0
LASTING_MS: Final = 40_000
"""A fault explains a double for so long: a claim, and what waited behind it."""
USERS: Final = 4
WORKERS: Final = 2


@dataclass
class Process:
    """One life of a process."""

    alive: bool = True
    stands_until: float = 0.0

    async def goes_on(self) -> None:
        """Return when it runs. Once it was killed, all that it does is cancelled."""
        loop = asyncio.get_running_loop()
        while self.alive and loop.time() < self.stands_until:  # noqa: ASYNC110 - it happens elsewhere: no event to wait for
            await asyncio.sleep(self.stands_until - loop.time())
        if not self.alive:
            raise asyncio.CancelledError


@dataclass
class Told:
    """One message, as users know it."""

    due_at: int
    """The earliest time at which it may fire, by what was told."""
    cancelled: bool = False
    said_fired: bool = False
    in_doubt: bool = False
    """A change is on its way."""


@dataclass
class World:
    """One run. `logged`: with a log, and a Redis that comes back older."""

    seed: int
    folder: Path
    logged: bool
    dice: random.Random = field(init=False)
    ids: dict[int, str] = field(default_factory=dict)
    """The ids of all messages that were ever sent, by number."""
    broken: list[str] = field(default_factory=list)
    """Promises that were."""
    told: dict[str, Told] = field(default_factory=dict)
    calls: dict[str, list[float]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    """Messages with a callback that was answered badly."""
    delivered: set[str] = field(default_factory=set)
    """The ids that were answered well."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    center: "CenterNode | None" = None

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.redis = RedisInMemory(self.now_ms)
        self.kept: list[Any] = []
        self.redis_up_at = 0.0
        self.losses = 0.0
        self.partition = SimPartition(self)
        self.wall_step = 0
        self.quiet = False
        book = Book(version=1, key=f"{self.seed:064x}")
        (self.folder / FILE).write_bytes(msgspec.json.encode(book))
        self.topics = TopicsFile(self.folder, 10)
        self.topics.open()
        self.topic = self.topics.create(
            NewTopic(name="orders", callback="https://shop.example/hook", retries_ms=(500,) * 20, timeout_s=TIMEOUT_S)
        )
        self.numbers = Numbers(self.topics.key, self.topic.number)
        self.failing = 0.2

    # --- time -----------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        """True time, which Redis tells."""
        return BEGIN_MS + int(self.now_s() * 1_000)

    def wall_ms(self) -> int:
        """The wall clock of the centers."""
        return self.now_ms() + self.wall_step

    def mono_ms(self) -> int:
        return int(self.now_s() * 1_000)

    def fault(self, name: str) -> None:
        self.faults.append((self.now_ms(), name))

    async def delay(self) -> None:
        """A way through the network."""
        await asyncio.sleep(self.dice.uniform(0.0001, 0.003) if self.dice.random() < 0.98 else self.dice.uniform(0, 1))

    # --- a run ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        centers = [loop.create_task(self._centers(place)) for place in range(2)]
        workers = [WorkerNode(self, node) for node in range(1, WORKERS + 1)]
        working = [loop.create_task(each.run()) for each in workers]
        users = [loop.create_task(User(self, number).run()) for number in range(USERS)]
        await self._do_faults(workers)
        self.quiet, self.failing, self.losses, self.wall_step = True, 0.0, 0.0, 0
        for worker in workers:
            worker.wall_step = 0
        await asyncio.gather(*users)
        while not self._is_done():
            await asyncio.sleep(1.0)
            assert not self.broken, self.broken
            assert self.now_s() < END_S, f"{len(self._missing())} messages never fire: {sorted(self._missing())[:3]}"
        found = await self._scrubbed()
        assert not found.fault_count, found
        for task in (*centers, *working):
            task.cancel()
        await self.check()

    async def _scrubbed(self) -> Scrubbed:
        while True:
            if self.center is not None and self.center.process.alive:
                with contextlib.suppress(StoreError):
                    if (found := await self.center.schedule.scrub()) is not None:
                        return found
            await asyncio.sleep(0.2)

    def _missing(self) -> set[str]:
        return {id for id, told in self.told.items() if not told.cancelled and id not in self.delivered}

    def _is_done(self) -> bool:
        return not self._missing() and not self.redis.data.get(b"{world}:w:1")

    async def _centers(self, place: int) -> None:
        """A machine with a center, started again whenever it ends."""
        while True:
            node = CenterNode(self)
            if await node.opened():
                self.center = node
                await node.ends()
            await asyncio.sleep(self.dice.uniform(0.05, 0.5))

    async def _do_faults(self, workers: Sequence["WorkerNode"]) -> None:
        while self.now_s() < FAULTS_S:
            self.kept.append((self.now_ms(), self.redis.keep()))
            self.kept = self.kept[-4:]
            await asyncio.sleep(self.dice.uniform(0.5, 6.0))
            kinds = ["kill center", "stop center", "kill worker", "stop worker", "redis away", "losses", "clock"]
            kinds.append("worker's clock")
            if self.logged:
                kinds += ["redis older", "log"]
            kind = self.dice.choice(kinds)
            self.fault(kind)
            center, worker = self.center, self.dice.choice(workers)
            if kind == "kill center" and center is not None:
                center.kill()
            elif kind == "stop center" and center is not None:
                center.process.stands_until = self.now_s() + self.dice.choice((1.0, 4.0, 9.0))
            elif kind == "kill worker":
                worker.kill()
            elif kind == "stop worker":
                worker.process.stands_until = self.now_s() + self.dice.choice((1.0, 4.0, 30.0))
            elif kind == "redis away":
                self.redis_up_at = self.now_s() + self.dice.uniform(0.2, 4.0)
            elif kind == "losses":
                self.losses = self.dice.choice((0.0, 0.02, 0.2))
            elif kind == "clock":
                self.wall_step = self.dice.choice((0, HOUR_MS, -HOUR_MS, 3_000))
            elif kind == "worker's clock":
                worker.wall_step = self.dice.choice((0, HOUR_MS, -HOUR_MS, 3_000))
            elif kind == "redis older":
                self.redis_up_at = self.now_s() + 0.3
                self.redis.come_back_with(self.dice.choice(self.kept)[1])
            elif kind == "log":
                self.partition.losses = self.dice.choice((0.0, 0.05))
        self.partition.losses = 0.0

    # --- what must hold -------------------------------------------------------------------------------------------

    def called(self, id: str) -> None:
        """The target has a callback."""
        told = self.told.get(id)
        now = self.now_ms()
        if told is not None and not told.in_doubt:
            if told.cancelled:
                self.broken.append(f"{id} fired after it was withdrawn")
            if now < told.due_at:
                self.broken.append(f"{id} fired {told.due_at - now} ms early")
        self.calls.setdefault(id, []).append(now)

    async def check(self) -> None:
        assert not self.broken
        assert self.told, "users were answered"
        for id, told in self.told.items():
            assert (id in self.delivered) != told.cancelled, f"{id} is lost, or was withdrawn and delivered"
        for id, times in self.calls.items():
            for first, second in pairwise(times):
                # A callback that failed comes again by its retries; one that was answered well only after a fault.
                near = [name for at, name in self.faults if first - LASTING_MS <= at <= second]
                assert near or id in self.failed, f"{id} came twice and nothing had happened"


class SimPlace(RedisStore):
    """The way of one center to Redis."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    async def finish(self, script: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        return await asyncio.shield(asyncio.ensure_future(self._run(script, keys[0], arguments)))

    async def _run(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        world = self._world
        await self._process.goes_on()
        await world.delay()
        if world.now_s() < world.redis_up_at:
            await self._process.goes_on()
            raise Away("connection refused")
        lost = world.dice.random() < world.losses
        if lost and world.dice.random() < 0.5:
            await asyncio.sleep(CALL_S)
            await self._process.goes_on()
            raise Away("timeout")
        said = world.redis.run(script, key, arguments)
        if lost:
            await asyncio.sleep(CALL_S)
        await world.delay()
        await self._process.goes_on()
        if lost:
            raise Away("timeout")
        return said

    async def forgets(self) -> bool | None:
        return False

    async def close(self) -> None:
        pass


class SimPartition:
    """A partition of the log that all centers reach."""

    def __init__(self, world: World) -> None:
        self._world, self.messages, self.low, self.losses = world, list[bytes](), 0, 0.0

    async def append(self, message: bytes) -> int | None:
        await self._world.delay()
        lost = self._world.dice.random() < self.losses
        if lost and self._world.dice.random() < 0.5:
            raise Failed("lost")
        self.messages.append(message)
        at = len(self.messages) - 1
        await self._world.delay()
        if lost:
            raise Failed("no acknowledgement")
        return at

    async def bounds(self) -> tuple[int, int]:
        await self._world.delay()
        return self.low, len(self.messages)

    async def read(self, first: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        for at in range(first, end):
            if at < self.low:
                raise IndexError(at)
            yield at, self.messages[at]

    async def drop(self, below: int) -> None:
        self.low = max(self.low, below)


class _Stalling:
    """The partition as a process sees it, which may be dead or stand still."""

    def __init__(self, partition: SimPartition, process: Process) -> None:
        self._partition, self._process = partition, process

    async def append(self, message: bytes) -> int | None:
        await self._process.goes_on()
        at = await self._partition.append(message)
        await self._process.goes_on()
        return at

    async def bounds(self) -> tuple[int, int]:
        await self._process.goes_on()
        return await self._partition.bounds()

    async def read(self, first: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        await self._process.goes_on()
        async for each in self._partition.read(first, end):
            yield each

    async def drop(self, below: int) -> None:
        await self._partition.drop(below)


class SimLogs:
    """`plane.log.Logs` of one process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    async def open(self, name: str, partition: int, epoch: int | None = None) -> SharedLog:
        return await SharedLog.open(_Stalling(self._world.partition, self._process), epoch)

    async def close(self) -> None:
        pass


class CenterNode:
    """One life of a center's process."""

    def __init__(self, world: World) -> None:
        self.world, self.process = world, Process()
        log = structlog.get_logger()
        redis = RedisSchedule(
            SimPlace(world, self.process),
            "world",
            self._fire,
            log,
            history_ms=HOUR_MS,
            ahead_ms=AHEAD_MS,
            dead_days=30,
            wall=world.wall_ms,
            monotonic=world.mono_ms,
        )
        self.schedule: Schedule = redis
        if world.logged:
            logs = SimLogs(world, self.process)
            logged = LoggedSchedule(
                redis, logs, "messages", log, ahead_ms=AHEAD_MS, records_min=150, wall=world.wall_ms
            )
            redis.on_back = logged.came_back
            self.schedule = logged
        self.center = Center(
            self.schedule,
            world.topics,
            Answers(world.folder),
            log,
            overdue_rate=1_000_000,
            wall=world.wall_ms,
            monotonic=world.now_s,
        )
        self._dead = asyncio.Event()

    def _fire(self, worker: int, fires: bytes) -> None:
        if self.process.alive:
            self.center.on_fires(worker, fires)

    async def opened(self) -> bool:
        """Wait for the schedule; False: it does not open."""
        while self.process.alive:
            try:
                await self.schedule.open()
                self.center.topics_changed()
                return True
            except BlockingIOError:
                await asyncio.sleep(0.1)
            except (OSError, StoreError):
                self.kill()
            except asyncio.CancelledError:
                if self.process.alive:
                    raise
        return False

    async def ends(self) -> None:
        """Return when it failed or was killed."""
        failed = asyncio.ensure_future(self.schedule.failed.wait())
        dead = asyncio.ensure_future(self._dead.wait())
        while not (failed.done() or dead.done()):
            await asyncio.wait([failed, dead], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            if self.process.alive:
                self.center.sweep()
        failed.cancel()
        self.kill()

    def kill(self) -> None:
        self.process.alive = False
        self._dead.set()

    async def asked(self, answer: Awaitable[T]) -> T:
        """Of a process that lives until it has answered. Raises `Unreachable`."""
        await self.world.delay()
        asking = asyncio.ensure_future(answer)
        dead = asyncio.ensure_future(self._dead.wait())
        await asyncio.wait([asking, dead], timeout=10.0, return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if not asking.done() or not self.process.alive:
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise Unreachable("no answer")
        try:
            said = asking.result()
        except StoreError as error:
            raise Unreachable(str(error)) from None
        await self.world.delay()
        if self.world.dice.random() < self.world.losses:
            raise Unreachable("the answer was lost")
        return said


class SimLink:
    """A `systems.messages.receiver.Center`: whichever center serves now."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _center(self) -> CenterNode:
        node = self._world.center
        if node is None or not node.process.alive:
            raise Unreachable("no center is known")
        return node

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        node = self._center()
        replies = await node.asked(node.center.insert(msgspec.msgpack.encode(messages)))
        return msgspec.msgpack.decode(replies, type=list[Any])

    async def change(self, topic: int, changes: Sequence[NewChange]) -> list[Reply]:
        node = self._center()
        return await node.asked(node.center.change(topic, changes))

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        node = self._center()
        return await node.asked(node.schedule.get(ids))

    async def answers(self, ids: Sequence[int]) -> dict[int, bytes]:
        return {}


class User:
    """Sends, and changes its mind; asks again until it is answered."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number
        self._receiver = Receiver(
            world.topics, SimLink(world), body_bytes_max=1_000, delay_days_max=10, wall=world.now_ms
        )

    async def _answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except Unreachable:
                await asyncio.sleep(self._world.dice.uniform(0.05, 0.5))

    async def run(self) -> None:
        dice, count = self._world.dice, 0
        while self._world.now_s() < FAULTS_S:
            await asyncio.sleep(dice.uniform(0.1, 4.0))
            sends = []
            for _ in range(dice.randrange(1, 4)):
                count += 1
                id = f"{self._number}-{count}"
                self._world.ids[self._world.numbers.of([id])[0]] = id
                sends.append(Send(body=b"x", id=id, in_ms=dice.choice((0, 300, 3_000, 30_000))))
            if dice.random() < 0.2:
                await self._withdraw_ahead(str(sends[0].id))
            before = self._world.now_ms()
            for answer in await self._answered(lambda sends=sends: self._receiver.send("orders", sends)):  # type: ignore[misc]
                assert isinstance(answer, Sent), answer
                told = self._world.told.setdefault(answer.id, Told(before))
                told.due_at = answer.due_at
                assert told.cancelled == (answer.state == "cancelled"), f"{answer.id} was withdrawn ahead of itself"
            if dice.random() < 0.7:
                await self._change(str(dice.choice(sends).id))

    async def _withdraw_ahead(self, id: str) -> None:
        """It overtakes its message."""
        (changed,) = await self._answered(lambda: self._receiver.change("orders", [Change(id=id, verb="cancel")]))
        assert isinstance(changed, Changed), changed
        assert changed.outcome == "unknown", changed
        self._world.told[id] = Told(0, cancelled=True)

    async def _change(self, id: str) -> None:
        world = self._world
        await asyncio.sleep(world.dice.uniform(0, 4.0))
        told = world.told[id]
        verb = world.dice.choice(("cancel", "cancel", "postpone", "advance"))
        change = Change(id=id, verb=verb) if verb == "cancel" else Change(id=id, verb=verb, at=world.now_ms() + 2_000)  # type: ignore[arg-type]
        told.in_doubt = True
        if change.at is not None:  # a request whose answer was lost may have been done
            told.due_at = min(told.due_at, change.at)
        (changed,) = await self._answered(lambda: self._receiver.change("orders", [change]))
        told.in_doubt = False
        if isinstance(changed, Refused):
            assert (changed.code, verb != "cancel") == ("conflict", True), changed
            assert ("which is earlier" if verb == "advance" else "which is later") in changed.detail, changed
            return
        assert changed.outcome != "unknown", f"{id} was accepted"
        if changed.outcome == "done":
            if verb == "cancel":
                assert id not in world.delivered, f"{id} was delivered, and was told as withdrawn"
                told.cancelled = True
            elif changed.due_at is not None:
                told.due_at = changed.due_at
        elif changed.outcome == "already fired":
            assert not told.cancelled
            told.said_fired = True


class WorkerNode:
    """A worker's machine: lives follow each other."""

    def __init__(self, world: World, node: int) -> None:
        self._world, self._node, self._epoch = world, node, 0
        self.process = Process()
        self.wall_step = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def kill(self) -> None:
        self.process.alive = False

    def wall_ms(self) -> int:
        return self._world.now_ms() + self.wall_step

    async def run(self) -> None:
        while True:
            self.process = Process()
            self._epoch += 1
            await self._live(self.process, (self._node << 32) | self._epoch)

    async def _live(self, process: Process, incarnation: int) -> None:
        while process.alive:
            node = self._world.center
            session = node.center.join(incarnation, 20) if node is not None and node.process.alive else None
            if node is None or session is None:
                await asyncio.sleep(0.2)
                continue
            while process.alive and node.process.alive and not session.closed:
                while session.outbox:
                    for fire in msgspec.msgpack.decode(session.outbox.popleft(), type=list[Fire]):
                        self._begin(self._fire(process, incarnation, fire))
                session.wake.clear()
                try:
                    async with asyncio.timeout(0.3):
                        await session.wake.wait()
                except TimeoutError:
                    continue
            self._left(node, session)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _left(node: CenterNode, session: Session) -> None:
        if node.process.alive:
            node.center.leave(session)

    async def _fire(self, process: Process, incarnation: int, fire: Fire) -> None:
        world = self._world
        await world.delay()
        await process.goes_on()
        id = world.ids[fire.number]
        now = self.wall_ms()
        if now < fire.due_at and fire.attempts == 1:
            if fire.due_at - now > BEHIND_MS:
                await self._release(process, incarnation, fire, fire.until)
                return
            await asyncio.sleep((fire.due_at - now) / 1_000)
            await process.goes_on()
            now = self.wall_ms()
        if now + TIMEOUT_S * 1_000 + 1_000 > fire.until:
            await self._release(process, incarnation, fire, min(now, fire.until))
            return
        await world.delay()
        await process.goes_on()
        world.called(id)
        bad = world.dice.random() < world.failing and fire.attempts < 3
        (world.failed if bad else world.delivered).add(id)
        await world.delay()
        await process.goes_on()
        following = min(self.wall_ms(), fire.until) + 500 if bad else None
        verb = "fail" if bad else "deliver"
        await self._tell(process, incarnation, Result(fire.number, fire.topic, fire.claim, verb, following, 1, 1.0))  # type: ignore[arg-type]

    async def _release(self, process: Process, incarnation: int, fire: Fire, following: int) -> None:
        result = Result(fire.number, fire.topic, fire.claim, "release", following, -1, 0.0)
        await self._tell(process, incarnation, result)

    async def _tell(self, process: Process, incarnation: int, result: Result) -> None:
        while True:
            await process.goes_on()
            node = self._world.center
            if node is not None and node.process.alive:
                try:
                    told = msgspec.msgpack.encode([result])
                    if all(await node.asked(node.center.results(incarnation, 1_000, told))):
                        return
                except Unreachable:
                    pass
            await asyncio.sleep(0.2)


def play(seed: int, folder: Path, *, logged: bool) -> World:
    """One run. Raises `AssertionError` if a promise is broken."""
    world: list[World] = []
    random.seed(seed)  # of the center's policies

    async def run() -> None:
        world.append(World(seed, folder, logged))
        Answers(folder).open()
        await world[0].run()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    return world[0]
