"""The tables. `migrations/` upgrades a database to them, step by step.

Other programs may read an item's row too: its count, and its likers as a bitmap of dense ids, which
`muster_likes_users` maps to users. SQL's integers are signed and users have 64 bits: from 2^63 on a user is stored as
its number minus 2^64.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects import mysql

from muster_server.systems.likes.records import Row, User

VERSION_TABLE: Final = "muster_likes_schema"
STEPS: Final = Path(__file__).parent / "migrations"
ORDER: Final = ("modification",)
"""The column that decides which of two rows of an item is newer."""
KEY: Final = LargeBinary(512).with_variant(mysql.VARBINARY(512), "mysql")
BYTES: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")

metadata: Final = MetaData()
_MYSQL: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mysql_default_charset": "utf8mb4"}


def _of() -> list[Column[Any]]:
    """The columns of the instance, and of the log's number."""
    return [
        Column("instance", String(32), primary_key=True),
        Column("log_number", Integer, primary_key=True, autoincrement=False),
    ]


items: Final = Table(
    "muster_likes",
    metadata,
    *_of(),
    Column("item", KEY, primary_key=True),
    Column("likes", BigInteger, nullable=False),
    # Grows with each change of the item, across its deletion too.
    Column("modification", BigInteger, nullable=False),
    # Null: the item was deleted.
    Column("likers", BYTES),
    **_MYSQL,
)
users: Final = Table(
    "muster_likes_users",
    metadata,
    *_of(),
    Column("dense_id", BigInteger, primary_key=True, autoincrement=False),
    Column("user_id", BigInteger, nullable=False),
    **_MYSQL,
)
erased: Final = Table(
    "muster_likes_erased",
    metadata,
    *_of(),
    # A dense id that no user has any more, and none gets again.
    Column("dense_id", BigInteger, primary_key=True, autoincrement=False),
    **_MYSQL,
)
logs: Final = Table(
    "muster_likes_logs",
    metadata,
    *_of(),
    # Epoch of the owner that may write.
    Column("epoch", BigInteger, nullable=False),
    # Rows contain all changes below this offset of the log.
    Column("log_offset", BigInteger, nullable=False),
    Column("users", BigInteger, nullable=False),
    # Offset of the current snapshot; 0 parts: there is none.
    Column("snapshot_offset", BigInteger, nullable=False),
    Column("snapshot_parts", Integer, nullable=False),
    # Grows with each transaction.
    Column("writes", BigInteger, nullable=False),
    **_MYSQL,
)
snapshots: Final = Table(
    "muster_likes_snapshots",
    metadata,
    *_of(),
    Column("snapshot_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("data", BYTES, nullable=False),
    **_MYSQL,
)


def item_row(row: Row) -> dict[str, Any]:
    """A row of an item, without its log."""
    key, modification, liked = row
    likes, likers = (0, None) if liked is None else liked
    return {"item": key, "likes": likes, "modification": modification, "likers": likers}


def row_of(found: Any) -> Row:
    """The item of a row of the database."""
    liked = None if found.likers is None else (found.likes, bytes(found.likers))
    return bytes(found.item), found.modification, liked


def user_of(found: Any) -> User:
    """The user of a row of the database."""
    return found.dense_id, found.user_id % (1 << 64)


def user_row(user: User) -> dict[str, Any]:
    """A row of a user, without its log."""
    dense, number = user
    return {"dense_id": dense, "user_id": number - (1 << 64) if number >> 63 else number}
