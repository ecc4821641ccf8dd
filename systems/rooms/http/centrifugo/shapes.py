"""The bodies and results of the server API of Centrifugo. Knows no route and no room.

A member of a body that Muster cannot honour is known here, so that its refusal names it.
"""

import base64
from typing import Annotated, Any

import msgspec

from muster_server.systems.rooms.http.bodies import Content


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all bodies."""


class Data(Request, frozen=True, kw_only=True):
    """A message, and options of its publication."""

    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Any JSON, which is the message."""
    b64data: str = ""
    """A binary message in base64, in place of `data`."""
    idempotency_key: str = ""
    delta: bool = False
    """Taken without effect: the edge decides what it sends as a difference."""
    skip_history: bool = False
    tags: dict[str, str] = {}
    """The headers of the message."""
    version: int = 0
    version_epoch: str = ""

    @property
    def message(self) -> Content:
        """The message. Raises `ValueError`."""
        if self.b64data:
            return Content(base64.b64decode(self.b64data, validate=True), self.tags)
        if not bytes(self.data):
            raise ValueError("`data` is missing")
        return Content(bytes(self.data), self.tags)

    @property
    def impossible(self) -> str:
        """The option that rooms cannot honour; empty: there is none."""
        asked = {"skip_history": self.skip_history, "version": self.version}
        return next((name for name, value in asked.items() if value), "")


class Publish(Data, frozen=True, kw_only=True):
    """One message to one channel."""

    channel: str


class Broadcast(Data, frozen=True, kw_only=True):
    """One message to several channels."""

    channels: list[str]


class Since(Request, frozen=True, kw_only=True):
    """A position."""

    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    epoch: str = ""


class History(Request, frozen=True, kw_only=True):
    """The messages that are kept. `limit` 0: the position alone; below 0: all."""

    channel: str
    limit: int = 0
    since: Since | None = None
    reverse: bool = False


class Channel(Request, frozen=True, kw_only=True):
    """A question about one channel."""

    channel: str


class Channels(Request, frozen=True, kw_only=True):
    """The channels with subscribers. `pattern`: `*`, `?` and `[…]` as in a shell."""

    pattern: str = ""


class Nothing(Request, frozen=True, kw_only=True):
    """A body without members."""


class Batch(Request, frozen=True, kw_only=True):
    """Several methods, each `{METHOD: BODY}`."""

    commands: list[dict[str, msgspec.Raw]]
    parallel: bool = False


class Error(msgspec.Struct, frozen=True):
    """Why a method failed."""

    code: int
    message: str


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one method: its result, or an error."""

    error: Error | None = None
    result: Any = None


class Position(msgspec.Struct, frozen=True):
    """Where a message stands, or a channel's newest one."""

    offset: int
    epoch: str


class Broadcasted(msgspec.Struct, frozen=True):
    """An answer for each channel, in the order of the request."""

    responses: list[Reply]


class Client(msgspec.Struct, frozen=True):
    """A subscriber, or the publisher of a message."""

    client: str
    user: str


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. `tags`: its headers; `encoding` is `base64` if the data is not JSON."""

    offset: int
    data: msgspec.Raw
    info: Client | None = None
    tags: dict[str, str] | None = None


class Publications(msgspec.Struct, frozen=True):
    """Messages, and the channel's newest position."""

    publications: list[Publication]
    offset: int
    epoch: str


class Presence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The users in a channel, at most 100. `truncated`: there are more."""

    presence: dict[str, Client]
    truncated: bool = False


class PresenceStats(msgspec.Struct, frozen=True):
    """The subscribers of a channel, and their users."""

    num_clients: int
    num_users: int


class Count(msgspec.Struct, frozen=True):
    """The subscribers of a channel."""

    num_clients: int


class ChannelCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Channels by name. `truncated`: some were not read; `partial`: a node did not answer."""

    channels: dict[str, Count]
    truncated: bool = False
    partial: bool = False


class Node(msgspec.Struct, frozen=True):
    """A node with clients: a gateway or an edge. `uptime` in seconds."""

    uid: str
    name: str
    version: str
    num_clients: int
    num_users: int
    num_subs: int
    num_channels: int
    uptime: int


class Info(msgspec.Struct, frozen=True):
    """All nodes with clients."""

    nodes: list[Node]


class Replies(msgspec.Struct, frozen=True):
    """The answers to a batch: each `{METHOD: RESULT}`, or `{"error": …}`."""

    replies: list[dict[str, Any]]
