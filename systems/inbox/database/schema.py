"""The tables of inboxes. `migrations/` upgrades a database to them, step by step.

Several installations share a database: each has its rows by its `instance`. SQL's integers are signed and users have 64
bits: from 2^63 on a user is stored as its number minus 2^64.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, MetaData, String, Table, Text

from muster_server.systems.inbox.shapes import DATA_BYTES_MAX

VERSION_TABLE: Final = "muster_inbox_schema"
STEPS: Final = Path(__file__).parent / "migrations"
_MORE: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mysql_default_charset": "utf8mb4"}

metadata: Final = MetaData()


def _mine(*, user: bool = True) -> list[Column[Any]]:
    """The columns of the instance and the user."""
    found: list[Column[Any]] = [Column("instance", String(64), primary_key=True)]
    if user:
        found.append(Column("user_id", BigInteger, primary_key=True, autoincrement=False))
    return found


users: Final = Table(
    "muster_inbox_users",
    metadata,
    *_mine(),
    Column("last_seq", BigInteger, nullable=False),
    # Number of the broadcast after which the audience of all users began for this one.
    Column("since", BigInteger, nullable=False),
    # JSON of settings by kind; null: none.
    Column("settings", Text),
    **_MORE,
)
entries: Final = Table(
    "muster_inbox",
    metadata,
    *_mine(),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(32), nullable=False),
    # Null: it grows with no other entry.
    Column("grp", String(64)),
    Column("actor", String(64), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("is_read", Boolean, nullable=False),
    # When a mail is due; null: none.
    Column("mail_due", BigInteger),
    Column("mail", String(16)),
    Column("data", LargeBinary(DATA_BYTES_MAX), nullable=False),
    Index("muster_inbox_groups", "instance", "user_id", "kind", "grp", unique=True),
    Index("muster_inbox_mails", "instance", "mail_due"),
    Index("muster_inbox_unread", "instance", "user_id", "is_read", "kind", "seq"),
    Index("muster_inbox_at", "instance", "at_ms"),
    **_MORE,
)
ids: Final = Table(
    "muster_inbox_ids",
    metadata,
    *_mine(),
    Column("id", String(128), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    # Digest of the entry's content: another entry with the id is refused.
    Column("digest", LargeBinary(16), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("muster_inbox_ids_at", "instance", "at_ms"),
    **_MORE,
)
marks: Final = Table(
    "muster_inbox_marks",
    metadata,
    *_mine(),
    # Empty: all kinds.
    Column("kind", String(32), primary_key=True),
    Column("read_seq", BigInteger, nullable=False),
    Column("read_number", BigInteger, nullable=False),
    Column("seen_seq", BigInteger, nullable=False),
    Column("seen_number", BigInteger, nullable=False),
    **_MORE,
)
broadcasts: Final = Table(
    "muster_inbox_broadcasts",
    metadata,
    *_mine(user=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("audience", String(64), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("actor", String(64), nullable=False),
    # Null: the broadcast has no id.
    Column("id", String(128)),
    Column("digest", LargeBinary(16), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Column("data", LargeBinary(DATA_BYTES_MAX), nullable=False),
    Index("muster_inbox_broadcast_ids", "instance", "id", unique=True),
    Index("muster_inbox_broadcasts_until", "instance", "until_ms"),
    **_MORE,
)
last: Final = Table(
    "muster_inbox_last",
    metadata,
    *_mine(user=False),
    Column("number", BigInteger, nullable=False),
    **_MORE,
)
audiences: Final = Table(
    "muster_inbox_audiences",
    metadata,
    *_mine(),
    Column("audience", String(64), primary_key=True),
    Column("since", BigInteger, nullable=False),
    **_MORE,
)
# Broadcasts that a user has read one by one, above the marks.
read: Final = Table(
    "muster_inbox_read",
    metadata,
    *_mine(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    **_MORE,
)


def stored(user: int) -> int:
    """A user's number as SQL has it."""
    return user - (1 << 64) if user >= 1 << 63 else user


def loaded(user: int) -> int:
    """A user's number of SQL as everyone else has it."""
    return user + (1 << 64) if user < 0 else user
