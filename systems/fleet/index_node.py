"""An index node: it receives clients' hellos, heartbeats and byes, and picks clients for schedulers.

Connects presence, index and picks to the broker and to callers. Every index node receives all clients' messages itself,
and is told of the others' picks; so each can take over a mark. It must not know tasks, results or a store. Its state
survives it in a file, and a new node copies a running one: clients with heartbeats are then not asked for a hello
again.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from muster.clock import now_ms
from muster_server.plane.calls import CallError, Peer, Server, key_of
from muster_server.plane.ownership.errors import Away
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, password, secret
from muster_server.systems.fleet import index, picks, schema
from muster_server.systems.fleet.hearing import Hearing
from muster_server.systems.fleet.index import Index, Update, UpdateError
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.minutes import Minutes
from muster_server.systems.fleet.mqtt import Link, LinkError
from muster_server.systems.fleet.options import FleetSettings
from muster_server.systems.fleet.owner import chosen
from muster_server.systems.fleet.picks import Picks
from muster_server.systems.fleet.presence import Presence
from muster_server.systems.fleet.questions import (
    Averages,
    Client,
    ClientPage,
    Clients,
    Copy,
    Count,
    Counted,
    Draw,
    Fairness,
    Follow,
    MinuteCounts,
    Picked,
    PickOne,
    Ping,
    Pong,
    Readmit,
    Release,
    Spread,
    Stats,
)
from muster_server.systems.fleet.selector import COUNTED, SelectorError, parse
from muster_server.systems.fleet.sessions import Waiting, mark

if TYPE_CHECKING:  # imported only if something is stored
    from muster_server.systems.fleet.redis import Sessions

ROLE: Final = "index"
TICK_S: Final = 0.25
KEEP_S: Final = 5.0
"""Longest age of the file, in seconds."""
COPY_S: Final = 20.0
HOLDS_MAX: Final = 65_536
MINUTES_MAX: Final = 1_440
LIMIT_MAX: Final = 10_000
AHEAD_SHOWN: Final = 20
"""Limit of clients with clocks ahead that the status lists."""


class IndexState(msgspec.Struct, frozen=True):
    """The whole state of a node: the content of its file and of a copy."""

    clients: index.Snapshot
    picks: picks.State
    epoch: int
    holds: dict[str, list[tuple[int, bytes]]]
    """For each run: the remaining ms, and the numbers of its clients."""


class IndexNode:
    """The `plane.service.Service` of an index node."""

    take_trust: Final = None

    def __init__(self, spec: Spec, settings: FleetSettings, context: Context, user: str) -> None:
        """Raises `SpecError`."""
        assert spec.bind is not None
        fleet = settings.fleet
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._node, self._bind, self._context = spec.node, spec.bind, context
        self._fleet, self._log = fleet, context.log
        self._key = key_of(secret(spec.cluster_secret_file, 32))
        self._file = Path(settings.folder) / f"fleet-index-{spec.node}.state"
        self._answers: dict[type[msgspec.Struct], Any] = {
            Ping: self._ping,
            PickOne: self._pick,
            Follow: self._follow,
            Release: self._release,
            Averages: self._averages,
            Clients: self._clients,
            Fairness: self._fairness,
            Count: self._count,
            Copy: self._copy,
            Stats: self._stats,
            Readmit: self._readmit,
        }
        self._server = Server(self._key, self._answers)
        self._link = Link(
            settings.brokers,
            user,
            password(settings.password_file),
            schema.PRESENCE,
            self._heard,
            name=f"muster-{ROLE}-{spec.node}" if settings.user else "",
            tls=settings.tls,
            first=spec.node,
            on_change=self._linked,
            on_retained=lambda topic, _: self._presence.retained(self._hearing.now(), topic),
        )
        self._hearing = Hearing()
        self._hearing.hears(False)  # until the broker is connected
        self._epoch = 0
        """The highest epoch of a scheduler that asked."""
        self._picks_made = self._refused = 0
        self._holds: dict[str, list[tuple[int, NDArray[np.uint32]]]] = {}
        """Clients that runs keep busy, and until when, in ms of `Hearing`'s time."""
        self._speaking: tuple[int, ...] = (spec.node,)
        self._restored = False
        self._waiting = Waiting()
        self._sessions = self._kept(settings, spec.node) if settings.redis else None
        self._begin(None)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _begin(self, known: IndexState | None) -> None:
        """Start with a known state, or with an empty one."""
        fleet = self._fleet
        self._minutes = Minutes(0 if known is None else known.picks.minute)
        minute = self._minutes.now()
        self._index = Index() if known is None else Index.restored(known.clients)
        if known is None:
            self._picks = Picks(self._index, minute, in_flight_max=fleet.in_flight_max)
        else:
            self._picks = Picks.restored(self._index, known.picks, in_flight_max=fleet.in_flight_max)
            self._epoch = known.epoch
            for run, held in known.holds.items():
                for left, numbers in held:
                    busy = np.frombuffer(numbers, dtype="<u4").astype(np.uint32)
                    self._picks.occupy(busy)
                    self._hold(run, busy, left)
        self._picks.advance(minute)
        self._leases = Leases(lease_ms=fleet.lease_ms, hint_ms=fleet.hint_ms)
        self._presence = Presence(
            self._index,
            self._leases,
            self._picks,
            beat_ms=fleet.beat_ms,
            forget_ms=fleet.forget_h * 3_600_000,
            send=self._link.send,
            speaks=self._speaks,
            changed=self._changed,
            wall_ms=now_ms,
            clear=self._link.clear,
        )
        self._presence.restored(self._hearing.now())

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set."""
        await self._server.start(*self._bind)
        work = asyncio.create_task(self._work())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.draining = True
            for task in (work, stopped):
                task.cancel()
            await asyncio.wait([work, stopped])
            await self._server.stop()
            await self._link.close()
            if self._sessions is not None:
                await self._sessions.stop()
            self.closed = True
        if not work.cancelled():
            work.result()
        await asyncio.to_thread(self._keep, self._known())

    async def _work(self) -> None:
        try:
            self._begin(await self._other_knows() or self._file_knows())
        except (ValueError, UpdateError) as error:  # clients send a hello again after their next heartbeat
            self._log.error("starting with an empty state: the stored one is inconsistent", error=str(error))
            self._begin(None)
        if self._sessions is not None:
            await self._remember(self._sessions)
            self._sessions.start()
        self._restored = True
        await self._connect()
        began = time.monotonic()
        kept_at, changes = time.monotonic(), (self._index.changes, self._picks_made)
        while True:
            await asyncio.sleep(TICK_S)
            self._speaking = (*(node.node for node in self._others()), self._node)
            self._presence.tick(self._hearing.now())
            self._picks.advance(self._minutes.now())
            self._expire(_now())
            knows = time.monotonic() - began > self._fleet.lease_ms / 1000
            sessions = self._sessions
            if sessions is not None and sessions.stale and sessions.connected and knows:
                await sessions.sweep(lambda name: self._leases.epoch(name) is not None)
            state = (self._index.changes, self._picks_made)
            if time.monotonic() - kept_at >= KEEP_S and state != changes:
                kept_at, changes = time.monotonic(), state
                await asyncio.to_thread(self._keep, self._known())

    async def _connect(self) -> None:
        said = ""
        while True:
            try:
                await self._link.open()
                return
            except LinkError as error:
                if str(error) != said:
                    self._log.warning("waiting for the MQTT broker", cause=str(error))
                    said = str(error)
                await asyncio.sleep(1)

    def _kept(self, settings: FleetSettings, node: int) -> "Sessions":
        """The sessions in Redis. Raises `SpecError`. The library is imported here."""
        from muster_server.systems.fleet.redis import Sessions

        word = password(settings.redis_password_file)
        return Sessions(settings.redis, word, settings.instance, node, self._waiting, self._mine, self._log)

    async def _remember(self, sessions: "Sessions") -> None:
        """Load the stored clients, for a node that knows none: they have a whole lease for their next heartbeat."""
        if self._index.names():
            return
        for update in await sessions.load():
            with contextlib.suppress(UpdateError):
                self._index.apply(update)
        self._presence.restored(self._hearing.now())

    def _changed(self, update: Update, came: bool | None, attributes: dict[str, list[str]]) -> None:
        if self._sessions is not None:
            self._waiting.changed(update, came, attributes, now_ms())

    def _mine(self) -> list[Update]:
        """The records of the clients for which this node speaks."""
        records = (self._index.record(name) for name in self._index.names() if self._speaks(name))
        return [record for record in records if record is not None]

    def _linked(self, connected: bool) -> None:
        self._hearing.hears(connected)
        if connected != self.ready and not self.closed:
            self.ready = connected
            self.on_ready(connected)
            if not connected and not self.draining:
                self._log.warning("the MQTT broker does not answer; clients stay until their leases end")

    # --- copies -------------------------------------------------------------------------------------------------------

    def _known(self) -> IndexState:
        now = _now()
        holds = {
            run: [(until - now, numbers.astype("<u4").tobytes()) for until, numbers in held]
            for run, held in self._holds.items()
        }
        return IndexState(self._index.snapshot(), self._picks.state(), self._epoch, holds)

    def _keep(self, known: IndexState) -> None:
        """Write the file atomically; without its file a node starts with the clients' own hellos."""
        beside = self._file.with_suffix(".new")
        try:
            beside.write_bytes(msgspec.msgpack.encode(known))
            beside.replace(self._file)
        except OSError as error:
            self._log.warning("cannot write the file", file=str(self._file), error=error.strerror)

    def _file_knows(self) -> IndexState | None:
        try:
            return msgspec.msgpack.decode(self._file.read_bytes(), type=IndexState)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            self._log.warning("starting without the file", file=str(self._file), error=str(error))
            return None

    async def _other_knows(self) -> IndexState | None:
        for node in self._others():
            peer = Peer(node.client, self._key)
            try:
                return msgspec.msgpack.decode(await peer.ask(Copy(), bytes, COPY_S), type=IndexState)
            except CallError as error:
                self._log.info("no copy of a running index node", peer=node.node, peer_name=node.name, cause=str(error))
            finally:
                await peer.close()
        return None

    def _others(self) -> list[Any]:
        """The other running index nodes."""
        nodes = self._context.snapshot().of(ROLE)
        return [each for each in nodes if each.node != self._node and each.state == "running" and each.client]

    def _speaks(self, client: str) -> bool:
        """Whether this node sends notices to a client: one node does, and two may while they disagree."""
        return chosen(client, self._speaking) == self._node

    # --- messages and requests ----------------------------------------------------------------------------------------

    def _heard(self, topic: str, payload: bytes) -> None:
        self._presence.receive(self._hearing.now(), topic, payload)

    async def _ping(self, _: Ping) -> Pong:
        if not (self._restored and self._link.connected):
            raise CallError("away", "the index is not loaded yet, or its broker does not answer")
        return Pong(self._index.online)

    def _obey(self, epoch: int) -> None:
        """Refuse a scheduler that another one has replaced (I-1)."""
        if epoch < self._epoch:
            self._refused += 1
            raise CallError("superseded", f"a scheduler of epoch {self._epoch} leads, not the one of epoch {epoch}")
        self._epoch = epoch

    async def _pick(self, question: PickOne) -> Picked:
        self._obey(question.epoch)
        if len(self._holds) >= HOLDS_MAX:
            raise CallError("busy", f"too many runs in flight (limit {HOLDS_MAX})")
        selector = _selector(question.selector)
        known = (self._index.number(name) for name in question.without)
        without = np.array([number for number in known if number is not None], dtype=np.uint32)
        pick = self._picks.pick(selector, question.wanted, question.seed, without=without)
        self._hold(question.run, pick.numbers, question.hold_ms)
        self._picks_made += 1
        asked: list[tuple[str, int]] = []
        marks: list[str] = []
        for client in pick.clients:
            record = self._index.record(client)
            assert record is not None, "a member has a record"
            asked.append((client, record.epoch))
            marks.append(mark(record.attributes or {}))
        draw = Draw(
            pick.seed,
            pick.round,
            pick.of_round,
            pick.members,
            pick.tired,
            pick.excused,
            pick.punishment,
            int(time.time() // 60),
            self._node,
            pick.replay,
        )
        return Picked(asked, draw, pick.selector, marks)

    async def _follow(self, question: Follow) -> Pong:
        self._obey(question.epoch)
        found = [self._index.number(client) for client in question.clients]
        of_round = sum(number is not None for number in found[: question.of_round])
        numbers = np.array([number for number in found if number is not None], dtype=np.uint32)
        self._picks.follow(question.deck, numbers, question.round, of_round, question.punishment)
        self._hold(question.run, numbers, question.hold_ms)
        return Pong(self._index.online)

    async def _release(self, question: Release) -> Pong:
        self._obey(question.epoch)
        for _, numbers in self._holds.pop(question.run, ()):
            self._picks.release(numbers)
        return Pong(self._index.online)

    async def _averages(self, question: Averages) -> Pong:
        self._obey(question.epoch)
        self._picks.set_averages(question.picked_per_task, question.tasks_per_minute)
        return Pong(self._index.online)

    async def _clients(self, question: Clients) -> ClientPage:
        found = self._index.select(_selector(question.selector))
        names = sorted((self._index.name(number), number) for number in found)
        page = [each for each in names if each[0] > question.after][: min(question.limit, LIMIT_MAX)]
        clients = [self._client(name) for name, _ in page]
        return ClientPage(len(names), clients, bool(page) and page[-1] != names[-1])

    def _client(self, name: str) -> Client:
        record, number = self._index.record(name), self._index.number(name)
        assert record is not None
        assert number is not None
        picked = int(self._picks.picked(np.array([number], dtype=np.uint32))[0])
        weight, busy = self._picks.weight(name), self._picks.in_flight(name)
        return Client(name, record.epoch, record.attributes or {}, round(weight or 0.0, 4), picked, busy)

    async def _count(self, question: Count) -> Counted:
        if question.attribute not in COUNTED:
            raise CallError(
                "selector", f"unknown attribute {question.attribute[:80]!r} (expected one of {', '.join(COUNTED)})"
            )
        members = self._index.select(_selector(question.selector))
        counts = self._index.values(question.attribute, members)
        limit = max(1, min(question.limit, LIMIT_MAX))
        shown = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:limit]
        return Counted(question.attribute, len(members), shown, len(counts) - len(shown))

    async def _fairness(self, question: Fairness) -> Spread:
        selector = _selector(question.selector)
        numbers = np.array(self._index.select(selector), dtype=np.uint32)
        round_, owed = self._picks.owed(selector)
        times, counts = np.unique(self._picks.picked(numbers), return_counts=True)
        weights = self._picks.weights(numbers)
        return Spread(
            len(numbers),
            round_,
            owed,
            {int(time): int(count) for time, count in zip(times, counts, strict=True)},
            round(float(weights.min()), 4) if len(weights) else 1.0,
            round(float(weights.mean()), 4) if len(weights) else 1.0,
            round(self._picks.punishment, 4),
            *self._picks.averages,
        )

    async def _stats(self, question: Stats) -> list[MinuteCounts]:
        if self._sessions is None:
            raise CallError("kept", "connects and disconnects are not stored: fleet.redis is none")
        if not 0 <= question.last - question.first <= MINUTES_MAX:
            raise CallError("kept", f"too many minutes (limit {MINUTES_MAX} per request)")
        try:
            return await self._sessions.minutes(question.first, question.last)
        except Away as error:
            raise CallError("store", str(error)) from None

    async def _readmit(self, question: Readmit) -> bool:
        known = self._presence.readmit(question.client)
        self._log.info("a client may begin again with any epoch", client=question.client, known=known)
        return known

    async def _copy(self, _: Copy) -> bytes:
        return msgspec.msgpack.encode(self._known())

    def _hold(self, run: str, numbers: NDArray[np.uint32], hold_ms: int) -> None:
        self._holds.setdefault(run, []).append((_now() + hold_ms, numbers))

    def _expire(self, now: int) -> None:
        """Free the clients of runs that no scheduler ended."""
        for run in [run for run, held in self._holds.items() if all(until < now for until, _ in held)]:
            for _, numbers in self._holds.pop(run):
                self._picks.release(numbers)

    # --- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state for `muster status`."""
        return {
            "state": "draining" if self.draining else "ready" if self.ready else "not ready",
            "clients": self._index.online,
            "known": len(self._index.names()),
            "broker": "connected" if self._link.connected else "away",
            "runs": len(self._holds),
            "scheduler_epoch": self._epoch,
            "sessions": self._kept_where(),
            "clients_ahead": len(ahead := self._presence.ahead()),
            "ahead": list(ahead)[:AHEAD_SHOWN],
        }

    def _kept_where(self) -> str:
        sessions = self._sessions
        return "kept nowhere" if sessions is None else "kept" if sessions.connected else f"{len(self._waiting)} wait"

    def counters(self) -> list[Figure]:
        """Counters since the start."""
        presence, kept = self._presence, self._sessions
        return [
            ("fleet_clients_came", "Clients that came online", presence.came),
            ("fleet_clients_went", "Clients whose leases ended", presence.went),
            ("fleet_messages_received", "Messages of clients", self._link.received),
            ("fleet_notices_sent", "Notices to clients", self._link.sent),
            ("fleet_picks", "Draws of clients for runs", self._picks_made),
            (
                "fleet_decks_dropped",
                "Selectors whose round was dropped, because too many are in use",
                self._picks.decks_dropped,
            ),
            ("fleet_questions_refused", "Requests refused because another scheduler leads", self._refused),
            (
                "fleet_sessions_written",
                "Connects and disconnects written to Redis",
                0 if kept is None else kept.written,
            ),
            (
                "fleet_sessions_dropped",
                "Connects and disconnects missing in Redis, because too many waited",
                self._waiting.dropped,
            ),
            *_dropped(presence.dropped, ("flood", "topic", "size", "form", "refused")),
        ]

    def gauges(self) -> list[Figure]:
        """The present gauges."""
        return [
            ("fleet_clients", "Clients that are online", self._index.online),
            (
                "fleet_clients_ahead",
                "Online clients with an epoch in the future: their clocks are ahead",
                len(self._presence.ahead()),
            ),
            ("fleet_clients_known", "Clients that are online or not forgotten yet", len(self._index.names())),
            ("fleet_punishment", "Cost of a task in thousandths of a weight", self._picks.punishment),
            (
                "fleet_sessions_waiting",
                "Connects, disconnects and sessions that are not written yet",
                len(self._waiting),
            ),
            ("fleet_broker_connected", "1 while the MQTT broker is connected", float(self._link.connected)),
        ]

    def addresses(self) -> list[tuple[str, int]]:
        """The address for callers."""
        return [self._bind]

    def take(self, settings: FleetSettings) -> None:
        """Does nothing: no setting can change while it runs."""


def _dropped(counts: Any, reasons: tuple[str, ...]) -> Iterator[Figure]:
    text = "Messages of clients that changed nothing"
    for reason in reasons:
        yield f'fleet_dropped{{reason="{reason}"}}', text, counts[reason]


def _selector(text: str) -> Any:
    try:
        return parse(text)
    except SelectorError as error:
        raise CallError("selector", str(error)) from None


def _now() -> int:
    return int(time.monotonic() * 1000)
