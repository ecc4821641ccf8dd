"""Muster: rooms over UDP."""

from . import sync
from ._core import version
from .client import Client, Fault, connect
from .errors import (
    BadRoomName,
    Closed,
    Invalid,
    MusterError,
    NothingListens,
    OtherVersion,
    Refused,
    TimedOut,
    TooLong,
    Unavailable,
    WrongKey,
)
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
    Stream,
)
from .room import Policy, Room
from .why import PROTOCOL_VERSION

__version__ = version()

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
    "Gap",
    "History",
    "Hop",
    "Invalid",
    "Item",
    "Members",
    "Message",
    "MusterError",
    "NoMember",
    "NothingListens",
    "OtherVersion",
    "Outcome",
    "Policy",
    "Position",
    "Refused",
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
