"""Requests to an online reader and its answers, and a writer's report on its shard.

`core/presence/src/pack.rs` writes `Found`, `User` and `Device`, field by field. An answer has thousands of users and
devices, so the garbage collector does not track them: they contain no references to containers.
"""

from typing import Final

import msgspec

from muster_server.systems.presence.status import NewStatus, Record, Status

ALL: Final = -2
"""In place of the user who watches: an operator, who sees every user as it is."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Asks a reader for its site."""


class Pong(msgspec.Struct, frozen=True):
    """Answer to `Ping`."""

    site: int


class Who(msgspec.Struct, frozen=True, tag=True):
    """Look these users up."""

    users: list[int]
    lost: bool = False
    """True: include devices whose gateway was lost, while they may return."""


class Device(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A device that is online."""

    device: str
    gateway: int
    since_ms: int
    """By the gateway's wall clock, in ms since 1970."""
    lost: bool = False
    """True: its gateway was lost, and it may still return."""


class User(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One user."""

    user: int
    devices: tuple[Device, ...]
    """Empty: not online."""
    last_seen_ms: int | None
    """In ms since 1970: for an online user the shard's keepalive, else when the last device went offline; None: not
    known."""


class Found(msgspec.Struct, frozen=True, array_like=True):
    """The users in the order of the request, as one site knows them."""

    site: int
    users: list[User]


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Changes of these users from now on, one answer each."""

    users: list[int]
    state: bool = False
    """True: the present states of their devices come first, unless the watch resumes after a change."""
    after: str = ""
    """The id of the last change that was read: the changes since then come first, if they are still stored."""
    statuses: bool = False
    """True: statuses come too, and an invisible user is told as offline."""
    own: int = -1
    """The user who watches: its own devices and status are told as they are. -1: none of the users, `ALL`: each."""


class Update(msgspec.Struct, frozen=True):
    """A change, in JSON; empty: the reader is alive, and nothing changed."""

    change: bytes
    id: str = ""
    """Id of the change; empty: this is a present state, at the start or of a user that was invisible."""
    status: bool = False
    """True: it is a user's status."""


class StatusesOf(msgspec.Struct, frozen=True, tag=True):
    """Asks for the statuses of these users."""

    users: list[int]


class StatusesFound(msgspec.Struct, frozen=True):
    """The statuses of those users that have one, as they are."""

    statuses: dict[int, Status]


class SetStatus(msgspec.Struct, frozen=True, tag=True):
    """Sets the status of a user."""

    user: int
    status: NewStatus


class StatusSet(msgspec.Struct, frozen=True):
    """The status as it stands now; None: none."""

    status: Status | None


class FollowStatuses(msgspec.Struct, frozen=True, tag=True):
    """Asks a reader of another site for all statuses of its site, and then for each that changes."""


class StatusRecords(msgspec.Struct, frozen=True):
    """Some of them; none: the reader lives."""

    records: list[tuple[int, Record]]


class Stats(msgspec.Struct, frozen=True, tag=True):
    """The state of the site's shards."""


class SourceStats(msgspec.Struct, frozen=True, array_like=True):
    """The state of a gateway, as a writer knows it."""

    gateway: int
    epoch: int
    followed: bool
    """False: its full state is being sent."""
    complete: int
    highest: int
    missing: int


class WriterStats(msgspec.Struct, frozen=True):
    """The state of a writer's shard."""

    site: int
    shards: int
    shard: int
    node: int
    epoch: int
    why: str
    """Why readers must not use it; empty: they may."""
    online: int
    """Number of online devices."""
    gateways: list[SourceStats]
    asks: int
    fulls: int
    """Requests for full states in flight; `asks`: requests for versions in flight."""
    asked: int
    fulls_asked: int
    """Requests for full states since the writer's start; `asked`: requests for versions."""
    batches: int
    unpublished: int


class CopyStats(msgspec.Struct, frozen=True):
    """The state of a reader's copy of a shard."""

    why: str
    """Why the store answers look-ups instead; empty: the copy does."""
    users: int
    """Users online, or offline for less than the grace time."""
    bytes: int
    """Memory of the copy."""
    loads: int
    """Times that it was read from the store since the reader's start."""


class ShardStats(msgspec.Struct, frozen=True):
    """The state of a shard, as its reader finds it."""

    site: int
    shards: int
    shard: int
    why: str
    """Why the reader refuses the shard; empty: it does not."""
    age_ms: int | None
    """Age of the keepalive; None: there is none."""
    writer: WriterStats | None
    """The writer's last report."""
    users: int | None = None
    """Users that are online, or offline for less than the grace time; None: the store does not tell."""
    copy: CopyStats | None = None
    """The copy of the reader that was asked; None: it keeps none."""
