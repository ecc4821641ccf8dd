"""The table, and the order of ids in it. `migrations/` upgrades a database to it, step by step.

SQL's integers are signed and ids use all 64 bits. A room's id is stored with its bits reversed. So the rooms of a
partition, which share their last bits, are one range of the primary key, whatever the number of partitions.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, MetaData, String, Table

from muster_server.systems.rooms.database.records import Membership, Partition

TABLE: Final = "muster_memberships"
VERSION_TABLE: Final = "muster_schema"
STEPS: Final = Path(__file__).parent / "migrations"
ORDER: Final = ("epoch", "version")
"""The columns that decide which of two rows with one key is newer."""

_SIGN: Final = 1 << 63
_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

metadata: Final = MetaData()

memberships: Final = Table(
    TABLE,
    metadata,
    Column("cluster", String(32), primary_key=True),
    Column("room_reversed", BigInteger, primary_key=True, autoincrement=False),
    Column("gateway", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("name_check", BigInteger, nullable=False),
    # Time in seconds, by the writer's clock, since which the room is unwanted. It orders nothing: it tells when a row
    # may be deleted.
    Column("left_at", BigInteger),
    Index(f"{TABLE}_life", "cluster", "gateway", "epoch"),
    Index(f"{TABLE}_left", "cluster", "left_at"),
    mysql_engine="InnoDB",
    mysql_default_charset="utf8mb4",
)


def room_reversed(room: int) -> int:
    """A room's id as the table stores it: its bits reversed, in the order of signed numbers."""
    return int.from_bytes(room.to_bytes(8, "little").translate(_REVERSED), "big") - _SIGN


def room_of(place: int) -> int:
    """The room of a stored id."""
    return int.from_bytes((place + _SIGN).to_bytes(8, "big").translate(_REVERSED), "little")


def places(partition: Partition) -> tuple[int, int]:
    """The first and the last stored id of a partition's rooms."""
    first = room_reversed(partition.index)
    return first, first + (1 << 64) // partition.count - 1


def row(cluster: str, membership: Membership, now: int) -> dict[str, Any]:
    """A membership as a row."""
    return {
        "cluster": cluster,
        "room_reversed": room_reversed(membership.room),
        "gateway": membership.gateway,
        "epoch": membership.epoch,
        "version": membership.version,
        "name_check": membership.check - _SIGN,
        "left_at": None if membership.present else now,
    }


def membership(place: int, gateway: int, epoch: int, version: int, check: int) -> Membership:
    """The membership of a row of a gateway that wants the room."""
    return Membership(gateway, epoch, room_of(place), check + _SIGN, version, True)
