"""Builds one role from its spec. What runs it as a process of its own, with admin and logs, is `control/node/process.py`."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, cast

import structlog

from plane import engine
from plane.role import Role
from plane.server import Server
from plane.spec import Spec

ROLES: Final[Mapping[str, str]] = {role: f"plane.rooms.{role}" for role in ("proxy", "broker", "router", "gateway")}


def server(spec: Spec, log: structlog.typing.FilteringBoundLogger) -> Server:
    """Make the role's engine and put its placement in force. Raises `SpecError`, and `OSError` when an address is taken."""
    build = cast(Callable[[Spec], Role], import_module(ROLES[spec.role]).build)
    role = build(spec)
    role.engine.placement(spec.placement_epoch, spec.nodes, spec.partitions, spec.growth)
    if spec.gateways or spec.proxies:
        role.engine.servers(*([_named(each) for each in servers] for servers in (spec.gateways, spec.proxies)))
    return Server(role, log)


def _named(server: tuple[str, int, str]) -> engine.Server:
    host, port, key = server
    return host, port, bytes.fromhex(key), 1
