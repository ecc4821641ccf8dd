"""The archive's node: keeps rooms, drops what is old, and answers requests for pages.

Connects the memberships, the writer and the store to callers. It must not know SQL or HTTP.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

import muster
from muster.clock import now_ms
from muster_server.control.cluster.places import Places
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError, password, secret
from muster_server.systems.rooms.archive.keeping import Find, Keeping
from muster_server.systems.rooms.archive.options import ArchiveOptions, ArchiveSettings
from muster_server.systems.rooms.archive.records import Limits, Store, Totals
from muster_server.systems.rooms.archive.shapes import (
    LATEST_MAX,
    PAGE_MAX,
    Latest,
    Message,
    Page,
    Read,
    ReadLatest,
    full,
)
from muster_server.systems.rooms.archive.writing import Writer
from muster_server.systems.rooms.cli.listing import Listing
from muster_server.systems.rooms.http.sessions import Session

DAY_MS: Final = 86_400_000
SWEEP_S: Final = 5.0
AGAIN_S: Final = 1.0
FOLLOW_S: Final = 0.2
ERRORS_SHOWN: Final = 20
"""Limit of rooms in the status that are not kept now."""


class ArchiveNode:
    """The `plane.service.Service` of a node."""

    take_trust: Final = None

    def __init__(
        self,
        spec: Spec,
        settings: ArchiveSettings,
        context: Context,
        store: Store,
        *,
        where: str | muster.Address | None = None,
        find: Find | None = None,
    ) -> None:
        """`where` and `find`: other servers than those of the spec, and the rooms there. Raises `SpecError`."""
        assert spec.bind is not None
        options = msgspec.convert(settings.options, ArchiveOptions)
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._bind, self._log, self._context = spec.bind, context.log, context
        self._store = store
        self._limits = Limits(options.keep_days * DAY_MS, options.room_mib << 20, options.total_mib << 20)
        self._places = Places(spec, context, settings.folder)
        self._registry = spec.registry is not None
        self._map: Any = None
        self._session = Session(where or settings.folder, None)
        access = spec.admin_access
        self._listing = Listing(lambda: self._places.processes(access))
        self._writer = Writer(store, context.log)
        try:
            self._keeping = Keeping(options, self._session, find or self._found_rooms, store, self._writer, context.log)
        except ValueError as error:
            raise SpecError(f"archive.rooms: {error}") from None
        self._totals = Totals(0, 0, 0)
        self._reads = self._read_messages = self._dropped = self._failed = 0
        self._error = ""
        """Why the store cannot be used; empty: it can."""
        self._server = Server(
            key_of(secret(spec.cluster_secret_file, 32)), {Read: self._read, ReadLatest: self._read_latest}
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Keep rooms and serve until `stop` is set."""
        await self._server.start(*self._bind)
        self._follow()
        keeping = asyncio.create_task(self._keeping.run())
        writing = asyncio.create_task(self._writer.run())
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(each) for each in (stop.wait(), self._sweep(), self._look())
        ]
        try:
            await asyncio.wait([keeping, writing, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.draining = True
            keeping.cancel()
            await asyncio.wait([keeping])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await asyncio.wait(
                        [asyncio.ensure_future(self._writer.flushed()), writing], return_when=asyncio.FIRST_COMPLETED
                    )
            for task in (writing, *tasks):
                task.cancel()
            ended = await asyncio.gather(keeping, writing, *tasks, return_exceptions=True)
            await self._server.stop()
            await self._session.close()
            await self._listing.close()
            await self._store.close()
            self.closed = True
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _sweep(self) -> None:
        """Open the store, and drop what is old, until cancelled."""
        while True:
            try:
                trimmed = await self._store.trim(now_ms(), self._limits)
                self._totals = await self._store.totals()
            except StoreError as error:
                self._lost(error)
                await asyncio.sleep(AGAIN_S)
                continue
            self._dropped += trimmed.messages
            self._found()
            await asyncio.sleep(0 if trimmed.more else SWEEP_S)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            self._follow()

    def _follow(self) -> None:
        """Use the servers of the map."""
        if self._registry and (snapshot := self._context.snapshot()) is not self._map:
            self._map = snapshot
            self._session.redirect(self._places.address(snapshot))

    async def _found_rooms(self) -> Mapping[str, int]:
        """The rooms of all gateways and edges, with their members. Raises `Problem`."""
        return {room["name"]: room["members"] for room in (await self._listing.rooms()).rooms}

    def _found(self) -> None:
        if self._error:
            self._log.info("the database answers again")
            self._error = ""
        if not self.ready:
            self.ready = True
            self.on_ready(True)

    def _lost(self, error: StoreError) -> None:
        self._failed += 1
        if str(error) != self._error:
            self._log.warning("the database does not answer", cause=str(error))
            self._error = str(error)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _read(self, asked: Read) -> Page:
        """Raises `CallError`: `question`, `store`."""
        if not 1 <= asked.limit <= PAGE_MAX:
            raise CallError("question", f"invalid limit of a page: {asked.limit} (expected 1 to {PAGE_MAX})")
        if asked.since_ms is not None and not -(1 << 62) < asked.since_ms < 1 << 62:
            raise CallError("question", f"invalid time: {asked.since_ms} (expected milliseconds since 1970)")
        try:
            page = await self._store.read(msgspec.structs.replace(asked, room=full(asked.room)))
        except StoreError as error:
            self._lost(error)
            raise CallError("store", str(error)) from None
        self._reads += 1
        self._read_messages += sum(isinstance(item, Message) for item in page.items)
        return page

    async def _read_latest(self, asked: ReadLatest) -> Latest:
        """Raises `CallError`: `question`, `store`."""
        if not 1 <= asked.limit <= LATEST_MAX:
            raise CallError("question", f"invalid limit of a page: {asked.limit} (expected 1 to {LATEST_MAX})")
        if not 0 <= asked.after < 1 << 62 or not 0 <= (asked.upto or 0) < 1 << 62:
            raise CallError("question", "invalid cursor of a page of keys")
        try:
            page = await self._store.latest(msgspec.structs.replace(asked, room=full(asked.room)))
        except StoreError as error:
            self._lost(error)
            raise CallError("store", str(error)) from None
        self._reads += 1
        self._read_messages += len(page.messages)
        return page

    # --- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state, and what waits."""
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        said: dict[str, Any] = {"state": state, "rooms": len(self._keeping), "waiting_bytes": self._writer.bytes}
        said |= {"stored_rooms": self._totals.rooms, "stored_messages": self._totals.messages}
        said |= {"stored_bytes": self._totals.bytes, "left_out": self._keeping.left_out}
        if error := self._error or self._writer.error:
            said["store"] = error
        if errors := self._keeping.errors:
            said["not_kept"] = dict(list(errors.items())[:ERRORS_SHOWN])
        return said

    def counters(self) -> list[Figure]:
        """Messages, gaps, pages."""
        writer = self._writer
        return [
            ("archive_messages", "Messages written to the archive", float(writer.messages)),
            (
                "archive_gaps",
                "Gaps written to the archive, in place of messages that it did not get",
                float(writer.gaps),
            ),
            ("archive_lost", "Messages that these gaps stand for, as far as known", float(writer.lost)),
            ("archive_dropped", "Messages dropped as too old, or beyond a limit", float(self._dropped)),
            (
                "archive_keys_left_out",
                "Messages whose key was left out, beyond archive.keys_max of their room",
                float(self._store.left_out),
            ),
            ("archive_reads", "Pages that were read", float(self._reads)),
            ("archive_messages_read", "Messages on these pages", float(self._read_messages)),
            (
                "archive_store_failures",
                "Requests and writes that failed, as the database did not answer",
                float(self._failed + writer.failed),
            ),
            ("archive_strangers", "Connections that did not prove the cluster's secret", float(self._server.refused)),
        ]

    def gauges(self) -> list[Figure]:
        """Rooms, what is stored, and what waits."""
        return [
            ("archive_rooms", "Rooms that the archive is a member of", float(len(self._keeping))),
            (
                "archive_left_out",
                "Rooms that match archive.rooms beyond archive.rooms_max",
                float(self._keeping.left_out),
            ),
            ("archive_stored_messages", "Messages in the archive", float(self._totals.messages)),
            ("archive_stored_bytes", "Bytes of the archive's messages, with their rows", float(self._totals.bytes)),
            ("archive_waiting_bytes", "Bytes that wait for the database", float(self._writer.bytes)),
        ]

    def addresses(self) -> list[tuple[str, int]]:
        """The address that it listens on."""
        return [self._bind]

    def take(self, settings: Any) -> None:
        """Does nothing: no setting can change while it runs."""


def build(spec: Spec, settings: ArchiveSettings, context: Context) -> ArchiveNode:
    """Make a node. Raises `SpecError`. The library of the store is imported here, and only in this process."""
    from muster_server.plane.database.url import location
    from muster_server.systems.rooms.archive.database.store import SqlStore

    try:
        where = location(settings.database)
        word = password(settings.database_password_file)
    except (ImportError, ValueError) as error:
        raise SpecError(f"database: {error}") from None
    options = msgspec.convert(settings.options, ArchiveOptions)
    store = SqlStore(where.identified(word) if word else where, settings.instance, options.keys_max)
    return ArchiveNode(spec, settings, context, store)
