"""What a word of the command may be followed by: apart, for the words are read before what they do is loaded."""

from enum import StrEnum


class Column(StrEnum):
    """What `muster top` orders nodes by; by its first letter while it is shown."""

    none = "none"
    cpu = "cpu"
    rss = "rss"
    members = "members"
    inbound = "in"
    out = "out"
    drops = "drops"
    lag = "lag"


class Layer(StrEnum):
    """Roles that have partitions."""

    broker = "broker"
    router = "router"


class Edge(StrEnum):
    """Roles that clients speak to."""

    gateway = "gateway"
    proxy = "proxy"
