"""Messages to users over HTTP: what a request has, and its answer."""

from typing import Annotated, Final, Literal

import msgspec

from muster_server.systems.presence.devices import DEVICE
from muster_server.systems.presence.options import ELSEWHERE

USERS_MAX: Final = 1_000
"""Limit of users in one request."""


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message to many users, each a number of 64 bits as text, or the text that names the user."""

    users: Annotated[list[str], msgspec.Meta(max_length=USERS_MAX)]
    data: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """The encoding of `data`."""
    device: Annotated[str, msgspec.Meta(pattern=rf"^{DEVICE}\Z")] | None = None
    expires: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    """Lifetime of the message in seconds."""
    not_online: Annotated[str, msgspec.Meta(pattern=rf"^{ELSEWHERE}\Z")] | None = None
    """Where the message goes for users of whom no device has it: `topic:NAME`, or `inbox:KIND`; empty: nowhere; null:
    as `presence.not_online` says."""


class Device(msgspec.Struct, frozen=True):
    """The outcome on one device; null: devices whose names are not known."""

    device: str | None
    outcome: Literal["delivered", "ended", "not_online", "expired", "unknown"]


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """One user's devices, or the reason why none was tried."""

    user: str
    devices: list[Device] = []
    error: str | None = None
    text: str | None = None
    """The text that named the user in the request."""
    kept: str | None = None
    """The topic, or the kind of entries in the inbox, that has the message, because no device has it."""


class Sent(msgspec.Struct, frozen=True):
    """The users in the order of the request."""

    users: list[User]
