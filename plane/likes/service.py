"""A node of likes in its process: opens its partition, serves clients, writes behind, drains.

Puts together what the other files here own.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import muster
from muster._core import LikesEngine
from muster.instance import read_token
from plane.likes.changes import Changes
from plane.likes.listener import Listener, context
from plane.likes.live import Live
from plane.likes.options import LikesSettings
from plane.likes.partition import Partition, opened, opened_elsewhere
from plane.log import Logs, connect
from plane.service import Context, Figure
from plane.spec import Spec, SpecError

if TYPE_CHECKING:  # loaded only with a Redis
    from plane.likes.mirror import Mirror

LOOK_S: Final = 0.2
"""How often it is looked whether the log still takes changes."""
LAST_S: Final = 1.0
"""For the last pass at the end; what it does not write, the log has."""


class LikesService:
    """A `plane.service.Service`."""

    take_trust: Final = None
    """It checks no user's token."""

    def __init__(self, spec: Spec, settings: LikesSettings, context_: Context) -> None:
        """Raises `SpecError`."""
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._settings, self._log = settings, context_.log
        self._bind = spec.bind or ("127.0.0.1", 0)
        self._passwords = passwords(settings.users_file)
        try:
            self._tls = context(settings.tls_cert_file, settings.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            raise SpecError(f"likes.tls_cert_file: {settings.tls_cert_file}: {error}") from None
        self._database_password = _line(settings.database_password_file)
        self._redis_password = _line(settings.redis_password_file)
        self._snapshot, self._registry = context_.snapshot, spec.registry is not None
        self._token_file = spec.token_file or ""
        self._live: Live | None = None
        self._mirror: Mirror | None = None
        try:
            Path(settings.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"likes.folder: {settings.folder}: {error.strerror}") from None
        self._logs: Logs | None = None
        self._partition: Partition | None = None
        self._listener: Listener | None = None

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set. Raises `OSError` when the log cannot be opened, or takes nothing any more."""
        opening = asyncio.create_task(self._open())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                partition = opening.result()
                await self._serve(partition, stopping, drain_s)
        finally:
            self.closed = True
            for task in (opening, stopping):
                task.cancel()
            await asyncio.wait([opening, stopping])

    async def _open(self) -> Partition:
        from plane.database.url import location
        from plane.likes.database.store import SqlStore  # SQLAlchemy takes a second to load

        settings = self._settings
        where = location(settings.database)
        if self._database_password is not None:
            where = where.identified(self._database_password)
        store = SqlStore(where, settings.instance, 0)
        try:
            if not settings.options.log:
                return await opened(settings, 0, self._passwords, store, self._log)
            self._logs = connect(settings.options.log, Path(settings.folder))
            return await opened_elsewhere(settings, 0, self._passwords, store, self._logs, self._log)
        except BaseException:
            await store.close()
            raise

    async def _serve(self, partition: Partition, stopping: asyncio.Task[bool], drain_s: float) -> None:
        engine, behind, options = partition.engine, partition.behind, self._settings.options
        listener = Listener(engine, options.connections_max, partition.logged)
        bind = await listener.start(self._bind, self._tls)
        self._bind, self._partition, self._listener = bind, partition, listener
        figures = engine.figures()
        self._log.info(
            "serves likes", bind=bind, **{name: figures[name] for name in ("items", "users", "likes", "offset")}
        )
        self.ready = True
        self.on_ready(True)
        tasks = [asyncio.create_task(work) for work in (behind.run(), _watch(engine), *self._show(engine))]
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self.draining = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await listener.drain(drain_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await behind.tried()
            listener.close()
            await behind.close()
            self.ready = False
            self.closed = True
            if partition.logged is not None:
                await partition.logged.close()
            partition.close()
            if self._logs is not None:
                await self._logs.close()

    def _show(self, engine: LikesEngine) -> list[Coroutine[Any, Any, None]]:
        """What shows counts elsewhere: in rooms, and in a Redis."""
        options = self._settings.options
        if options.live_rate:
            self._live = Live(self._rooms, options.live_rate, options.live_rate_all, self._log)
        if options.redis:
            from plane.likes.mirror import Mirror, Target

            target = Target(options.redis, self._redis_password, options.redis_prefix)
            self._mirror = Mirror(engine, target, self._log)
        consumers = [each for each in (self._live, self._mirror) if each is not None]
        if not consumers:
            return []
        changes = Changes(engine, [each.waiting for each in consumers])
        return [changes.run(), *(each.run() for each in consumers), *([self._follow()] if self._registry else [])]

    def _rooms(self) -> str | muster.Address:
        """The folder of the instance, or the proxies of the map. Raises `MusterError`."""
        if not self._registry:
            return self._settings.instance_folder
        proxies = tuple((host, port, key.hex()) for host, port, key, _ in self._snapshot().servers()["proxy"])
        if not proxies:
            raise muster.Unavailable("no proxy is known yet")
        return muster.Address((), proxies, read_token(self._token_file))

    async def _follow(self) -> None:
        """Have the live counts go by the nodes of each map."""
        known = None
        while True:
            if self._live is not None and self._snapshot() is not known:
                known = self._snapshot()
                with contextlib.suppress(muster.MusterError):
                    address = self._rooms()
                    if isinstance(address, muster.Address):
                        self._live.redirect(address)
            await asyncio.sleep(LOOK_S)

    # --- what it says -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What it serves, and how far behind its database is."""
        state = "draining" if self.draining else "ready" if self.ready else "starting"
        if self._partition is None or self._listener is None:
            return {"state": state}
        behind = self._partition.behind
        return {
            "state": state,
            **self._partition.engine.figures(),
            "connections": len(self._listener.clients),
            "write_behind": behind.status(),
            **({} if self._live is None else {"live_counts": self._live.status()}),
            **({} if self._mirror is None else {"redis": self._mirror.status()}),
            "notes": [behind.note(), *([] if self._mirror is None else [self._mirror.note()])],
        }

    def counters(self) -> list[Figure]:
        """Commands, batches, clients, passes."""
        if self._partition is None or self._listener is None:
            return []
        listener, engine = self._listener, self._partition.engine
        return [
            ("likes_commands", "Commands of clients", engine.figures()["commands"]),
            ("likes_batches", "Groups of changes that were made durable with one sync", listener.batches),
            ("likes_clients", "Clients that connected", listener.accepted),
            ("likes_clients_refused", "Clients beyond likes.connections_max", listener.refused),
            *self._partition.behind.counters(),
            *(figure for each in (self._live, self._mirror) if each is not None for figure in each.counters()),
        ]

    def gauges(self) -> list[Figure]:
        """Items, users, likes, and what waits."""
        if self._partition is None or self._listener is None:
            return []
        figures = self._partition.engine.figures()
        return [
            ("likes_items", "Items", figures["items"]),
            ("likes_users", "Users who liked something", figures["users"]),
            ("likes_held", "Likes of all items", figures["likes"]),
            ("likes_offset", "Offset of the log", figures["offset"]),
            ("likes_connections", "Clients that are connected", len(self._listener.clients)),
            *self._partition.behind.gauges(),
            *(figure for each in (self._live, self._mirror) if each is not None for figure in each.gauges()),
        ]

    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens."""
        return [self._bind]

    def take(self, settings: LikesSettings) -> None:
        """Nothing of its settings changes while it runs."""


def passwords(file: str) -> list[tuple[str, str]]:
    """The users and passwords of a file, one `USER:PASSWORD` a line. Raises `SpecError`."""
    if not file:
        return []
    found: list[tuple[str, str]] = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        user, colon, password = line.partition(":")
        if not line.strip():
            continue
        if not (user and colon and password):
            raise SpecError(f"{file}: line {number} is not USER:PASSWORD")
        found.append((user, password))
    if not found:
        raise SpecError(f"{file}: has no USER:PASSWORD, so no client could connect")
    return found


def _line(file: str) -> str | None:
    return _text(file).strip("\r\n") if file else None


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"{file}: {error}") from None


async def _watch(engine: LikesEngine) -> None:
    """Raise `OSError` once the log takes nothing any more: a new process opens it again."""
    while (why := engine.refusal()) is None:  # noqa: ASYNC110 - the engine tells no one else
        await asyncio.sleep(LOOK_S)
    raise OSError(f"the log takes nothing any more: {why}")


def build(spec: Spec, settings: LikesSettings, context_: Context) -> LikesService:
    """Make the node. Raises `SpecError`."""
    return LikesService(spec, settings, context_)
