"""Sessions of our own, kept at the server: a new id at each login, so that an id from before the login opens nothing.

Owns cookies, the tokens of forms, and the end of a session by a login elsewhere. It must not know pages.
"""

import hashlib
import hmac
import secrets
from typing import Final

import msgspec
from sqlalchemy import delete, select, update

from ..services import Services
from ..tables import Account, Login, now

COOKIE: Final = "portal"
FORM_COOKIE: Final = "portal_form"
"""The cookie of visitors without a session; it ties a form to the browser that got it."""
LASTS_S: Final = 14 * 86_400


class Member(msgspec.Struct, frozen=True):
    """The account behind a session."""

    id: int
    name: str
    kind: str
    state: str
    staff: bool

    @property
    def may_write(self) -> bool:
        """The staff has allowed the account to write."""
        return self.state == "active"


class Known(msgspec.Struct, frozen=True):
    """A session as the cache has it."""

    ends_at: float
    ended: str
    member: Member


class Visitor(msgspec.Struct):
    """The sender of a request."""

    member: Member | None
    token: str
    """The CSRF token in its forms."""
    digest: str = ""
    """The session's id, and the name of the room that is told when the session ends."""
    seed: str = ""
    """A new cookie for its forms; empty: it has one."""
    ended: str = ""
    """The reason why its session ended."""


def digest_of(id: str) -> str:
    """The key of a session in the table."""
    return hashlib.sha256(id.encode()).hexdigest()


class Sessions:
    """All sessions, over the cache."""

    def __init__(self, services: Services) -> None:
        self._services = services

        @services.cache.cached(
            "session:{digest}",
            fresh_s=60,
            absent_s=5,
            encode=msgspec.json.encode,
            decode=msgspec.json.Decoder(Known).decode,
        )
        async def known(digest: str) -> Known | None:
            async with services.loading() as session:
                found = (
                    await session.execute(
                        select(Login, Account).join(Account, Account.id == Login.account).where(Login.digest == digest)
                    )
                ).first()
            if found is None:
                return None
            login, account = found
            member = Member(account.id, account.name, account.kind, account.state, account.staff)
            return Known(login.ends_at, login.ended, member)

        self._known = known

    async def visitor(self, cookie: str, form_cookie: str) -> Visitor:
        """The sender of a request with these cookies."""
        ended = ""
        if cookie and len(cookie) <= 64:
            digest = digest_of(cookie)
            known = await self._known(digest)
            if known is not None and not known.ended and known.ends_at > now():
                return Visitor(known.member, self._token(cookie), digest)
            ended = known.ended if known is not None else ""
        seed = ""
        if not 20 <= len(form_cookie) <= 64:
            form_cookie = seed = secrets.token_urlsafe(32)
        return Visitor(None, self._token(form_cookie), seed=seed, ended=ended)

    def _token(self, cookie: str) -> str:
        return hmac.digest(self._services.settings.form_secret.encode(), cookie.encode(), "sha256").hex()

    async def begin(self, account: int, address: str) -> tuple[str, bool]:
        """A new session, which ends the others of the account. Returns its cookie, and whether the address is new."""
        id = secrets.token_urlsafe(32)
        cache = self._services.cache
        async with self._services.writing() as session:
            # The first statement writes the account's row, so that two logins at once come one after the other.
            await session.execute(update(Account).where(Account.id == account).values(state=Account.state))
            await session.execute(delete(Login).where(Login.account == account, Login.ends_at < now()))
            before = (await session.scalars(select(Login).where(Login.account == account))).all()
            open_ones = [each.digest for each in before if not each.ended]
            async with cache.changing(*map(self._known.key, [*open_ones, digest_of(id)])) as change:
                await session.execute(
                    update(Login).where(Login.account == account, Login.ended == "").values(ended="elsewhere")
                )
                session.add(Login(digest=digest_of(id), account=account, ends_at=now() + LASTS_S, address=address))
                change.check()
                await session.commit()
        for digest in open_ones:
            await self._tell(digest)
        return id, bool(before) and all(each.address != address for each in before)

    async def end(self, digest: str) -> None:
        """Log out."""
        async with self._services.cache.changing(self._known.key(digest)), self._services.writing() as session:
            await session.execute(update(Login).where(Login.digest == digest).values(ended="logout"))

    async def forget(self, account: int) -> None:
        """Have all sessions of an account read its row again, as after a check by staff."""
        async with self._services.reading() as session:
            digests = (await session.scalars(select(Login.digest).where(Login.account == account))).all()
        if digests:
            await self._services.cache.drop(*map(self._known.key, digests))

    async def _tell(self, digest: str) -> None:
        """Open pages of a session leave at once; the next request would say so too."""
        self._services.rooms.publish_nowait(f"session:{digest}", json={"ended": "elsewhere"})
