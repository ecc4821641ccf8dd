"""Inboxes over HTTP, for any program: put entries in, read pages, count, mark, settings, broadcasts and audiences. Needs
nothing besides Python.

Owns the shapes of questions and answers (`docs/inbox.md`), and two clients: `Inbox` with one connection, for threads, and
`AsyncInbox` with several, for asyncio. It must not know rooms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from .errors import Invalid
from .face import CONNECTIONS, Face
from .face_sync import TIMEOUT_S, SyncFace

USERS_MAX: Final = 1_000
User = int | str
Outcome = Literal["new", "grown", "same", "off", "conflict"]
"""The result of a new entry. `grown`: its group has it. `same`: it was there before. `off`: the user has turned its kind
off. `conflict`: another entry has the id."""
Mail = Literal["never", "at_once", "unless_read", "daily"]
_Asked = tuple[str, str, Any]
"""Method, path, and document."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The result of a new entry for one user. `seq`: its number; 0: there is none."""

    user: str
    seq: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an inbox. `at`: seconds since 1970. `count`: how many entries of its group it stands for."""

    id: str
    """Its number; for a broadcast, `b` and its number."""
    kind: str
    data: Any
    at: float
    read: bool
    count: int
    group: str
    actor: str
    audience: str
    """Audience of a broadcast; else empty."""
    cursor: str = ""
    """The cursor behind the entry, if entries were read in order."""


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of an inbox. `after`: the cursor for what comes later. `next`: the cursor of the next page in the same
    direction; None: this is the last one."""

    entries: tuple[Entry, ...]
    after: str
    next: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Unread and unseen entries by kind; each count stops at 99."""

    unread: Mapping[str, int]
    unseen: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings of one kind. None: as the configuration of the system says."""

    inbox: bool | None = None
    """False: entries of the kind are not kept."""
    push: bool | None = None
    """False: devices are not told of them."""
    mail: Mail | None = None


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A broadcast. `until`: its end, in seconds since 1970."""

    id: str
    outcome: Outcome
    until: float


class Inbox:
    """One connection to an HTTP face. Several threads may share it; their calls run one after another.

    With a user's `token` the calls are about that user's inbox; with an API `key`, `user` names the user. A call that gets
    no answer raises `Unavailable` or `TimedOut`: it may have succeeded. Repeat it with the same id.
    """

    def __init__(self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S) -> None:
        """`url`: `http://host:port` or `https://…` of the face, or of the proxy in front of it. Raises `Invalid`."""
        self._face = SyncFace(url, key=key, token=token, timeout=timeout)

    def __enter__(self) -> "Inbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        self._face.close()

    def notify(
        self,
        users: User | Sequence[User],
        kind: str,
        data: Any = None,
        *,
        group: str = "",
        actor: str = "",
        id: str = "",
    ) -> list[Noted]:
        """Put an entry into the inboxes of up to 1,000 users; it is durable when this returns.

        `data`: anything that JSON has, at most 4 KiB. `group`: entries of a kind with the same group are one entry, which
        grows. `id`: entries with the same id are one entry: give one, so that the call can be repeated. Raises `Refused`,
        `Unavailable`, `TimedOut`.
        """
        return _noted(self._ask(_notify(users, kind, data, group, actor, id)))

    def broadcast(
        self, audience: str, kind: str, data: Any = None, *, actor: str = "", id: str = "", until: float | None = None
    ) -> Broadcast:
        """Put an entry into the inboxes of an audience, `all` for every user: one row, however many users read it.

        `until`: its end, in seconds since 1970. Raises as `notify`.
        """
        return _broadcast(self._ask(_new_broadcast(audience, kind, data, actor, id, until)))

    def follow(self, audience: str, user: User) -> None:
        """Add a user to an audience: the user gets its broadcasts from now on."""
        self._ask(_member("PUT", audience, user))

    def unfollow(self, audience: str, user: User) -> None:
        """Remove a user from an audience."""
        self._ask(_member("DELETE", audience, user))

    def page(
        self,
        user: User | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        kind: str = "",
        limit: int = 50,
    ) -> Page:
        """The newest entries, own ones and broadcasts; `after` a cursor those that came since, the oldest first; `before`
        one older ones."""
        return _page(self._ask(_read(user, after, before, kind, limit)), after)

    def counts(self, user: User | None = None) -> Counts:
        """Unread and unseen entries."""
        return _counts(self._ask(("GET", _path("/unread", user), None)))

    def read(
        self, user: User | None = None, *, to: str | None = None, kind: str = "", entries: Sequence[str] = ()
    ) -> Counts:
        """Mark entries as read: all up to a cursor, of one kind or of all; or single ones by their ids."""
        return _counts(self._ask(_mark("read", user, to, kind, entries)))

    def seen(self, user: User | None = None, *, to: str, kind: str = "") -> Counts:
        """Mark all entries up to a cursor as seen."""
        return _counts(self._ask(_mark("seen", user, to, kind, ())))

    def settings(self, user: User | None = None) -> dict[str, Choice]:
        """The settings of the kinds that have any."""
        return _settings(self._ask(("GET", _path("/settings", user), None)))

    def choose(self, kinds: Mapping[str, Choice], user: User | None = None) -> dict[str, Choice]:
        """Change the settings of these kinds; an empty `Choice` resets a kind."""
        return _settings(self._ask(_choose(kinds, user)))

    def _ask(self, asked: _Asked) -> Any:
        return self._face.ask(*asked)


class AsyncInbox:
    """Several connections to an HTTP face, for a program of asyncio: calls run side by side. The calls are those of
    `Inbox`."""

    def __init__(
        self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S, connections: int = CONNECTIONS
    ) -> None:
        """`url`: as of `Inbox`. `connections`: concurrent calls; further ones wait. Raises `Invalid`."""
        self._face = Face(url, key=key, token=token, timeout=timeout, connections=connections)

    async def __aenter__(self) -> "AsyncInbox":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._face.close()

    async def notify(
        self,
        users: User | Sequence[User],
        kind: str,
        data: Any = None,
        *,
        group: str = "",
        actor: str = "",
        id: str = "",
    ) -> list[Noted]:
        """As `Inbox.notify`."""
        return _noted(await self._face.ask(*_notify(users, kind, data, group, actor, id)))

    async def broadcast(
        self, audience: str, kind: str, data: Any = None, *, actor: str = "", id: str = "", until: float | None = None
    ) -> Broadcast:
        """As `Inbox.broadcast`."""
        return _broadcast(await self._face.ask(*_new_broadcast(audience, kind, data, actor, id, until)))

    async def follow(self, audience: str, user: User) -> None:
        """As `Inbox.follow`."""
        await self._face.ask(*_member("PUT", audience, user))

    async def unfollow(self, audience: str, user: User) -> None:
        """As `Inbox.unfollow`."""
        await self._face.ask(*_member("DELETE", audience, user))

    async def page(
        self,
        user: User | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        kind: str = "",
        limit: int = 50,
    ) -> Page:
        """As `Inbox.page`."""
        return _page(await self._face.ask(*_read(user, after, before, kind, limit)), after)

    async def counts(self, user: User | None = None) -> Counts:
        """As `Inbox.counts`."""
        return _counts(await self._face.ask("GET", _path("/unread", user)))

    async def read(
        self, user: User | None = None, *, to: str | None = None, kind: str = "", entries: Sequence[str] = ()
    ) -> Counts:
        """As `Inbox.read`."""
        return _counts(await self._face.ask(*_mark("read", user, to, kind, entries)))

    async def seen(self, user: User | None = None, *, to: str, kind: str = "") -> Counts:
        """As `Inbox.seen`."""
        return _counts(await self._face.ask(*_mark("seen", user, to, kind, ())))

    async def settings(self, user: User | None = None) -> dict[str, Choice]:
        """As `Inbox.settings`."""
        return _settings(await self._face.ask("GET", _path("/settings", user)))

    async def choose(self, kinds: Mapping[str, Choice], user: User | None = None) -> dict[str, Choice]:
        """As `Inbox.choose`."""
        return _settings(await self._face.ask(*_choose(kinds, user)))


def entry(kind: str, data: Any = None, *, group: str = "", actor: str = "", id: str = "") -> dict[str, Any]:
    """The data of a delayed or transactional message whose target is `inbox:USER`."""
    said = {"kind": kind, "data": data, "group": group, "actor": actor, "id": id}
    return {name: value for name, value in said.items() if value or name in {"kind", "data"}}


def _notify(users: User | Sequence[User], kind: str, data: Any, group: str, actor: str, id: str) -> _Asked:
    named = [users] if isinstance(users, int | str) else list(users)
    if not 1 <= len(named) <= USERS_MAX:
        raise Invalid(f"invalid number of users: {len(named)} (expected 1 to {USERS_MAX})")
    return (
        "POST",
        "/api/v1/inbox",
        {"users": [str(user) for user in named], **entry(kind, data, group=group, actor=actor, id=id)},
    )


def _new_broadcast(audience: str, kind: str, data: Any, actor: str, id: str, until: float | None) -> _Asked:
    document = {"audience": audience, **entry(kind, data, actor=actor, id=id)}
    if until is not None:
        document["until"] = round(until * 1_000)
    return "POST", "/api/v1/broadcasts", document


def _member(method: str, audience: str, user: User) -> _Asked:
    return method, f"/api/v1/audiences/{quote(audience, safe='')}/{quote(str(user), safe='')}", None


def _read(user: User | None, after: str | None, before: str | None, kind: str, limit: int) -> _Asked:
    words: dict[str, Any] = {"after": after, "before": before, "kind": kind or None, "limit": limit}
    return "GET", _path("", user, words), None


def _mark(verb: str, user: User | None, to: str | None, kind: str, entries: Sequence[str]) -> _Asked:
    document: dict[str, Any] = {"entries": list(entries)} if entries else {}
    document |= {} if to is None else {"to": to}
    return "POST", _path(f"/{verb}", user), document | ({"kind": kind} if kind else {})


def _choose(kinds: Mapping[str, Choice], user: User | None) -> _Asked:
    said = {
        kind: {
            name: value
            for name, value in (("inbox", choice.inbox), ("push", choice.push), ("mail", choice.mail))
            if value is not None
        }
        for kind, choice in kinds.items()
    }
    return "PUT", _path("/settings", user), {"kinds": said}


def _path(more: str, user: User | None, words: Mapping[str, Any] | None = None) -> str:
    given = {name: value for name, value in {**(words or {}), "user": user}.items() if value is not None}
    return f"/api/v1/inbox{more}{'?' + urlencode(given) if given else ''}"


def _noted(said: Any) -> list[Noted]:
    return [Noted(each["user"], each["seq"], each["outcome"]) for each in said["users"]]


def _broadcast(said: Any) -> Broadcast:
    return Broadcast(said["id"], said["outcome"], said["until"] / 1_000)


def _page(said: Any, after: str | None) -> Page:
    found: list[Entry] = []
    seq, _, number = (after or "").partition("-")
    number = number or "0"
    for each in said["entries"]:
        place = ""
        if after is not None:
            if each.get("audience"):
                number = each["id"][1:]
            else:
                seq = each["id"]
            place = f"{seq or '0'}-{number}"
        found.append(_entry(each, place))
    return Page(tuple(found), said["after"], said["next"])


def _entry(said: Any, cursor: str) -> Entry:
    return Entry(
        id=said["id"],
        kind=said["kind"],
        data=said["data"],
        at=said["at"] / 1_000,
        read=said["read"],
        count=said.get("count", 1),
        group=said.get("group", ""),
        actor=said.get("actor", ""),
        audience=said.get("audience", ""),
        cursor=cursor,
    )


def _counts(said: Any) -> Counts:
    return Counts(said["unread"], said["unseen"])


def _settings(said: Any) -> dict[str, Choice]:
    return {
        kind: Choice(choice.get("inbox"), choice.get("push"), choice.get("mail"))
        for kind, choice in said["kinds"].items()
    }
