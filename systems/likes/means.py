"""The parts that all partitions of one node share: passwords, certificate, locations of logs and databases, live
counts.

Owns the opening of a partition. Knows no client's connection.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import muster
from muster.instance import read_token
from muster_server._engines import LikesEngine
from muster_server.plane.log import Logs, connect
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.likes.changes import Changes
from muster_server.systems.likes.listener import certificate
from muster_server.systems.likes.live import Live
from muster_server.systems.likes.options import LikesSettings
from muster_server.systems.likes.partition import Partition, opened, opened_elsewhere

if TYPE_CHECKING:  # imported only with a Redis
    from muster_server.systems.likes.mirror import Mirror

LOOK_S: Final = 0.2
Mine = Callable[[bytes], bool]
"""Whether a key belongs to a partition."""


class Means:
    """Call `close` at the end."""

    def __init__(self, spec: Spec, settings: LikesSettings, context_: Context) -> None:
        """Raises `SpecError`."""
        self.settings, self.log = settings, context_.log
        self.passwords = passwords(settings.users_file)
        try:
            self.tls = certificate(settings.tls_cert_file, settings.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            raise SpecError(f"likes.tls_cert_file: {settings.tls_cert_file}: {error}") from None
        self._database_password = _line(settings.database_password_file)
        self._redis_password = _line(settings.redis_password_file)
        self._snapshot, self._registry = context_.snapshot, spec.registry is not None
        self._token_file = spec.token_file or ""
        try:
            Path(settings.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"likes.folder: {settings.folder}: {error.strerror}") from None
        options = settings.options
        self.live = Live(self._rooms, options.live_rate, options.live_rate_all, self.log) if options.live_rate else None
        self._logs: Logs | None = None

    async def prepare(self) -> None:
        """Import libraries that take a second, in a thread."""
        await asyncio.to_thread(import_module, "muster_server.systems.likes.database.store")

    async def opened(self, number: int, epoch: int | None = None) -> Partition:
        """Open a partition. `epoch`: of the owner that the registry appointed; None: there is no other node.

        Raises `OSError` if its log is damaged, does not answer, or belongs to a later owner.
        """
        from muster_server.plane.database.url import location
        from muster_server.systems.likes.database.store import SqlStore  # importing SQLAlchemy takes a second

        settings = self.settings
        where = location(settings.database.replace("{partition}", str(number)))
        if self._database_password is not None:
            where = where.identified(self._database_password)
        store = SqlStore(where, settings.instance, number)
        try:
            if not settings.options.log:
                return await opened(settings, number, self.passwords, store, self.log, epoch)
            if self._logs is None:
                folder, partitions = Path(settings.folder), settings.partitions
                self._logs = connect(settings.options.log, folder, partitions=partitions)
            return await opened_elsewhere(settings, number, self.passwords, store, self._logs, self.log, epoch)
        except BaseException:
            await store.close()
            raise

    def mirror(self, engine: LikesEngine, mine: Mine = lambda key: True) -> "Mirror | None":
        """The mirror of an engine's counts in a Redis, if one is configured."""
        options = self.settings.options
        if not options.redis:
            return None
        from muster_server.systems.likes.mirror import Mirror, Target

        return Mirror(engine, Target(options.redis, self._redis_password, options.redis_prefix), self.log, mine)

    def shows(self, engine: LikesEngine, mirror: "Mirror | None") -> list[Coroutine[Any, Any, None]]:
        """The tasks that report an engine's changes elsewhere, besides the live counts' own."""
        consumers = [each for each in (self.live, mirror) if each is not None]
        if not consumers:
            return []
        changes = Changes(engine, [each.waiting for each in consumers])
        return [changes.run(), *([] if mirror is None else [mirror.run()])]

    def tell_no_more(self, others: Mine) -> None:
        """Stop reporting these items' counts, because another node does from now on."""
        if self.live is not None:
            self.live.waiting.discard(others)

    def lives(self) -> list[Coroutine[Any, Any, None]]:
        """The task of the live counts."""
        if self.live is None:
            return []
        return [self.live.run(), *([self._follow(self.live)] if self._registry else [])]

    async def close(self) -> None:
        """Close what its logs share, after the logs are closed."""
        if self._logs is not None:
            await self._logs.close()

    def _rooms(self) -> str | muster.Address:
        """The folder of the instance, or the proxies of the map. Raises `MusterError`."""
        if not self._registry:
            return self.settings.instance_folder
        proxies = tuple((host, port, key.hex()) for host, port, key, _ in self._snapshot().servers()["proxy"])
        if not proxies:
            raise muster.Unavailable("no proxy is known yet")
        return muster.Address((), proxies, read_token(self._token_file))

    async def _follow(self, live: Live) -> None:
        """Pass the nodes of each map to the live counts."""
        known = None
        while True:
            if self._snapshot() is not known:
                known = self._snapshot()
                with contextlib.suppress(muster.MusterError):
                    address = self._rooms()
                    if isinstance(address, muster.Address):
                        live.redirect(address)
            await asyncio.sleep(LOOK_S)


def passwords(file: str) -> list[tuple[str, str]]:
    """The users and passwords of a file, one `USER:PASSWORD` per line. Raises `SpecError`."""
    if not file:
        return []
    found: list[tuple[str, str]] = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        user, colon, password = line.partition(":")
        if not line.strip():
            continue
        if not (user and colon and password):
            raise SpecError(f"{file}: invalid line {number} (expected USER:PASSWORD)")
        found.append((user, password))
    if not found:
        raise SpecError(f"{file} has no line USER:PASSWORD, so no client could connect")
    return found


def _line(file: str) -> str | None:
    return _text(file).strip("\r\n") if file else None


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"{file}: {error}") from None
