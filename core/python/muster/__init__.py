"""Muster: rooms over UDP."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ._core import PROTOCOLS, version
from .errors import (
    BadRoomName,
    Closed,
    Invalid,
    MusterError,
    NoResponders,
    NothingListens,
    OtherVersion,
    Refused,
    ResponderFailed,
    TimedOut,
    TooLong,
    Unavailable,
    WrongKey,
)

if TYPE_CHECKING:
    from . import sync
    from .client import Client, Fault, connect
    from .filters import Filter
    from .instance import Address
    from .items import (
        Command,
        Delivered,
        DeviceResult,
        Direct,
        Expired,
        Gap,
        History,
        Hop,
        Item,
        Members,
        Message,
        NoMember,
        Outcome,
        Position,
        Reply,
        Request,
        Stream,
    )
    from .responder import Responder
    from .room import Policy, Room

__version__ = version()
PROTOCOL_VERSION: Final = PROTOCOLS[1]
"""The highest version of the protocol that this library speaks."""

__all__ = [
    "PROTOCOL_VERSION",
    "Address",
    "BadRoomName",
    "Client",
    "Closed",
    "Command",
    "Delivered",
    "DeviceResult",
    "Direct",
    "Expired",
    "Fault",
    "Filter",
    "Gap",
    "History",
    "Hop",
    "Invalid",
    "Item",
    "Members",
    "Message",
    "MusterError",
    "NoMember",
    "NoResponders",
    "NothingListens",
    "OtherVersion",
    "Outcome",
    "Policy",
    "Position",
    "Refused",
    "Reply",
    "Request",
    "Responder",
    "ResponderFailed",
    "Room",
    "Stream",
    "TimedOut",
    "TooLong",
    "Unavailable",
    "WrongKey",
    "__version__",
    "connect",
    "sync",
]

_LATE: Final = {
    "client": ("Client", "Fault", "connect"),
    "filters": ("Filter",),
    "instance": ("Address",),
    "items": (
        "Command",
        "Delivered",
        "DeviceResult",
        "Direct",
        "Expired",
        "Gap",
        "History",
        "Hop",
        "Item",
        "Members",
        "Message",
        "NoMember",
        "Outcome",
        "Position",
        "Reply",
        "Request",
        "Stream",
    ),
    "responder": ("Responder",),
    "room": ("Policy", "Room"),
}
"""Modules with names of this package, which are imported when one is first used: a program that needs a part of the
library, as `muster.url`, does not load asyncio for it."""
_MODULES: Final = {name: module for module, names in _LATE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module(".sync", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
