"""The routes of inboxes over HTTP: put entries in, read, follow, mark, settings, broadcasts and audiences.

The base owns keys, limits and idempotency (`systems/http/`). The nodes of the system do the work.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from litestar import MediaType, Response, Router, delete, get, post, put
from litestar.di import NamedDependency, Provide
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

import muster
from muster.clock import now_ms
from muster_server.plane.calls import CallError
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, Nothing, repeatable
from muster_server.systems.http.lookout import Lookout
from muster_server.systems.http.named import needs_whole, once, users_of
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import EventStream
from muster_server.systems.http.times import ms
from muster_server.systems.inbox.asking import AWAY, Address, Inboxes
from muster_server.systems.inbox.http import bodies
from muster_server.systems.inbox.http.streams import InboxStream, InboxStreams
from muster_server.systems.inbox.shapes import (
    AUDIENCE,
    CURSOR,
    DATA_BYTES_MAX,
    KIND,
    PAGE_MAX,
    ROLE,
    Broadcast,
    Choose,
    Chosen,
    Count,
    Counts,
    Cursor,
    Done,
    Join,
    Mark,
    New,
    Noted,
    Notify,
    Numbered,
    Page,
    Read,
    cursor,
)

A = TypeVar("A")
EVENTS: Final = "text/event-stream"
CODES: Final = {"question": "bad_request", "late": "timeout", "busy": "busy", "full": "busy"}
TOTAL_MAX: Final = 99
DAY_MS: Final = 86_400_000
Whose = Annotated[
    str | None, QueryParameter(name="user", description="The inbox's user, for an API key; a token has its own")
]
UserPath = Annotated[str, PathParameter(description="A user: a number of 64 bits, or text")]
AudiencePath = Annotated[str, PathParameter(description="The audience's name", pattern=rf"^{AUDIENCE}\Z")]
CursorQuery = Annotated[str | None, QueryParameter(pattern=rf"^{CURSOR}\Z", description="A cursor, as a page has it")]


@post(
    "/inbox",
    status_code=200,
    opt={"body": Body((bodies.NewEntry,))},
    responses={
        200: success(bodies.NotedUsers, "The entries are durable"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def notify(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    inbox: NamedDependency["InboxFace"],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Put an entry into the inboxes of up to 1,000 users: `{"users": ["7"], "kind": "like", "data": {"song": 3}}`.

    Entries with the same `id` are one entry. Entries of a kind with the same `group` are one entry, which grows: it gets
    the next number, and its `count` says how many it stands for.
    """
    body = await request.body()
    asked = decoded(body, bodies.NewEntry)
    new = New(asked.kind, _data(asked.data), asked.group, asked.actor, asked.id)
    users = once(users_of(caller, asked.users, "bad_body"), asked.users)
    for user in asked.users:
        caller.need("notify", user, whole=needs_whole(user))

    async def do() -> Answer:
        _spend(caller, len(users))
        with repeatable():
            await inbox.lookout()
        said = await inbox.ask(Notify(list(users), new), list[Noted])
        told = [bodies.NotedUser(name, each.seq, each.outcome) for name, each in zip(users.values(), said, strict=True)]
        inbox.count(told)
        return Answer(200, msgspec.json.encode(bodies.NotedUsers(told)))

    return await inbox.base.once(request, caller, body, do)


@post(
    "/broadcasts",
    status_code=200,
    opt={"body": Body((bodies.NewBroadcast,))},
    responses={
        200: success(bodies.ShownBroadcast, "The broadcast is durable"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def broadcast(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    inbox: NamedDependency["InboxFace"],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Put an entry into the inboxes of an audience: `{"audience": "all", "kind": "news", "data": "a new release"}`.

    It is one row, however many users read it; it is shown until `until`.
    """
    body = await request.body()
    asked = decoded(body, bodies.NewBroadcast)
    caller.need("broadcast", asked.audience)
    new = New(asked.kind, _data(asked.data), "", asked.actor, asked.id)
    end = ms(asked.until, "until")

    async def do() -> Answer:
        _spend(caller, 1)
        until = now_ms() + inbox.broadcast_ms if end is None else end
        with repeatable():
            await inbox.lookout()
        said = await inbox.ask(Broadcast(asked.audience, new, until), Numbered)
        return Answer(200, msgspec.json.encode(bodies.ShownBroadcast(f"b{said.number}", said.outcome, until)))

    return await inbox.base.once(request, caller, body, do)


@put(
    "/audiences/{audience:str}/{user:str}",
    responses={200: success(bodies.ShownDone, "The user is in the audience"), **problems(400, 401, 403, 429, 503, 504)},
)
async def join(
    audience: AudiencePath,
    user: UserPath,
    caller: NamedDependency[Caller],
    inbox: NamedDependency["InboxFace"],
) -> Response[bytes]:
    """Add a user to an audience: the user gets its broadcasts from now on. For `all`: the user begins now."""
    return await _join(inbox, caller, audience, user, leave=False)


@delete(
    "/audiences/{audience:str}/{user:str}",
    status_code=200,
    responses={
        200: success(bodies.ShownDone, "The user is not in the audience"),
        **problems(400, 401, 403, 429, 503, 504),
    },
)
async def leave(
    audience: AudiencePath,
    user: UserPath,
    caller: NamedDependency[Caller],
    inbox: NamedDependency["InboxFace"],
) -> Response[bytes]:
    """Remove a user from an audience."""
    return await _join(inbox, caller, audience, user, leave=True)


@get(
    "/inbox",
    opt={"events": True},
    responses={
        200: success(bodies.ShownPage, "A page; with `Accept: text/event-stream` entries as they come"),
        **problems(400, 401, 403, 429, 503, 504),
    },
)
async def read(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    inbox: NamedDependency["InboxFace"],
    after: CursorQuery = None,
    before: CursorQuery = None,
    kind: Annotated[str | None, QueryParameter(pattern=rf"^{KIND}\Z", description="Only entries of this kind")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="Number of entries")] = 50,
    user: Whose = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="Resume after this event of a stream")
    ] = None,
) -> Response[Any]:
    """The newest entries, own ones and broadcasts; with `after` those that came since, the oldest first; with `before`
    older ones.

    With `Accept: text/event-stream`: entries after the cursor, then each one as it comes. An event's id is the cursor
    behind it.
    """
    whose = _whose(caller, user)
    if EVENTS in request.headers.get("accept", ""):
        if before is not None or kind is not None:
            raise Problem(
                "bad_request", "a stream begins after a cursor and has all kinds: give neither before nor kind"
            )
        at = _cursor(last_event_id or after)
        if at is None:  # before the head of the answer, so that what comes after it is part of the stream
            at = (await inbox.ask(Read(whose, limit=1), Page)).now
        await inbox.lookout()
        return EventStream(InboxStream(inbox.streams, whose, user, at, caller, inbox.base.options))
    if after is not None and before is not None:
        raise Problem("bad_request", "after and before exclude each other: give one of them")
    back = None if before is None else bodies.before(before)
    page = await inbox.ask(Read(whose, _cursor(after), back, kind or "", limit), Page)
    entries = [bodies.shown(each) for each in page.entries]
    said = bodies.ShownPage(entries, str(page.now if after is None else page.end), str(page.end) if page.more else None)
    return _json(said)


@get(
    "/inbox/unread",
    responses={200: success(bodies.ShownCounts, "The counts"), **problems(400, 401, 403, 429, 503, 504)},
)
async def unread(
    request: AnyRequest, caller: NamedDependency[Caller], inbox: NamedDependency["InboxFace"], user: Whose = None
) -> Response[bytes]:
    """The unread and unseen entries, by kind."""
    return _json(await _counted(inbox, _whose(caller, user)))


@post(
    "/inbox/{verb:str}",
    status_code=200,
    opt={"body": Body((bodies.Marked,))},
    responses={
        200: success(bodies.ShownCounts, "The counts after it"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def mark(
    request: AnyRequest,
    verb: Annotated[str, PathParameter(description="`read` or `seen`")],
    caller: NamedDependency[Caller],
    inbox: NamedDependency["InboxFace"],
    user: Whose = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Mark entries as read or seen: `{"to": "58-12"}` all up to a cursor, with `"kind"` those of one kind; `{"entries":
    ["58", "b12"]}` single ones, as read. Marks only grow."""
    if verb not in {"read", "seen"}:
        raise Problem("not_found")
    whose = _whose(caller, user)
    body = await request.body()
    asked = decoded(body, bodies.Marked)
    if (asked.to is None) == (not asked.entries):
        raise Problem("bad_body", "give either `to`, a cursor, or `entries`")
    if verb == "seen" and asked.entries:
        raise Problem("bad_body", "entries are seen up to a cursor: give `to`")
    word: Literal["read", "seen"] = "read" if verb == "read" else "seen"
    to = _cursor(asked.to)

    async def do() -> Answer:
        with repeatable():
            await inbox.ask(Mark(whose, word, to, asked.kind, asked.entries), Done)
            return Answer(200, msgspec.json.encode(await _counted(inbox, whose)))

    return await inbox.base.once(request, caller, body, do)


@get(
    "/inbox/settings",
    responses={200: success(bodies.Settings, "The settings"), **problems(400, 401, 403, 429, 503, 504)},
)
async def settings(
    request: AnyRequest, caller: NamedDependency[Caller], inbox: NamedDependency["InboxFace"], user: Whose = None
) -> Response[bytes]:
    """The settings of the kinds that have any."""
    said = await inbox.ask(Choose(_whose(caller, user)), Chosen)
    return _json(bodies.Settings(said.kinds))


@put(
    "/inbox/settings",
    opt={"body": Body((bodies.Settings,))},
    responses={
        200: success(bodies.Settings, "The settings after it"),
        **problems(400, 401, 403, 429, 503, 504),
    },
)
async def choose(
    request: AnyRequest, caller: NamedDependency[Caller], inbox: NamedDependency["InboxFace"], user: Whose = None
) -> Response[bytes]:
    """Change the settings of some kinds: `{"kinds": {"like": {"push": false, "mail": "daily"}}}`."""
    whose = _whose(caller, user)
    asked = decoded(await request.body(), bodies.Settings)
    return _json(bodies.Settings((await inbox.ask(Choose(whose, asked.kinds), Chosen)).kinds))


class InboxFace:
    """The inbox's part of the HTTP face. It is ready even if no inbox runs: its routes report that."""

    ready: Final = True

    def __init__(self, base: Base) -> None:
        self.base = base
        self.broadcast_ms = int(base.told.get("inbox", {}).get("broadcast_days", 30)) * DAY_MS
        self._lookout = Lookout(base)
        self._inboxes: Inboxes | None = None
        self._streams: InboxStreams | None = None
        self.count([])

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def inbox(caller: NamedDependency[Caller]) -> InboxFace:  # sync: awaiting here costs tasks per request
            return self

        handlers = [notify, broadcast, join, leave, read, unread, mark, settings, choose]
        provided = {"inbox": Provide(inbox, sync_to_thread=False)}
        return [Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["inbox"])]

    async def start(self) -> None:
        """Nodes are looked up with the first request."""

    def redirect(self, address: muster.Address) -> None:
        """Look up the nodes again."""
        self._lookout.forget()

    def access_changed(self) -> None:
        """Have streams check whether they may go on."""
        if self._streams is not None:
            self._streams.wake()

    def drain(self) -> None:
        """End the streams."""
        if self._streams is not None:
            self._streams.drain()

    async def stop(self) -> None:
        """Close all."""
        if self._streams is not None:
            await self._streams.stop()
        if self._inboxes is not None:
            await self._inboxes.close()

    def status(self) -> dict[str, Any]:
        """The number of streams."""
        return {"inbox_streams": 0 if self._streams is None else len(self._streams)}

    # --- for routes ---------------------------------------------------------------------------------------------------

    async def ask(self, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask a node. Raises `Problem`."""
        await self.lookout()
        assert self._inboxes is not None
        try:
            return await self._inboxes.ask(question, answer)
        except CallError as error:
            raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None

    async def lookout(self) -> None:
        """Look up the nodes. Raises `Problem` if there is none."""
        await self._lookout.look()
        if not self._nodes():
            raise Problem("unavailable", AWAY)
        if self._inboxes is None:
            self._inboxes = Inboxes(self._nodes, self._lookout.key())

    @property
    def streams(self) -> InboxStreams:
        """All streams of this face, after `lookout`."""
        assert self._inboxes is not None
        if self._streams is None:
            base = self.base
            self._streams = InboxStreams(self._inboxes, self._lookout.look, lambda: base.options, base.counts, base.log)
        return self._streams

    def count(self, told: Sequence[bodies.NotedUser]) -> None:
        """Count entries that came over HTTP."""
        self.base.counts.add("http_inbox_entries", "Entries for inboxes that came over HTTP", len(told))

    def _nodes(self) -> list[Address]:
        return [each.bind for each in self._lookout.nodes if each.role == ROLE and each.bind and each.ready]


def _whose(caller: Caller, name: str | None) -> int:
    """The user of the inbox that a caller asks for. Raises `Problem`."""
    if caller.user is not None:
        if "read" not in caller.rights:
            raise Problem("not_allowed", f"the token of {caller.name} does not have the right to read")
        if name is not None and users_of(caller, [name], "bad_request") != [caller.user]:
            raise Problem("not_allowed", f"{caller.name} reads its own inbox only")
        return caller.user
    if name is None:
        raise Problem("bad_request", "missing user: an API key reads the inbox of a user (?user=7)")
    (number,) = users_of(caller, [name], "bad_request")
    caller.need("inbox", name, whole=needs_whole(name))
    return number


def _cursor(text: str | None) -> Cursor | None:
    if not text:
        return None
    try:
        return cursor(text)
    except ValueError as error:
        raise Problem("bad_request", str(error)) from None


def _data(raw: msgspec.Raw) -> bytes:
    """Data of an entry, in one line. Raises `Problem`."""
    made = msgspec.json.format(bytes(raw), indent=-1)
    if len(made) > DATA_BYTES_MAX:
        raise Problem("too_long", f"data of an entry too long: {len(made)} bytes (limit {DATA_BYTES_MAX})")
    return made


async def _join(inbox: InboxFace, caller: Caller, audience: str, name: str, *, leave: bool) -> Response[bytes]:
    caller.need("broadcast", audience)
    users = users_of(caller, [name], "bad_request")
    return _json(bodies.ShownDone((await inbox.ask(Join(audience, users, leave), Done)).count))


async def _counted(inbox: InboxFace, user: int) -> bodies.ShownCounts:
    said = await inbox.ask(Count(user), Counts)
    totals = (min(sum(each.values()), TOTAL_MAX) for each in (said.unread, said.unseen))
    return bodies.ShownCounts(said.unread, said.unseen, *totals)


def _spend(caller: Caller, entries: int) -> None:
    try:
        caller.spend(entries)
    except Problem as problem:
        raise Nothing(problem) from None


def _json(said: msgspec.Struct) -> Response[bytes]:
    return Response(msgspec.json.encode(said) + b"\n", media_type=MediaType.JSON)


def face(base: Base) -> InboxFace:
    """As `systems.http.face.Module`."""
    return InboxFace(base)
