"""The columns that `muster top` orders nodes by: apart, for the words of the command are read before it is loaded."""

from enum import StrEnum


class Column(StrEnum):
    """By its first letter while it is shown."""

    none = "none"
    cpu = "cpu"
    rss = "rss"
    members = "members"
    inbound = "in"
    out = "out"
    drops = "drops"
    lag = "lag"
