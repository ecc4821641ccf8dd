"""Makes the machines of presence: thin shells around the engines of `muster_server._engines`, which handle every packet.

Separate from the descriptors, which every command reads: only a node needs the imports of this file.
"""

from functools import partial
from typing import Protocol

import msgspec

from muster_server import _engines
from muster_server.plane.engine import Engine, Node, Placement
from muster_server.plane.keys import link_options
from muster_server.plane.role import Role
from muster_server.plane.spec import Spec
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.place import place_of, site_of


class PresenceEngine(Engine, Protocol):
    """An engine of any role of presence."""

    def placement(self, epoch: int, nodes: list[Node], partitions: tuple[int, int]) -> None:
        """Use a newer placement; an older epoch changes nothing. No role of presence has partitions."""


def placing(engine: PresenceEngine, placement: Placement) -> None:
    """Pass the map to an engine of presence."""
    engine.placement(placement.epoch, placement.nodes, (1, 1))


def writer(spec: Spec, settings: PresenceSettings) -> Role:
    """Make a writer, which binds its socket. Raises `SpecError`, and `OSError` if an address is in use."""
    place = place_of(spec, settings)
    engine = _engines.OnlineWriterEngine(
        link_options(spec), msgspec.json.encode(settings), site=place.site, shards=place.shards, shard=place.shard
    )
    return Role(engine, place=partial(placing, engine))


def proxy(spec: Spec, settings: PresenceSettings) -> Role:
    """Make an online proxy, which binds its socket. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.OnlineProxyEngine(link_options(spec), site=site_of(spec, settings))
    return Role(engine, place=partial(placing, engine))
