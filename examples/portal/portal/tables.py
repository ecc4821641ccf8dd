"""The tables of the portal, and those of the ledger, a database of its own."""

import secrets
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Double, ForeignKey, Index, String, Text
from sqlalchemy.dialects.mysql import MEDIUMTEXT
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


def now() -> float:
    """Seconds since 1970."""
    return datetime.now(UTC).timestamp()


def new_id() -> int:
    """A new id of 62 bits, in about the order of time: milliseconds since 2020, then 20 bits by chance."""
    return int((now() - 1_577_836_800) * 1_000) << 20 | secrets.randbits(20)


TYPES: Final[dict[Any, Any]] = {float: Double}
"""MariaDB's FLOAT would keep a time to two minutes."""
EXACT: Final = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
"""Options of each table: MariaDB would take `ann@exämple.org` for `ann@example.org`, as SQLite and PostgreSQL do not."""
LONG: Final = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
"""20,000 characters; MariaDB's TEXT has 64 KiB."""


class Base(DeclarativeBase):
    """Tables of the portal."""

    type_annotation_map = TYPES
    __table_args__: Any = EXACT


class Account(Base):
    """A person, or a department that staff must check before it may write."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    contact: Mapped[str] = mapped_column(String(254), unique=True)
    """An e-mail address, or a phone number as `+8613812345678`."""
    name: Mapped[str] = mapped_column(String(60))
    kind: Mapped[str] = mapped_column(String(12))
    """`person` or `department`."""
    department: Mapped[str] = mapped_column(String(80), default="")
    head: Mapped[str] = mapped_column(String(60), default="")
    state: Mapped[str] = mapped_column(String(12))
    """`active`; `waiting` for the check by staff; `refused`."""
    staff: Mapped[bool] = mapped_column(default=False)
    password: Mapped[str] = mapped_column(String(200))
    joined_at: Mapped[float] = mapped_column(default=now)


class Registration(Base):
    """An account before its code was entered."""

    __tablename__ = "registrations"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    contact: Mapped[str] = mapped_column(String(254))
    name: Mapped[str] = mapped_column(String(60))
    kind: Mapped[str] = mapped_column(String(12))
    department: Mapped[str] = mapped_column(String(80), default="")
    head: Mapped[str] = mapped_column(String(60), default="")
    password: Mapped[str] = mapped_column(String(200))
    code: Mapped[str] = mapped_column(String(64))
    """Digest of the code; empty: the contact has an account, so no code helps."""
    tries: Mapped[int] = mapped_column(default=0)
    ends_at: Mapped[float] = mapped_column()


class Login(Base):
    """A session. The cookie's digest is its key, so a copy of the table opens nothing."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    account: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    ends_at: Mapped[float] = mapped_column()
    ended: Mapped[str] = mapped_column(String(12), default="")
    """`elsewhere` or `logout`."""
    address: Mapped[str] = mapped_column(String(45), default="")


class Count(Base):
    """Counters of actions that a stranger may repeat only a few times: failed logins, and codes to one contact."""

    __tablename__ = "counts"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int] = mapped_column(default=0)
    until: Mapped[float] = mapped_column()


class Share(Base):
    """An article that an account publishes."""

    __tablename__ = "shares"
    __table_args__ = (Index("shares_public", "state", "public_at"), EXACT)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    author: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    field: Mapped[str] = mapped_column(String(20))
    title: Mapped[str] = mapped_column(String(120))
    text: Mapped[str] = mapped_column(LONG)
    state: Mapped[str] = mapped_column(String(12))
    """`public`; `waiting` for its time; `cancelled`; `withdrawn` after it was public."""
    fee: Mapped[int] = mapped_column(default=0)
    """Credits that it takes to read it."""
    public_at: Mapped[float] = mapped_column()
    message: Mapped[str] = mapped_column(String(64), default="")
    """Id of the delayed message that publishes it."""


class Reply(Base):
    """A reply to a share."""

    __tablename__ = "replies"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    share: Mapped[int] = mapped_column(ForeignKey("shares.id"), index=True)
    author: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    text: Mapped[str] = mapped_column(LONG)
    at: Mapped[float] = mapped_column(default=now)


class Letter(Base):
    """A private message."""

    __tablename__ = "letters"
    __table_args__ = (Index("letters_of_two", "pair", "id"), EXACT)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    pair: Mapped[str] = mapped_column(String(40))
    """Both accounts, the lower id first: `1001:1002`."""
    sender: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    receiver: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    text: Mapped[str] = mapped_column(LONG)
    at: Mapped[float] = mapped_column(default=now)
    read_at: Mapped[float | None] = mapped_column(default=None)


class Follow(Base):
    """An account follows another one, or a field."""

    __tablename__ = "follows"

    account: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    target: Mapped[str] = mapped_column(String(40), primary_key=True, index=True)
    """`user:1002` or `field:seeds`."""


class Order(Base):
    """A member buys the right to read a share. The ledger has the credits; `orders.py` keeps both in step."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    share: Mapped[int] = mapped_column(ForeignKey("shares.id"), index=True)
    buyer: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    fee: Mapped[int] = mapped_column()
    state: Mapped[str] = mapped_column(String(12), index=True)
    """`waiting` for the ledger; `paid`; `refused` by it; `cancelled` by the buyer; `returned`: the share was withdrawn."""
    open: Mapped[str | None] = mapped_column(String(42), unique=True)
    """Share and buyer while the order is waiting or paid, so that there is one; else null."""
    at: Mapped[float] = mapped_column(default=now)


class Ledger(DeclarativeBase):
    """Tables of the database that has the credits."""

    type_annotation_map = TYPES
    __table_args__: Any = EXACT


class Wallet(Ledger):
    """The credits of an account."""

    __tablename__ = "wallets"

    account: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    credits: Mapped[int] = mapped_column()


class Payment(Ledger):
    """The outcome of an order in the ledger. Its key has each order paid once, and returned once."""

    __tablename__ = "payments"

    order: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    buyer: Mapped[int] = mapped_column(BigInteger)
    seller: Mapped[int] = mapped_column(BigInteger)
    fee: Mapped[int] = mapped_column()
    state: Mapped[str] = mapped_column(String(12))
    """`taken`; `refused`: too few credits; `returned`, perhaps before it was taken."""
    at: Mapped[float] = mapped_column(default=now)
