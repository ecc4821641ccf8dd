"""The interface between a system and the HTTP face. `System.http` names the system's module.

Knows systems by name only.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

import structlog
from litestar import MediaType, Request, Response
from litestar.types import ControllerRouterHandler

import muster
from muster_server.control.cluster.instance import Process
from muster_server.plane import systems
from muster_server.plane.ways import Way
from muster_server.systems.http.access import Caller
from muster_server.systems.http.counts import Counts
from muster_server.systems.http.front import Ongoing, ongoing
from muster_server.systems.http.idempotency import Answer, Idempotency, Nothing
from muster_server.systems.http.options import HttpOptions

AnyRequest = Request[Any, Any, Any]
Nodes = Callable[[], Awaitable[Sequence[Process]]]
Where = str | muster.Address
"""The folder of an instance, or the addresses of its servers."""


@dataclass(slots=True)
class Base:
    """The common parts for a system's routes."""

    options: HttpOptions
    """The current options: a reload replaces them."""
    where: Where
    nodes: Nodes
    """Returns the running nodes, with their admin addresses. Raises `UserError`."""
    counts: Counts
    idempotency: Idempotency
    log: structlog.typing.FilteringBoundLogger
    cluster_secret_file: str
    """The secret that nodes share, for systems whose nodes require a proof of it."""
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """For each system, the value of its `System.http_settings`."""
    names: Callable[[], Mapping[str, str]] = dict
    """Returns the names of the running gateways and proxies by their public keys in hex. Raises `UserError`."""
    way: Callable[[str], Way] | None = None
    """Makes a way into topics (`topic`) or, by its kind of targets, into another system. Raises `SpecError`."""

    def ongoing(self, request: AnyRequest) -> Ongoing:
        """The request as the face tracks it."""
        return ongoing(request.scope)

    async def once(
        self, request: AnyRequest, caller: Caller, body: bytes, do: Callable[[], Awaitable[Answer]]
    ) -> Response[bytes]:
        """The response of a route that changes something: call `do` once for each `Idempotency-Key`; without that header,
        call it. Raises `Problem`."""
        try:
            answer = await self._once(request, caller.name, body, do)
        except Nothing as nothing:
            raise nothing.problem from None
        headers = {"idempotency-replayed": "true"} if answer.replayed else {}
        return Response(answer.body + b"\n", status_code=answer.status, media_type=MediaType.JSON, headers=headers)

    async def _once(self, request: AnyRequest, caller: str, body: bytes, do: Callable[[], Awaitable[Answer]]) -> Answer:
        key = request.headers.get("idempotency-key")
        if key is None:
            return await do()
        path, query = str(request.scope["path"]), request.scope["query_string"]
        kind = request.headers.get("content-type", "").encode()
        scope = (caller, request.method, path)
        return await self.idempotency.once(scope, key, b"\0".join([kind, query, body]), do)


class Face(Protocol):
    """One system's part of the HTTP face."""

    @property
    def ready(self) -> bool:
        """Whether its servers can be reached."""

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """Its handlers, with whole paths."""

    async def start(self) -> None:
        """Start to connect to its servers; returns at once, even if none answers yet."""

    def redirect(self, address: muster.Address) -> None:
        """Use these servers from now on."""

    def access_changed(self) -> None:
        """Check again whether the present callers may still be served."""

    def drain(self) -> None:
        """End lasting requests: streams say goodbye."""

    async def stop(self) -> None:
        """Close all."""

    def status(self) -> dict[str, Any]:
        """The state for `muster status`."""


class Module(Protocol):
    """The module of a system: `systems/SYSTEM/http/routes.py`."""

    def face(self, base: Base) -> Face:
        """Its part in one process."""


def modules() -> list[Module]:
    """The modules of all systems."""
    return [cast(Module, import_module(system.http)) for system in systems.named().values() if system.http]
