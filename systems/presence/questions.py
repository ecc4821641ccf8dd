"""Questions to an online reader and its answers, and a writer's report on its shard.

`Found`, `User` and `Device` are written by `core/presence/src/pack.rs`, field by field. An answer has thousands of users and
devices, so these are out of sight of the garbage collector: they refer to nothing that could refer to them.
"""

import msgspec


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Where the reader works."""


class Pong(msgspec.Struct, frozen=True):
    """It is there."""

    site: int


class Who(msgspec.Struct, frozen=True, tag=True):
    """Are these users online?"""

    users: list[int]
    lost: bool = False
    """Also devices that went with their gateway, while they may come back."""


class Device(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A device that is online."""

    device: str
    gateway: int
    since_ms: int
    """By the gateway's wall clock, since 1970."""
    lost: bool = False
    """It went with its gateway, and may still come back."""


class User(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One user."""

    user: int
    devices: tuple[Device, ...]
    """Empty: not online."""
    last_seen_ms: int | None
    """Since 1970: of an online user the shard's keepalive, else when the last device went; None: not known."""


class Found(msgspec.Struct, frozen=True, array_like=True):
    """The users in the order of the question, as one site knows them."""

    site: int
    users: list[User]


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Changes of these users from now on, one answer each."""

    users: list[int]
    state: bool = False
    """How their devices stand comes first, unless the watch goes on after a change."""
    after: str = ""
    """The id of the last change that was read: what came since then comes first, if it is still kept."""


class Told(msgspec.Struct, frozen=True):
    """A change, in JSON; empty: the reader is there, and nothing changed."""

    change: bytes
    id: str = ""
    """Of a change; empty: it says how a device stood at the beginning."""


class Stats(msgspec.Struct, frozen=True, tag=True):
    """How the site's shards stand."""


class SourceStats(msgspec.Struct, frozen=True, array_like=True):
    """A gateway as a writer knows it."""

    gateway: int
    epoch: int
    followed: bool
    """False: its full state is on its way."""
    complete: int
    highest: int
    missing: int


class WriterStats(msgspec.Struct, frozen=True):
    """How a writer's shard stands."""

    site: int
    shards: int
    shard: int
    node: int
    epoch: int
    why: str
    """Why it is not to be read; empty: it is."""
    online: int
    """Devices."""
    gateways: list[SourceStats]
    asks: int
    fulls: int
    """Both in flight."""
    asked: int
    fulls_asked: int
    """Both since the writer's start."""
    batches: int
    unpublished: int


class ShardStats(msgspec.Struct, frozen=True):
    """A shard as its reader finds it."""

    site: int
    shards: int
    shard: int
    why: str
    """Why the reader refuses it; empty: it answers."""
    age_ms: int | None
    """Of the keepalive; None: there is none."""
    writer: WriterStats | None
    """The writer's last words."""
    users: int | None = None
    """Online, or gone for less than the grace time; None: the store does not say."""
