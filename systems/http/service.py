"""The HTTP face in a process: connects `server.py` to its process, and to the map of the nodes."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import muster
from muster import __version__
from muster.instance import read_token
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder, Process
from muster_server.control.cluster.places import on_map
from muster_server.control.node.ages import Histogram
from muster_server.control.registry.places import Snapshot
from muster_server.plane import ways
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.trust import Trust, trust_of
from muster_server.plane.ways import Way
from muster_server.systems.http.entry import MakeEntry
from muster_server.systems.http.server import HttpFace, Serving
from muster_server.systems.http.system import HttpSettings

LOOK_S: Final = 0.1
"""Seconds between checks of the map and the readiness."""


class HttpService:
    """The `plane.service.Service` of the HTTP face."""

    def __init__(self, spec: Spec, settings: HttpSettings, context: Context, entry: MakeEntry | None = None) -> None:
        """Raises `SpecError`. `entry`: as for `HttpFace`."""
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._context, self._told = context, settings
        self._registry, self._token_file = spec.registry is not None, spec.token_file or ""
        self._access = spec.admin_access
        self._map: Snapshot | None = None
        self._server = HttpFace(
            Serving(
                options=settings.options,
                bind=spec.bind or ("127.0.0.1", 0),
                keys_file=Path(settings.keys_file),
                trust=trust_of(spec),
                where=self._address() if self._registry else settings.folder,
                nodes=self._nodes,
                version=__version__,
                cluster_secret_file=spec.cluster_secret_file,
                told=settings.systems,
                names=self._names,
                way=partial(way, spec, context, settings.folder),
            ),
            context.log,
            entry,
        )

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Serve until `stop` is set, then finish running requests, for at most `http.drain_s`."""
        await self._server.start()
        following = asyncio.create_task(self._follow())
        try:
            await stop.wait()
        finally:
            self.draining = True
            following.cancel()
            await self._server.stop()
            self.closed = True

    async def _follow(self) -> None:
        """Use the nodes of the map, and report changes of the readiness."""
        while True:
            if self._registry and self._context.snapshot() is not self._map:
                self._map = self._context.snapshot()
                self._server.redirect(self._address())
            if self._server.ready != self.ready:
                self.ready = self._server.ready
                self.on_ready(self.ready)
            await asyncio.sleep(LOOK_S)

    def _address(self) -> muster.Address:
        """The servers of the map, and the token that programs share. Raises `SpecError`."""
        try:
            token = read_token(self._token_file)
        except muster.MusterError as error:
            raise SpecError(str(error)) from None
        return on_map(self._context.snapshot(), token)

    async def _nodes(self) -> Sequence[Process]:
        """The running nodes. Raises `UserError`."""
        if not self._registry:
            return instance.find(Folder(Path(self._told.folder))).processes
        return [instance.registered(node, self._access) for node in self._context.snapshot().nodes]

    def _names(self) -> dict[str, str]:
        """The gateways and proxies by their public keys. Raises `UserError`."""
        if self._registry:
            return {node.public_key: node.name for node in self._context.snapshot().nodes if node.public_key}
        record = instance.find(Folder(Path(self._told.folder)))
        named = {each.node: each.name for each in record.processes}
        return {each.public_key: named.get(each.node, "") for each in (*record.gateways, *record.proxies)}

    def status(self) -> dict[str, Any]:
        """The state of the face, and totals."""
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        return {**self._server.status(), "state": state}

    def counters(self) -> list[Figure]:
        """Requests, streams, refusals."""
        return self._server.counts.counters()

    def gauges(self) -> list[Figure]:
        """Connections, running requests, keys."""
        return self._server.counts.gauges()

    def histograms(self) -> list[Histogram]:
        """Times of requests."""
        return self._server.counts.histograms()

    def addresses(self) -> list[tuple[str, int]]:
        """The address that it listens on."""
        return [self._server.address]

    def take(self, settings: HttpSettings) -> None:
        """Use other rates, limits, hosts and CORS origins."""
        self._server.take(settings.options)

    def take_trust(self, trust: Trust) -> None:
        """Use these secrets, keys and revocations for users' tokens from now on."""
        self._server.reload(trust)


def way(spec: Spec, context: Context, folder: str, kind: str) -> Way:
    """As `Base.way`."""
    return ways.into(kind, spec, context, folder)


def build(spec: Spec, settings: HttpSettings, context: Context) -> HttpService:
    """Make the face. Raises `SpecError`."""
    return HttpService(spec, settings, context)
