"""A router's work with the database: it begins with the stored memberships, then stores the changes.

The engine takes loaded memberships as hints, below any report of a gateway. It remembers changes until this file takes
them, so nothing waits here. There is one load, at the start: when it ends or fails, gateways have reported the rest.
Imports no database library: `Late` does, while the engine serves.
"""

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

import structlog

from muster_server.plane.database.errors import Refused, told
from muster_server.plane.role import Handler
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.rooms.database.records import Change, Ended, Membership, Partition
from muster_server.systems.rooms.database.writer import BATCH, Writer
from muster_server.systems.rooms.router import DatabaseSettings, RouterSettings

if TYPE_CHECKING:
    from muster_server.systems.rooms.database.store import Store

CHANGES_MAX: Final = 1 << 20
"""Limit of rooms whose changes wait in the engine while the database does not answer: 60 MB."""
ASK_S: Final = 0.1
LOAD_S: Final = 10.0
CLOSE_S: Final = 0.5
"""Limit of the close in seconds; shorter than a child's time to end."""


class Engine(Protocol):
    """The router engine's methods for this; see `muster_server._engines.RouterEngine`."""

    def keep_changes(self, max: int) -> None:
        """Remember changes from now on."""

    def take_changes(self, limit: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int, int, bool]]]:
        """Take ended lives, which are forgotten first, and the current state of changed rooms."""

    def changes_kept(self) -> tuple[int, int]:
        """The number of waiting changes, and of changes dropped so far."""

    def hint(self, gateway: int, epoch: int, rooms: list[tuple[int, int, int]]) -> int:
        """Take stored memberships; returns how many the engine accepted."""


class Late:
    """A store whose library is imported at its first use, in a thread: the import takes a second, and the loop must
    continue."""

    def __init__(self, where: str, make: "Callable[[], Store]") -> None:
        self.where, self._make = where, make
        self._made: Store | None = None
        self._making = asyncio.Lock()

    async def made(self) -> "Store":
        """The store. Raises `DatabaseError`."""
        async with self._making:
            if self._made is None:
                try:
                    self._made = await asyncio.to_thread(self._make)
                except (ImportError, ValueError) as error:
                    raise Refused(f"{self.where}: {error}") from None
            return self._made

    async def open(self) -> None:
        """As `Store.open`."""
        await (await self.made()).open()

    async def write(self, changes: Sequence[Change]) -> None:
        """As `Store.write`."""
        await (await self.made()).write(changes)

    async def prune(self) -> None:
        """As `Store.prune`."""
        await (await self.made()).prune()

    async def load(self, partition: Partition) -> AsyncIterator[list[Membership]]:
        """As `Store.load`."""
        async for page in (await self.made()).load(partition):
            yield page

    @property
    def malformed(self) -> int:
        """As `Store.malformed`."""
        return 0 if self._made is None else self._made.malformed

    async def close(self) -> None:
        """As `Store.close`."""
        if self._made is not None:
            await self._made.close()


class Keeper:
    """Stores changes while the context is open."""

    name: Final = "database"
    """Name of its field in the status of a router."""
    handlers: Final[Mapping[str, Handler]] = {}

    def __init__(
        self,
        engine: Engine,
        store: Late,
        partition: Callable[[], Partition],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.warm_start = "loading"
        """Result of the load, as text."""
        self.loaded, self.load_s = 0, 0.0
        self._malformed = 0
        self._failed = ""
        """The reason why no change is taken from the engine now, if there is one."""
        self._engine, self._store, self._partition_now = engine, store, partition
        self._log = log.bind(database=store.where.partition(":")[0])
        self._writer = Writer(store, log)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def partition(self) -> Partition:
        """The router's current partition."""
        return self._partition_now()

    async def __aenter__(self) -> Self:
        self._engine.keep_changes(CHANGES_MAX)
        self._tasks = [asyncio.create_task(self._load()), asyncio.create_task(self._keep())]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CLOSE_S)
        await self._writer.close(CLOSE_S)
        await self._store.close()

    def status(self) -> dict[str, Any]:
        """The state for `/api/v1/status`."""
        writer = self._writer
        return {
            "url": self._store.where,
            "connected": self._connected(),
            "error": self._failed or writer.error,
            "warm_start": self.warm_start,
            "loaded": self.loaded,
            "written": writer.written,
            "waiting": self._waiting(),
            "dropped": self._dropped(),
            "malformed": self._skipped(),
        }

    def counters(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each counter, in the form of an engine."""
        writer = self._writer
        return [
            ("database_written", "Changes written to the database", writer.written),
            ("database_failed", "Attempts to write to the database that failed", writer.failed),
            ("database_dropped", "Changes missing in the database, because too many waited", self._dropped()),
            ("database_malformed", "Changes and rows that were skipped as malformed", self._skipped()),
        ]

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each gauge, in the form of an engine."""
        return [
            ("database_connected", "1 while changes can be written to the database", float(self._connected())),
            ("database_waiting", "Changes that are not in the database yet", float(self._waiting())),
            ("database_loaded", "Memberships that the warm start loaded", float(self.loaded)),
            ("database_load_seconds", "Duration of the warm start, or of the attempt", self.load_s),
        ]

    def _waiting(self) -> int:
        return self._writer.waiting + self._engine.changes_kept()[0]

    def _connected(self) -> bool:
        return self._writer.connected and not self._failed

    def _skipped(self) -> int:
        return self._malformed + self._store.malformed

    def _dropped(self) -> int:
        return self._writer.dropped + self._engine.changes_kept()[1]

    async def _load(self) -> None:
        began = time.monotonic()
        try:
            await self._store.made()  # not part of the time limit for the database
            async with asyncio.timeout(LOAD_S):
                async for page in self._store.load(self.partition):
                    self._hint(page)
        except Exception as error:
            self.warm_start = "no warm start" if not self.loaded else "warm start incomplete"
            reason = f"not loaded within {LOAD_S:.0f} s" if isinstance(error, TimeoutError) else told(error)
            self._log.warning(f"{self.warm_start}: gateways will report their rooms", reason=reason, loaded=self.loaded)
        else:
            self.warm_start = f"warm start with {self.loaded} memberships"
            self._log.info("warm start", loaded=self.loaded, seconds=round(time.monotonic() - began, 3))
        self.load_s = time.monotonic() - began

    def _hint(self, page: list[Membership]) -> None:
        def life(each: Membership) -> tuple[int, int]:
            return each.gateway, each.epoch

        for (gateway, epoch), rooms in itertools.groupby(sorted(page, key=life), life):
            told = [(each.room, each.check, each.version) for each in rooms]
            self.loaded += self._engine.hint(gateway, epoch, told)

    async def _keep(self) -> None:
        """Take changes from the engine now and then, at most what the writer accepts: the rest waits in the engine, one
        per key."""
        self._writer.start()
        while True:
            try:
                self._ask()
            except Exception as error:  # an internal error is logged and counted, and costs only this batch
                if not self._failed:
                    self._log.exception("cannot take the engine's changes")
                self._failed = told(error)
            else:
                self._failed = ""
            await asyncio.sleep(ASK_S)

    def _ask(self) -> None:
        while self._writer.waiting < BATCH:
            ended, changed = self._engine.take_changes(BATCH)
            # Other partitions' routers may still know that life; if not, they report it themselves.
            partition = self.partition
            for each in ended:
                self._put(Ended, *each, partition)
            for said in changed:
                self._put(Membership, *said)
            if len(changed) < BATCH:
                break

    def _put(self, make: Callable[..., Change], *fields: Any) -> None:
        try:
            self._writer.put(make(*fields))
        except ValueError as error:
            if not self._malformed:
                self._log.warning("dropped a malformed change; further ones are not logged", reason=str(error))
            self._malformed += 1


def opened(kept: DatabaseSettings) -> Late:
    """Make the store of a router's keeper; connects to nothing yet. Raises `SpecError`."""
    try:
        password = Path(kept.password_file).read_text(encoding="utf-8").strip("\r\n") if kept.password_file else None
    except (OSError, ValueError) as error:
        raise SpecError(f"database: {error}") from None

    def make() -> "Store":
        from muster_server.plane.database.url import location
        from muster_server.systems.rooms.database.store import Store

        where = location(kept.url)
        return Store(where if password is None else where.identified(password), kept.cluster)

    kind = kept.url.partition(":")[0]
    return Late(kept.url if kind == "sqlite" else kind, make)


def companion(
    spec: Spec, settings: RouterSettings
) -> Callable[[object, structlog.typing.FilteringBoundLogger, Callable[[], int]], Keeper] | None:
    """The function that starts the keeper of a router; None if it has no database. Raises `SpecError`."""
    kept = settings.database
    if kept is None:
        return None
    return functools.partial(keeper, kept, opened(kept))


def keeper(
    kept: DatabaseSettings,
    store: Late,
    engine: object,
    log: structlog.typing.FilteringBoundLogger,
    partitions: Callable[[], int],
) -> Keeper:
    """Make the keeper of the router of this partition; `partitions` returns the current number of partitions."""
    index = kept.partition

    def partition() -> Partition:
        count = partitions()
        return Partition(count if index < count else 2 * count, index)  # a partition that a growth is preparing

    return Keeper(cast(Engine, engine), store, partition, log)
