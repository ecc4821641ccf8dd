"""The rooms' routes over HTTP: publish, history, event streams, members, commands, rooms.

The base owns keys, limits and idempotency (`systems/http/`); `service.py` does the work of the routes.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, Router, delete, get, post
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

import muster
from muster.client import COMMAND_GRACE_S, COMMAND_S_MAX
from muster.requests import REQUEST_S_MAX, SUFFIX
from muster_server.systems.http import cursors
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body
from muster_server.systems.http.deprecated import Deprecated
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, Nothing
from muster_server.systems.http.named import needs_whole, users_of
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import ENDED, EventStream
from muster_server.systems.http.times import Time, ms
from muster_server.systems.rooms.archive.shapes import LATEST_MAX, Place, ReadLatest, place
from muster_server.systems.rooms.history import Asked
from muster_server.systems.rooms.http.answers import (
    Batch,
    Counted,
    Ended,
    Last,
    LatestOfKeys,
    Outcome,
    Paths,
    Positioned,
    Replied,
    Rooms,
    batch_answer,
    last,
    latest,
)
from muster_server.systems.rooms.http.bodies import NDJSON, JsonMessage, batch, is_batch, one, room_name
from muster_server.systems.rooms.http.centrifugo.routes import router as centrifugo
from muster_server.systems.rooms.http.feeds import encoded, parse_id
from muster_server.systems.rooms.http.paths import OPEN_S, PATHS_MAX, paths
from muster_server.systems.rooms.http.service import Service
from muster_server.systems.rooms.http.streams import RoomStream
from muster_server.systems.rooms.where import Where, parse_where

MESSAGES: Final = "/rooms/{room:str}/messages"
EVENTS: Final = "text/event-stream"
ONE: Final = "One message, unchanged"
BATCH: Final = "One message per line, each as in application/json"
HISTORY: Final = "history"
"""Name of the list whose cursors pages of messages have."""
LATEST: Final = "latest"
"""The same for pages of keys."""
SINCE_CHARS_MAX: Final = 64
MEMBERS_MAX: Final = 100
USER_MAX: Final = (1 << 64) - 1
UserNumber = Annotated[int, msgspec.Meta(ge=0)]


ROOM: Final = "The room's name, percent-encoded: `sports:final`, `a%2Fb`"
Room = Annotated[str, PathParameter(description=ROOM, examples=[Example(value="sports:final")])]


@post(
    MESSAGES,
    status_code=200,
    opt={"body": Body((JsonMessage, str, list[JsonMessage | str]), {NDJSON: BATCH, "*/*": ONE})},
    responses={
        200: success(Positioned, "Published; a batch is answered as with 207"),
        207: success(Batch, "Some messages of the batch failed"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def publish(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Publish one message or a batch.

    Any body is one message, unchanged; `application/json` is `{"data": ...}`, or an array of these or of strings;
    `application/x-ndjson` has one of these per line. The answer comes once the room's owner has numbered the messages.
    """
    name = room_name(room)
    caller.need("publish", name)
    body = await request.body()

    async def do() -> Answer:
        kind = _kind(request)
        if is_batch(body, kind):
            data = batch(body, kind)
            if len(data) > service.options.batch_max:
                raise Nothing(Problem("too_long", f"too many messages in a batch (limit {service.options.batch_max})"))
            _spend(caller, len(data))
            return batch_answer(await service.publish(caller, name, data) if data else [])
        data = [one(body, kind)]
        _spend(caller, 1)
        said = (await service.publish(caller, name, data))[0]
        if isinstance(said, Problem):
            raise said if said.code == "timeout" else Nothing(said)
        return Answer(200, msgspec.json.encode(Positioned(str(said))))

    return await service.base.once(request, caller, body, do)


@get(
    MESSAGES,
    opt={"events": True},
    responses={
        200: ResponseSpec(
            Last,
            generate_examples=False,
            description="A page of messages; with `Accept: text/event-stream` all messages from now on",
        ),
        204: success(None, "An operator ended the reader's session, and the reader has the last event"),
        **problems(400, 401, 403, 429, 503, 504),
    },
)
async def messages(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    history: Annotated[
        int | None, QueryParameter(ge=0, le=65_536, description="Number of last messages; default 100, for a stream 0")
    ] = None,
    since: Annotated[
        str | None,
        QueryParameter(
            max_length=SINCE_CHARS_MAX,
            description="Messages behind this position, or from this time on: milliseconds since 1970, or ISO 8601 with a "
            "zone; with `reverse` those before it",
        ),
    ] = None,
    reverse: Annotated[bool, QueryParameter(description="The newest message first")] = False,
    after: cursors.After = "",
    where: Annotated[
        list[str] | None,
        QueryParameter(
            description="Of a stream: only messages whose header NAME has one of these values, as `NAME=VALUE,VALUE`; "
            "repeat it for more headers, all of which must match"
        ),
    ] = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="Resume after this event of a stream")
    ] = None,
) -> Response[Any]:
    """The last messages as JSON, or a page from `since` on; with `Accept: text/event-stream` messages as they arrive.

    A room that the archive keeps (`archive.rooms`) goes on behind what is in memory, and messages have a time there.

    Events: a message has no event name, `gap` reports missing messages, `command` a command, and `goodbye` comes before
    the end. Their ids are positions; `Last-Event-ID` resumes after one. The `goodbye` of a session that an operator ended
    has the id `ended`: a client that comes back with it, as an `EventSource` does by itself, gets 204.
    """
    name = room_name(room)
    streams = "text/event-stream" in request.headers.get("accept", "")
    caller.need("read" if streams else "history", name)
    if history is not None and history > service.options.history_max:
        raise Problem("too_much_history", f"too much history requested (limit {service.options.history_max} messages)")
    wanted = _where(where or (), streams)
    page = None if streams else _page(name, 100 if history is None else history, since, reverse, after)
    known = None
    if streams and last_event_id == ENDED:
        return Response(b"", status_code=204)
    if streams and last_event_id:
        try:
            known = parse_id(last_event_id)
        except ValueError:
            raise Problem("bad_request", "invalid Last-Event-ID (expected the id of an event of a room)") from None
    feed = await service.feed(caller, name)
    ring = feed.ring
    if not feed.history and (history or not streams):
        raise Problem("not_allowed", f"{caller.name} may not read the history of {name}"[:400])
    if streams:
        if known is None:
            gaps, cursor = b"", ring.newest(history or 0)
        else:
            gaps, cursor = ring.after(known)
        at, options = ring.known_at(cursor), service.options
        beats = options.heartbeat_s, options.stall_s
        return EventStream(RoomStream(service, feed, caller, gaps, cursor, at, wanted, *beats))
    assert page is not None
    said = await service.page(feed, page)
    next = None if said.next is None else cursors.written(HISTORY, (page.back, str(said.next)))
    return _json(last(name, said, turned=page.back and not reverse, next=next))


@get(
    "/rooms/{room:str}/latest",
    responses={
        200: ResponseSpec(LatestOfKeys, generate_examples=False, description="A page"),
        **problems(400, 401, 403, 404, 429, 503, 504),
    },
)
async def latest_of_keys(
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    limit: Annotated[int, QueryParameter(ge=1, le=LATEST_MAX, description="Number of keys")] = 1_000,
    after: cursors.After = "",
) -> Response[bytes]:
    """The latest message of each value of the header `key`, of a room that the archive keeps (`archive.rooms`).

    A client that goes on behind `resume` of the first page gets every later message once.
    """
    name = room_name(room)
    caller.need("history", name)
    upto, behind = cursors.read(LATEST, after, tuple[int, int]) or (None, 0)
    page = await service.latest(caller, ReadLatest(name, limit, behind, upto))
    next = None if page.next is None else cursors.written(LATEST, (page.upto, page.next))
    return _json(latest(name, page, next))


@get(
    "/direct",
    responses={
        200: ResponseSpec(str, generate_examples=False, media_type=EVENTS, description="Messages, an event each"),
        204: success(None, "An operator ended the reader's session, and the reader has the last event"),
        **problems(401, 403, 429, 503, 504),
    },
)
async def direct(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="The id `ended`: the answer is 204")
    ] = None,
) -> Response[Any]:
    """Messages to the user of the token, as they come: those of `POST /api/v1/send`, `muster send` and targets `user:ID`.

    A message is `delivered` once the system of one reader has it. Its id tells doubles apart. Nothing is kept for later.
    """
    if caller.token is None:
        raise Problem("not_allowed", f"{caller.name} is no user: direct messages need a user's token"[:400])
    if "read" not in caller.rights:
        raise Problem("not_allowed", f"the token of {caller.name} does not have the right to read")
    if "presence" not in service.base.told:
        raise Problem("unavailable", "presence does not run here, so there are no messages to users (systems.enabled)")
    if last_event_id == ENDED:
        return Response(b"", status_code=204)
    return EventStream(await service.direct(caller, caller.token))


@get(
    "/rooms/{room:str}/members",
    opt={"deprecated": {"start": Deprecated("after")}},
    responses={
        200: success(Counted, "The members"),
        **problems(400, 401, 403, 429, 503, 504),
    },
)
async def members(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    ids: Annotated[bool, QueryParameter(description="Also list the users")] = False,
    start: Annotated[str, QueryParameter(pattern=r"^[0-9]{1,20}\Z", description="The first user of the list")] = "0",
    limit: Annotated[int, QueryParameter(ge=1, le=MEMBERS_MAX, description="Number of users to list")] = MEMBERS_MAX,
    after: cursors.After = "",
    wait: Annotated[float, QueryParameter(gt=0, le=60, description="Limit of the wait for gateways, in seconds")] = 1.0,
) -> Response[bytes]:
    """Count a room's members over all gateways, and list the users with `ids`. A user with two clients counts twice."""
    name = room_name(room)
    caller.need("members", name)
    last = cursors.read("members", after, UserNumber)
    service.base.ongoing(request).extend(wait + COMMAND_GRACE_S)
    first = int(start) if last is None else last + 1
    if first > USER_MAX:
        raise Problem("bad_request", f"no user from {first} on (limit 2^64-1)")
    try:
        said: muster.Members = await service.ask(
            caller, lambda client: client.members(name, ids=ids, start=first, wait=wait)
        )
    except Nothing as nothing:
        raise nothing.problem from None
    users, truncated = said.ids[:limit], said.truncated or len(said.ids) > limit
    next = cursors.written("members", users[-1]) if truncated and users else None
    return _json(msgspec.json.encode(Counted(said.count, [str(user) for user in users], truncated, said.partial, next)))


@delete(
    "/rooms/{room:str}/members/{user:str}",
    operation_id="rooms_member_end",
    status_code=200,
    responses={200: success(Ended, "The number of ended sessions"), **problems(400, 401, 403, 429, 503, 504)},
)
async def end_member(
    request: AnyRequest,
    room: Room,
    user: Annotated[str, PathParameter(description="A number of 64 bits as text, or the text that names the user")],
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    expires: Annotated[
        float, QueryParameter(gt=0, le=COMMAND_S_MAX, description="Limit of the wait for gateways, in seconds")
    ] = 5.0,
) -> Response[bytes]:
    """End the sessions with which a user is a member of a room, with or without presence. Needs the scope `end`.

    The clients get the code `ended` and do not come back by themselves. A program may open a new session: revoke the user
    to keep it out. Sessions of the shared token have no user of their own and are not ended.
    """
    name = room_name(room)
    (number,) = users_of(caller, [user], "bad_request")
    caller.need("end", user, whole=needs_whole(user))
    request.scope["state"]["note"] = f"{user} in {name}"
    service.base.ongoing(request).extend(expires + COMMAND_GRACE_S)
    _spend(caller, 1)
    try:
        ended = await service.ask(caller, lambda client: client.end_member(name, number, expires=expires))
    except Nothing as nothing:
        raise nothing.problem from None
    return _json(msgspec.json.encode(Ended(ended)))


@get(
    "/rooms/{room:str}/trace",
    operation_id="rooms_trace",
    responses={200: success(Paths, "The paths, one for each proxy"), **problems(400, 401, 403, 429, 503, 504)},
)
async def trace(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    limit: Annotated[int, QueryParameter(ge=1, le=PATHS_MAX, description="Number of proxies to ask")] = PATHS_MAX,
    wait: Annotated[float, QueryParameter(gt=0, le=60, description="Limit of the wait for gateways, in seconds")] = 5.0,
) -> Response[bytes]:
    """Show the nodes that carry a room's messages, with the time of each hop, as `muster trace` does.

    A question for the room's members goes through each proxy to a broker and to all gateways of the room. Members notice
    nothing.
    """
    name = room_name(room)
    caller.need("members", name)
    service.base.ongoing(request).extend(wait + COMMAND_GRACE_S + OPEN_S)
    try:
        found = await paths(service, caller, name, limit, wait)
    except Nothing as nothing:
        raise nothing.problem from None
    return _json(msgspec.json.encode(found))


@post(
    "/rooms/{room:str}/commands",
    status_code=200,
    opt={"body": Body((JsonMessage, str), {"*/*": ONE})},
    responses={
        200: success(Outcome, "The outcome of the command"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def command(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    expires: Annotated[
        float, QueryParameter(gt=0, le=COMMAND_S_MAX, description="Lifetime of the command in seconds")
    ] = 5.0,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Send a command to every member of a room, once each, and return the outcome. The body is that of one message."""
    name = room_name(room)
    caller.need("command", name)
    body = await request.body()
    service.base.ongoing(request).extend(expires + COMMAND_GRACE_S)

    async def do() -> Answer:
        content = one(body, _kind(request))
        if content.headers:
            raise Nothing(Problem("bad_body", "a command has no `headers`"))
        _spend(caller, 1)
        said = await service.ask(caller, lambda client: client.command(name, content.data, expires=expires))
        if isinstance(said, muster.NoMember):
            outcome = Outcome("nobody", 0)
        else:
            outcome = Outcome("delivered" if isinstance(said, muster.Delivered) else "expired", said.members)
        return Answer(200, msgspec.json.encode(outcome))

    return await service.base.once(request, caller, body, do)


@post(
    "/rooms/{room:str}/request",
    operation_id="rooms_request",
    status_code=200,
    opt={"body": Body((JsonMessage, str), {"*/*": ONE})},
    responses={
        200: success(Replied, "The reply"),
        **problems(400, 401, 403, 409, 413, 422, 429, 502, 503, 504),
    },
)
async def ask(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    timeout: Annotated[
        float, QueryParameter(gt=0, le=REQUEST_S_MAX, description="Limit of the wait for a reply, in seconds")
    ] = 5.0,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Ask the responders of a room, and return the reply of the one that answers. The body is that of one message.

    A room without a responder is told at once (`no_responders`). Needs `publish` in the room `ROOM/requests`.
    """
    name = room_name(room)
    caller.need("publish", room_name(name + SUFFIX))
    body = await request.body()
    service.base.ongoing(request).extend(timeout + COMMAND_GRACE_S)

    async def do() -> Answer:
        content = one(body, _kind(request))
        if content.headers:
            raise Nothing(Problem("bad_body", "a request has no `headers`"))
        _spend(caller, 1)
        reply = await service.request(caller, name, content.data, timeout)
        said = encoded(reply.data)
        found = Replied(reply.responder, str(reply.sender), said["data"], said.get("encoding", "utf-8"))
        return Answer(200, msgspec.json.encode(found))

    return await service.base.once(request, caller, body, do)


@get(
    "/rooms",
    operation_id="rooms_list",
    opt={"deprecated": {"offset": Deprecated("after")}},
    responses={
        200: success(Rooms, "The rooms that the key may list"),
        **problems(400, 401, 403, 429, 503),
    },
)
async def rooms(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, description="Number of rooms to list")] = 100,
    after: cursors.After = "",
    offset: Annotated[int, QueryParameter(ge=0, le=1 << 32, description="Number of rooms to skip")] = 0,
    search: Annotated[str, QueryParameter(max_length=255, description="Text that the names contain")] = "",
) -> Response[bytes]:
    """List the rooms that have members or recent messages, by name, as far as the key may list them."""
    if caller.key is None or not any(scope.startswith("rooms:") for scope in caller.key.scopes):
        raise Problem("not_allowed", f"{caller.name} may not list rooms")
    last = cursors.read("rooms", after, str)
    found, truncated, partial = await service.listing.rooms(search)
    mine = [room for room in found if caller.may("rooms", room["name"])]
    shown, next = cursors.page("rooms", mine[offset:], lambda room: str(room["name"]), last, limit)
    return _json(msgspec.json.encode(Rooms(list(shown), len(mine), truncated, partial, next)))


class RoomsFace(Service):
    """The rooms' part of the HTTP face."""

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def service(caller: NamedDependency[Caller]) -> Service:  # sync: awaiting here costs a task group per request
            return self

        handlers = [publish, messages, latest_of_keys, direct, members, end_member, trace, command, ask, rooms]
        provided = {"service": Provide(service, sync_to_thread=False)}
        own = Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["rooms"])
        return [own, centrifugo(self)]


def face(base: Base) -> RoomsFace:
    """As `systems.http.face.Module`."""
    return RoomsFace(base)


def _page(room: str, limit: int, since: str | None, reverse: bool, after: str) -> Asked:
    """The page that a request asks for. Raises `Problem`."""
    former = cursors.read(HISTORY, after, tuple[bool, str])
    if former is not None:
        back, at = former
        if back is (since is not None and not reverse):
            raise Problem(
                "bad_request", "invalid after (expected the `next` of a page with the same `since` and `reverse`)"
            )
        return Asked(room, limit, back, _place(at, "after"))
    if since is None:
        return Asked(room, limit)
    if ":" in since and "." in since.partition(":")[0]:
        return Asked(room, limit, reverse, _place(since, "since"))
    return Asked(room, limit, reverse, None, _time(since))


def _where(texts: Sequence[str], streams: bool) -> Where:
    """The headers that a request wants; empty: all messages. Raises `Problem`."""
    if texts and not streams:
        said = "where: pages have every message; only streams leave some out (Accept: text/event-stream)"
        raise Problem("bad_request", said)
    try:
        return parse_where(texts)
    except ValueError as error:
        raise Problem("bad_request", f"where: {error}") from None


def _place(text: str, name: str) -> Place:
    try:
        return place(text)
    except ValueError as error:
        raise Problem("bad_request", f"{name}: {error}") from None


def _time(text: str) -> int:
    try:
        time = msgspec.convert(int(text) if text.lstrip("-").isdecimal() else text, Time, strict=False)
    except (ValueError, msgspec.MsgspecError):
        raise Problem(
            "bad_request",
            f"invalid since {text!a:.80} (expected a position, milliseconds since 1970, or ISO 8601 with a zone)",
        ) from None
    try:
        found = ms(time, "since")
    except Problem as problem:
        raise Problem("bad_request", problem.detail) from None
    assert found is not None
    return found


def _kind(request: AnyRequest) -> str:
    """The Content-Type without its parameters."""
    return str(request.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _spend(caller: Caller, messages: int) -> None:
    try:
        caller.spend(messages)
    except Problem as problem:
        raise Nothing(problem) from None


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(body + b"\n", status_code=status, media_type=MediaType.JSON, headers=dict(headers or {}))
