"""The choices of the command's arguments, in a file of their own, because arguments are parsed before a command's
modules are imported."""

from enum import StrEnum
from typing import TYPE_CHECKING

from muster_server.plane.kinds import kinds


class Column(StrEnum):
    """The sort orders of `muster top`; while it runs, the first letter selects one."""

    none = "none"
    cpu = "cpu"
    rss = "rss"
    members = "members"
    inbound = "in"
    out = "out"
    drops = "drops"
    lag = "lag"


if TYPE_CHECKING:

    class Layer(StrEnum):
        """Roles that have partitions."""

    class Addable(StrEnum):
        """Roles whose nodes can be added and removed one by one."""

    class Served(StrEnum):
        """Roles that `muster serve` runs."""

else:
    Layer = StrEnum("Layer", [(of.name, of.name) for of in kinds().values() if of.partitioned])
    Addable = StrEnum("Addable", [(of.name, of.name) for of in kinds().values() if of.plural and not of.partitioned])
    Served = StrEnum("Served", [(of.name, of.name) for of in kinds().values()])
