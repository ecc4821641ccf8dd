"""The tables of the archive. `migrations/` upgrades a database to them, step by step.

Several installations share a database: each has its rows by its `instance`. A room's number is a hash of its name. A
block has messages of one stream without a hole, or one gap; its rows are in the order in which they came.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, MetaData, String, Table

from muster_server.systems.rooms.archive.blocks import BLOCK_BYTES_MAX

VERSION_TABLE: Final = "muster_archive_schema"
RECORD_BYTES_MAX: Final = 1 << 17
"""Limit of a message with its headers, as a record."""
STEPS: Final = Path(__file__).parent / "migrations"
_MORE: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mysql_default_charset": "utf8mb4"}

metadata: Final = MetaData()


def _mine() -> list[Column[Any]]:
    return [
        Column("instance", String(64), primary_key=True),
        Column("room", BigInteger, primary_key=True, autoincrement=False),
    ]


rooms: Final = Table(
    "muster_archive_rooms",
    metadata,
    *_mine(),
    Column("name", String(255), nullable=False),
    # Number of the newest item; an owner that finds another one has been overtaken.
    Column("last_seq", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("messages", BigInteger, nullable=False),
    # Whether the room is kept from its very first message on.
    Column("begun", Boolean, nullable=False),
    # Number of the newest gap; 0: there was none.
    Column("gap_seq", BigInteger, nullable=False, server_default="0"),
    # The value of `room.positions` behind the newest item.
    Column("positions", LargeBinary(255), nullable=False),
    **_MORE,
)
blocks: Final = Table(
    "muster_archive_blocks",
    metadata,
    *_mine(),
    # Number of the first item.
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("node", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("last_offset", BigInteger, nullable=False),
    # When the archive got the items, by its clock; it never goes back within a room.
    Column("at_ms", BigInteger, nullable=False),
    # Reason of a gap; empty: the block has messages.
    Column("reason", String(32), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("data", LargeBinary(BLOCK_BYTES_MAX), nullable=False),
    Index("muster_archive_places", "instance", "room", "node", "epoch", "generation", "last_offset"),
    Index("muster_archive_times", "instance", "room", "at_ms"),
    Index("muster_archive_age", "instance", "at_ms"),
    **_MORE,
)


latest: Final = Table(
    "muster_archive_latest",
    metadata,
    *_mine(),
    # A hash of the value of the header `key`.
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    # The number of the message in its room.
    Column("seq", BigInteger, nullable=False),
    Column("node", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("last_offset", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("data", LargeBinary(RECORD_BYTES_MAX), nullable=False),
    Index("muster_archive_latest_seqs", "instance", "room", "seq"),
    Index("muster_archive_latest_age", "instance", "at_ms"),
    **_MORE,
)


def number_of(name: str) -> int:
    """The number of a room, by its full name: 63 bits."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"muster archive").digest()) >> 1
