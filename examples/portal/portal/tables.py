"""The tables of the portal."""

import secrets
from datetime import UTC, datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


def now() -> float:
    """Seconds since 1970."""
    return datetime.now(UTC).timestamp()


def new_id() -> int:
    """A new id of 62 bits, in about the order of time: milliseconds since 2020, then 20 bits by chance."""
    return int((now() - 1_577_836_800) * 1_000) << 20 | secrets.randbits(20)


class Base(DeclarativeBase):
    """Tables of the portal."""


class Account(Base):
    """A person, or a department that staff must check before it may write."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    email: Mapped[str] = mapped_column(String(254), unique=True)
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
    email: Mapped[str] = mapped_column(String(254))
    name: Mapped[str] = mapped_column(String(60))
    kind: Mapped[str] = mapped_column(String(12))
    department: Mapped[str] = mapped_column(String(80), default="")
    head: Mapped[str] = mapped_column(String(60), default="")
    password: Mapped[str] = mapped_column(String(200))
    code: Mapped[str] = mapped_column(String(64))
    """Digest of the code; empty: the address has an account, so no code helps."""
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


class Failure(Base):
    """Failed logins of an address with an e-mail address."""

    __tablename__ = "failures"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int] = mapped_column(default=0)
    until: Mapped[float] = mapped_column()


class Share(Base):
    """An article that an account publishes."""

    __tablename__ = "shares"
    __table_args__ = (Index("shares_public", "state", "public_at"),)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    author: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    field: Mapped[str] = mapped_column(String(20))
    title: Mapped[str] = mapped_column(String(120))
    text: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(12))
    """`public`; `waiting` for its time; `cancelled`."""
    public_at: Mapped[float] = mapped_column()
    message: Mapped[str] = mapped_column(String(64), default="")
    """Id of the delayed message that publishes it."""


class Reply(Base):
    """A reply to a share."""

    __tablename__ = "replies"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    share: Mapped[int] = mapped_column(ForeignKey("shares.id"), index=True)
    author: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    text: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(default=now)


class Letter(Base):
    """A private message."""

    __tablename__ = "letters"
    __table_args__ = (Index("letters_of_two", "pair", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    pair: Mapped[str] = mapped_column(String(40))
    """Both accounts, the lower id first: `1001:1002`."""
    sender: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    receiver: Mapped[int] = mapped_column(ForeignKey("accounts.id"), index=True)
    text: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(default=now)
    read_at: Mapped[float | None] = mapped_column(default=None)


class Follow(Base):
    """An account follows another one, or a field."""

    __tablename__ = "follows"

    account: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    target: Mapped[str] = mapped_column(String(40), primary_key=True, index=True)
    """`user:1002` or `field:seeds`."""
