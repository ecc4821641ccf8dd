"""The rooms' routes over HTTP: publish, history, event streams, members, commands, rooms.

The keys, limits and idempotency are the base's (`systems/http/`); `service.py` does the work of the routes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

import muster
from muster.client import COMMAND_GRACE_S, COMMAND_S_MAX
from muster_server.systems.http.access import Action, Caller
from muster_server.systems.http.bodies import Body
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, Nothing
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import EventStream
from muster_server.systems.rooms.http.answers import Batch, Counted, Last, Outcome, Positioned, Rooms, batch_answer
from muster_server.systems.rooms.http.bodies import NDJSON, JsonMessage, batch, is_batch, one, room_name
from muster_server.systems.rooms.http.feeds import parse_id
from muster_server.systems.rooms.http.service import Service
from muster_server.systems.rooms.http.streams import RoomStream

ACTIONS: Final = (
    Action("publish", "publish messages to these rooms", "publish"),
    Action("read", "read these rooms as event streams", "read"),
    Action("history", "read the last messages of these rooms", "read"),
    Action("members", "count and name the members of these rooms", "publish"),
    Action("command", "send commands to all members of these rooms", "publish"),
    Action("rooms", "list these rooms", None),
)
MESSAGES: Final = "/rooms/{room:str}/messages"
ONE: Final = "One message as it is"
BATCH: Final = "A message a line, each as in application/json"


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

    Any body is one message as it is; `application/json` is `{"data": ...}`, or an array of these or of strings;
    `application/x-ndjson` has one of these a line. The answer comes once the room's owner has numbered the messages.
    """
    name = room_name(room)
    caller.need("publish", name)
    body = await request.body()

    async def do() -> Answer:
        kind = _kind(request)
        if is_batch(body, kind):
            data = batch(body, kind)
            if len(data) > service.options.batch_max:
                raise Nothing(Problem("too_long", f"a batch has at most {service.options.batch_max} messages"))
            _spend(caller, len(data))
            return batch_answer(await service.publish(caller, name, data) if data else [])
        data = [one(body, kind)]
        _spend(caller, 1)
        said = (await service.publish(caller, name, data))[0]
        if isinstance(said, Problem):
            raise said if said.code == "timeout" else Nothing(said)
        return Answer(200, msgspec.json.encode(Positioned(str(said))))

    return await _once(service, request, caller, body, do)


@get(
    MESSAGES,
    responses={
        200: ResponseSpec(
            Last,
            generate_examples=False,
            description="The last messages; with `Accept: text/event-stream` all from now on",
        ),
        **problems(400, 401, 403, 429, 503, 504),
    },
)
async def messages(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    history: Annotated[
        int | None, QueryParameter(ge=0, le=65_536, description="So many of the last messages: 100, of a stream none")
    ] = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="Go on after this event of a stream")
    ] = None,
) -> Response[Any]:
    """The last messages as JSON; with `Accept: text/event-stream` messages as they come.

    Events: a message without a name, `gap` for what is known to be missing, `command`, and `goodbye` before the end.
    Their ids are positions; `Last-Event-ID` goes on from one.
    """
    name = room_name(room)
    streams = "text/event-stream" in request.headers.get("accept", "")
    caller.need("read" if streams else "history", name)
    if history is not None and history > service.options.history_max:
        raise Problem("too_much_history", f"at most {service.options.history_max} messages are kept")
    known = None
    if streams and last_event_id:
        try:
            known = parse_id(last_event_id)
        except ValueError:
            raise Problem("bad_request", "Last-Event-ID: is not the id of an event of a room") from None
    feed = await service.feed(caller, name)
    ring = feed.ring
    if not feed.history and (history or not streams):
        raise Problem("not_allowed", f"{caller.name} may not see the history of {name}"[:400])
    if streams:
        if known is None:
            gaps, cursor = b"", ring.newest(history or 0)
        else:
            gaps, cursor = ring.after(known)
        at, options = ring.known_at(cursor), service.options
        return EventStream(RoomStream(service, feed, caller, gaps, cursor, at, options.heartbeat_s, options.stall_s))
    wanted = 100 if history is None else history
    found = ring.messages(ring.newest(wanted))[-wanted:] if wanted else []
    whole = len(found) >= wanted or ring.whole
    return _json(msgspec.json.encode({"room": name, "messages": found, "whole": whole}))


@get(
    "/rooms/{room:str}/members",
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
    ids: Annotated[bool, QueryParameter(description="Also the users, at most 100")] = False,
    start: Annotated[str, QueryParameter(pattern=r"^[0-9]{1,20}\Z", description="The first user to name")] = "0",
    wait: Annotated[float, QueryParameter(gt=0, le=60, description="Seconds that gateways have to answer")] = 1.0,
) -> Response[bytes]:
    """Count a room's members over all gateways. A user with two clients counts twice."""
    name = room_name(room)
    caller.need("members", name)
    service.base.ongoing(request).extend(wait + COMMAND_GRACE_S)
    try:
        said: muster.Members = await service.ask(
            caller, lambda client: client.members(name, ids=ids, start=int(start), wait=wait)
        )
    except Nothing as nothing:
        raise nothing.problem from None
    users = [str(user) for user in said.ids]
    return _json(msgspec.json.encode(Counted(said.count, users, said.truncated, said.partial)))


@post(
    "/rooms/{room:str}/commands",
    status_code=200,
    opt={"body": Body((JsonMessage, str), {"*/*": ONE})},
    responses={
        200: success(Outcome, "What came of it"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def command(
    request: AnyRequest,
    room: Room,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    expires: Annotated[float, QueryParameter(gt=0, le=COMMAND_S_MAX, description="Seconds to try for")] = 5.0,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Have every member of a room told, each once, and learn what came of it. The body is as that of one message."""
    name = room_name(room)
    caller.need("command", name)
    body = await request.body()
    service.base.ongoing(request).extend(expires + COMMAND_GRACE_S)

    async def do() -> Answer:
        data = one(body, _kind(request))
        _spend(caller, 1)
        said = await service.ask(caller, lambda client: client.command(name, data, expires=expires))
        if isinstance(said, muster.NoMember):
            outcome = Outcome("nobody", 0)
        else:
            outcome = Outcome("delivered" if isinstance(said, muster.Delivered) else "expired", said.members)
        return Answer(200, msgspec.json.encode(outcome))

    return await _once(service, request, caller, body, do)


@get(
    "/rooms",
    responses={
        200: success(Rooms, "The rooms that the key may list"),
        **problems(400, 401, 403, 429, 503),
    },
)
async def rooms(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    service: NamedDependency[Service],
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, description="Rooms to tell")] = 100,
    offset: Annotated[int, QueryParameter(ge=0, le=1 << 32, description="Rooms to pass over")] = 0,
) -> Response[bytes]:
    """Rooms that have members, or recent messages, by name, of those that the key may list."""
    if caller.key is None or not any(scope.startswith("rooms:") for scope in caller.key.scopes):
        raise Problem("not_allowed", f"{caller.name} may not list rooms")
    found, truncated, partial = await service.listing.rooms()
    mine = [room for room in found if caller.may("rooms", room["name"])]
    return _json(msgspec.json.encode(Rooms(mine[offset : offset + limit], truncated, partial)))


class RoomsFace(Service):
    """The rooms' part of the HTTP face."""

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def service(caller: NamedDependency[Caller]) -> Service:  # after it: at once costs a group of tasks a request
            return self

        handlers = [publish, messages, members, command, rooms]
        provided = {"service": Provide(service, sync_to_thread=False)}
        return [Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["rooms"])]


def face(base: Base) -> RoomsFace:
    """As `systems.http.face.Module`."""
    return RoomsFace(base)


def _kind(request: AnyRequest) -> str:
    """The Content-Type without its parameters."""
    return str(request.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _spend(caller: Caller, messages: int) -> None:
    try:
        caller.spend(messages)
    except Problem as problem:
        raise Nothing(problem) from None


async def _once(
    service: Service, request: AnyRequest, caller: Caller, body: bytes, do: Callable[[], Awaitable[Answer]]
) -> Response[bytes]:
    try:
        answer = await service.base.once(request, caller.name, body, do)
    except Nothing as nothing:
        raise nothing.problem from None
    return _json(answer.body, answer.status, {"idempotency-replayed": "true"} if answer.replayed else {})


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(body + b"\n", status_code=status, media_type=MediaType.JSON, headers=dict(headers or {}))
