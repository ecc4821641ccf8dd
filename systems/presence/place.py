"""The site and the shard of a node of presence.

Owns the rule: on `muster up` they follow from the node's index in its role's range, else its configuration names them.
"""

from dataclasses import dataclass

from muster_server.plane.kinds import kind
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.presence.options import PresenceSettings


@dataclass(frozen=True, slots=True)
class Place:
    """Site and shard of a node. `shards` and `shard` are 0 for roles without shards."""

    site: int
    """Number of the site, from 1 on."""
    shards: int = 0
    shard: int = 0


def site_of(spec: Spec, settings: PresenceSettings) -> int:
    """The site of a node that serves a whole site. Raises `SpecError`."""
    numbers, sites = kind(spec.role).numbers, len(settings.writers)
    if spec.node in numbers:
        return numbers.index(spec.node) % sites + 1
    if settings.site > sites:
        raise SpecError(f"presence.site: site {settings.site} does not exist (presence.sites = {sites})")
    return settings.site


def place_of(spec: Spec, settings: PresenceSettings) -> Place:
    """The site and shard of a writer. Raises `SpecError`."""
    numbers = kind(spec.role).numbers
    if spec.node not in numbers:
        site = site_of(spec, settings)
        count = settings.writers[site - 1]
        if settings.shard >= count:
            raise SpecError(f"online_writer.shard: shard {settings.shard} does not exist (expected 0 to {count - 1})")
        return Place(site, count, settings.shard)
    index = numbers.index(spec.node)
    for site, count in enumerate(settings.writers, 1):
        if index < count:
            return Place(site, count, index)
        index -= count
    raise SpecError(f"presence.writers: no shard is left for a further writer (all {sum(settings.writers)} have one)")
