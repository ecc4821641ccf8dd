"""Builds the machine, face or worker of a spec. `control/node/process.py` runs it as a process, with administration and
logs."""

from typing import Any

import msgspec
import structlog

from muster_server.plane import engine
from muster_server.plane.kind import RoleKind, named
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.plane.service import Context, Service
from muster_server.plane.spec import Spec, SpecError


def settings(kind: RoleKind[Any, Any], spec: Spec) -> Any:
    """The settings of the spec's role. Raises `SpecError`."""
    try:
        return kind.of(spec.settings)
    except msgspec.ValidationError as error:
        raise SpecError(f"settings of a {spec.role}: {error}") from None


def server(kind: RoleKind[Any, Any], spec: Spec, log: structlog.typing.FilteringBoundLogger) -> Server:
    """Make a machine's engine and give it its first placement. Raises `SpecError`, and `OSError` if an address is in
    use."""
    role: Role = named(kind.build)(spec, settings(kind, spec))
    role.place(engine.Placement(spec.placement_epoch, spec.nodes, spec.layers, []))
    if spec.servers:
        role.name({each: [_server(*found) for found in servers] for each, servers in spec.servers.items()})
    return Server(role, log)


def service(kind: RoleKind[Any, Any], spec: Spec, context: Context) -> Service:
    """Make a face or a worker. Raises `SpecError`, and `OSError` if an address is in use."""
    made: Service = named(kind.build)(spec, settings(kind, spec), context)
    return made


def _server(host: str, port: int, key: str) -> engine.Server:
    return host, port, bytes.fromhex(key), 1
