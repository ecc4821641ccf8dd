"""Muster: rooms over UDP."""

from ._core import version
from .client import Client, Fault, connect
from .errors import BadRoomName, Closed, Invalid, MusterError, Refused, TimedOut, TooLong, Unavailable
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

__version__ = version()

__all__ = [
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
    "Outcome",
    "Policy",
    "Position",
    "Refused",
    "Room",
    "Stream",
    "TimedOut",
    "TooLong",
    "Unavailable",
    "__version__",
    "connect",
]
