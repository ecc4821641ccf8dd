"""The tables of inboxes."""

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

from muster_server.plane.database.migrate import compare_bytes

revision: Final = "0001"
down_revision: Final = None

DATA_BYTES_MAX: Final = 4_096
INDEXES: Final = {
    "muster_inbox_groups": ("muster_inbox", ("instance", "user_id", "kind", "grp"), True),
    "muster_inbox_mails": ("muster_inbox", ("instance", "mail_due"), False),
    "muster_inbox_unread": ("muster_inbox", ("instance", "user_id", "is_read", "kind", "seq"), False),
    "muster_inbox_at": ("muster_inbox", ("instance", "at_ms"), False),
    "muster_inbox_ids_at": ("muster_inbox_ids", ("instance", "at_ms"), False),
    "muster_inbox_broadcast_ids": ("muster_inbox_broadcasts", ("instance", "id"), True),
    "muster_inbox_broadcasts_until": ("muster_inbox_broadcasts", ("instance", "until_ms"), False),
}


def upgrade() -> None:
    """Create the tables and indexes unless they exist: not every database rolls back half a step."""
    number, text = sa.BigInteger, sa.String
    _table(
        "muster_inbox_users",
        _user(),
        sa.Column("last_seq", number, nullable=False),
        sa.Column("since", number, nullable=False),
        sa.Column("settings", sa.Text),
    )
    _table(
        "muster_inbox",
        _user(),
        sa.Column("seq", number, primary_key=True, autoincrement=False),
        sa.Column("kind", text(32), nullable=False),
        sa.Column("grp", text(64)),
        sa.Column("actor", text(64), nullable=False),
        sa.Column("count", number, nullable=False),
        sa.Column("at_ms", number, nullable=False),
        sa.Column("is_read", sa.Boolean, nullable=False),
        sa.Column("mail_due", number),
        sa.Column("mail", text(16)),
        sa.Column("data", sa.LargeBinary(DATA_BYTES_MAX), nullable=False),
    )
    _table(
        "muster_inbox_ids",
        _user(),
        sa.Column("id", text(128), primary_key=True),
        sa.Column("seq", number, nullable=False),
        sa.Column("digest", sa.LargeBinary(16), nullable=False),
        sa.Column("at_ms", number, nullable=False),
    )
    _table(
        "muster_inbox_marks",
        _user(),
        sa.Column("kind", text(32), primary_key=True),
        *(sa.Column(name, number, nullable=False) for name in ("read_seq", "read_number", "seen_seq", "seen_number")),
    )
    _table(
        "muster_inbox_broadcasts",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("audience", text(64), nullable=False),
        sa.Column("kind", text(32), nullable=False),
        sa.Column("actor", text(64), nullable=False),
        sa.Column("id", text(128)),
        sa.Column("digest", sa.LargeBinary(16), nullable=False),
        sa.Column("at_ms", number, nullable=False),
        sa.Column("until_ms", number, nullable=False),
        sa.Column("data", sa.LargeBinary(DATA_BYTES_MAX), nullable=False),
    )
    _table("muster_inbox_last", sa.Column("number", number, nullable=False))
    _table(
        "muster_inbox_audiences",
        _user(),
        sa.Column("audience", text(64), primary_key=True),
        sa.Column("since", number, nullable=False),
    )
    _table("muster_inbox_read", _user(), sa.Column("number", number, primary_key=True, autoincrement=False))
    there = sa.inspect(op.get_bind())
    for name, (table, columns, unique) in INDEXES.items():
        if name not in {each["name"] for each in there.get_indexes(table)}:
            op.create_index(name, table, list(columns), unique=unique)
    compare_bytes(
        "muster_inbox_users",
        "muster_inbox",
        "muster_inbox_ids",
        "muster_inbox_marks",
        "muster_inbox_broadcasts",
        "muster_inbox_last",
        "muster_inbox_audiences",
        "muster_inbox_read",
    )


def _user() -> sa.Column[Any]:
    return sa.Column("user_id", sa.BigInteger, primary_key=True, autoincrement=False)


def _table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("instance", sa.String(64), primary_key=True),
        *columns,
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
