"""Makes the nodes of a fleet from their specs."""

from pathlib import Path
from typing import Final

from muster_server.plane.kinds import kind
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, SpecError, password
from muster_server.systems.fleet import index_node, scheduler
from muster_server.systems.fleet.broker import plane_user
from muster_server.systems.fleet.index_node import IndexNode
from muster_server.systems.fleet.options import FleetSettings
from muster_server.systems.fleet.records import Store
from muster_server.systems.fleet.scheduler import Scheduler

MISSING: Final = "fleet: {} is missing; nodes of a fleet find each other in a registry and clients at an MQTT broker"


def index(spec: Spec, settings: FleetSettings, context: Context) -> IndexNode:
    """Make an index node. Raises `SpecError`."""
    return IndexNode(spec, settings, context, _user(spec, settings, index_node.ROLE))


def schedules(spec: Spec, settings: FleetSettings, context: Context) -> Scheduler:
    """Make a scheduler. Raises `SpecError`."""
    return Scheduler(spec, settings, context, _user(spec, settings, scheduler.ROLE), lambda: opened(settings))


def opened(settings: FleetSettings) -> Store:
    """The store. Raises `SpecError`. Its library is imported here, and only in processes that store something."""
    from muster_server.plane.database.url import location
    from muster_server.systems.fleet.database.store import SqlStore

    try:
        where = location(settings.database)
        word = password(settings.database_password_file)
        return SqlStore(where.identified(word) if word else where, settings.instance)
    except (ImportError, ValueError) as error:
        raise SpecError(f"database: {error}") from None


def _user(spec: Spec, settings: FleetSettings, role: str) -> str:
    """The user of a node at the broker."""
    if spec.registry is None:
        raise SpecError(MISSING.format("registry.url"))
    if not settings.brokers:
        raise SpecError(MISSING.format("fleet.mqtt"))
    if settings.user:
        return settings.user
    if not Path(settings.password_file).exists():
        raise SpecError(MISSING.format(settings.password_file))
    own = kind(spec.role).numbers
    return plane_user(role, own.index(spec.node) if spec.node in own else spec.node)
