"""Clients that find their servers in a registry: for backends, which follow changes of the proxies (ROOM-15).

The library itself asks no registry; this file reads one for it. End clients learn servers from servers.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

import muster
from muster.instance import Endpoint, read_token
from muster_server.control.cluster import specs
from muster_server.control.config import load as configuration
from muster_server.control.config.options import Config
from muster_server.control.errors import ConfigError
from muster_server.control.node.enrolment import judge, tree
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Snapshot
from muster_server.plane.engine import Server
from muster_server.plane.kind import Right
from muster_server.plane.kinds import listed
from muster_server.plane.spec import SpecError

TIMEOUT_S: Final = 10.0
LOG: Final = "muster.backends"
"""Name of the logger for programs."""


@contextlib.asynccontextmanager
async def connect(
    *,
    registry: str | None = None,
    config: str | Path | None = None,
    token: bytes | str | None = None,
    signing_keys: str | None = None,
    cluster: str | None = None,
    publishes: bool = True,
    reads: bool = True,
    timeout: float = TIMEOUT_S,
    **options: Any,
) -> AsyncIterator[muster.Client]:
    """Open a client of a registry's nodes while the block lasts; it follows changes of the nodes.

    Missing arguments come from the configuration (file and environment, as for every command): `registry.url` with its
    user and password, `cluster.token_file`, `cluster.signing_keys`, which certify the servers that get the token, and
    `serve.cluster`, whose proxies it uses. Waits up to `timeout` seconds for the registry, and for a server of each
    kind. `options` are those of `muster.connect`. While the registry does not answer, the client uses the last servers.
    Raises `muster.MusterError`.
    """
    try:
        flags = {} if registry is None else {"registry.url": (registry, "registry")}
        flags |= {} if signing_keys is None else {"cluster.signing_keys": (signing_keys, "signing_keys")}
        settings = configuration.load(None if config is None else Path(config), flags=flags).config
        if not settings.registry.url:
            raise ConfigError("registry.url: missing; clients find servers in a registry")
        if token is None:
            token = _token(settings)
        where_from = specs.reader(settings, settings.registry.url)
        opened = tree(where_from)
        judging = judge(where_from)
        if judging is None:
            raise ConfigError("cluster.signing_keys: missing; a client needs the keys that certify its servers")
    except (ConfigError, SpecError) as error:
        raise muster.Invalid(str(error)) from None
    until = asyncio.get_running_loop().time() + timeout
    where = f"the registry {settings.registry.url}"
    async with Directory(opened, _log(), judge=judging) as directory:
        try:
            async with asyncio.timeout_at(until):
                await directory.known()
        except TimeoutError:
            raise muster.Unavailable(f"{where} does not answer within {timeout:g} s") from None
        servers = Servers(directory, where, cluster or settings.serve.cluster, token, publishes=publishes, reads=reads)
        await servers.there(until)
        async with servers.client(timeout=timeout, **options) as client:
            yield client


def _log() -> structlog.typing.FilteringBoundLogger:
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(LOG),
        processors=[structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    return logger


def _token(settings: Config) -> bytes:
    if not settings.cluster.token_file:
        raise ConfigError("cluster.token_file: missing; a client needs it, or a token")
    return read_token(specs.absolute(settings.cluster.token_file))


class Servers:
    """The servers that a client should know, from the map of a registry."""

    def __init__(
        self,
        directory: Directory,
        where: str,
        cluster: str,
        token: bytes | str,
        *,
        publishes: bool,
        reads: bool,
    ) -> None:
        self._directory, self._where, self._cluster = directory, where, cluster
        self._token = token.encode() if isinstance(token, str) else token
        self._publishes, self._reads = publishes, reads
        rights: Mapping[Right | None, bool] = {"publish": publishes, "read": reads}
        self._kinds = [of for of in listed() if rights[of.door]]
        """The roles to which the client connects."""

    async def there(self, until: float) -> None:
        """Wait for one server of each kind, until this time."""
        changed = asyncio.Event()
        self._directory.on_snapshot = lambda snapshot: changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self._missing():
                    changed.clear()
                    await changed.wait()

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[muster.Client]:
        """A client that follows each map. Raises `muster.MusterError`."""
        if missing := self._missing():
            raise muster.Unavailable(f"{self._where} has no {missing}")
        client = muster.connect(
            self._address(),
            gateways=None if self._reads else (),
            proxies=None if self._publishes else (),
            **options,
        )

        def follow(snapshot: Snapshot) -> None:
            if not client.closed:
                client.redirect(self._address())

        self._directory.on_snapshot = follow
        async with client:
            follow(self._directory.snapshot)
            yield client

    def _address(self) -> muster.Address:
        servers = self._directory.snapshot.servers(self._cluster)
        lists: dict[str, Any] = {of.listed: _endpoints(servers[of.name]) for of in self._kinds}
        return replace(muster.Address((), (), self._token), **lists)

    def _missing(self) -> str:
        """The first role that the client needs and that has no server; roles of the client's cluster come first."""
        servers = self._directory.snapshot.servers(self._cluster)
        missing = sorted((not of.clustered, of.name) for of in self._kinds if not servers[of.name])
        if not missing:
            return ""
        everywhere, role = missing[0]
        return role if everywhere else f"{role} of cluster {self._cluster}"


def _endpoints(servers: Sequence[Server]) -> tuple[Endpoint, ...]:
    return tuple((host, port, key.hex()) for host, port, key, _ in servers)
