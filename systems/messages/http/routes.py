"""The routes of delayed messages over HTTP: send, cancel, postpone, advance, read, dead letters, topics.

The base owns keys, limits and idempotency (`systems/http/`). The receivers and the admin of the system do the work.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from litestar import MediaType, Response, Router, delete, get, patch, post, put
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

import muster
from muster.clock import now_ms
from muster.instance import read_token
from muster_server.control.cluster.instance import Folder
from muster_server.control.errors import UserError
from muster_server.plane import ways
from muster_server.systems.http import cursors
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded, no_body, no_words
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base, Where
from muster_server.systems.http.idempotency import Answer, Nothing, repeatable
from muster_server.systems.http.problems import KINDS, Problem
from muster_server.systems.http.times import ms
from muster_server.systems.messages.http import bodies
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.receiving import (
    COUNTERS,
    LEASE_MORE_S,
    Following,
    Receivers,
    Receives,
    Receiving,
    given,
    newer,
)
from muster_server.systems.messages.recurring import NAME as RECURRING_NAME
from muster_server.systems.messages.recurring import Entry, NewEntry
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import (
    BATCH_MAX,
    EVER,
    LIVE,
    TAG,
    Change,
    Changed,
    DeadPage,
    Lease,
    LetterPage,
    LettersChanged,
    Listed,
    Query,
    Refused,
    Stats,
    TagChanged,
    TagPage,
    TopicState,
    Verb,
    is_id,
)
from muster_server.systems.messages.system import ADMIN, CENTER, RECEIVE
from muster_server.systems.messages.targets import TOPIC, TargetError, parse
from muster_server.systems.messages.topics import Book, Topic, TopicChange, Topics

T = TypeVar("T")
MESSAGES: Final = "/topics/{topic:str}/messages"
LOOK_S: Final = 0.5
"""Shortest time between two look-ups of the nodes, in seconds."""
TOPICS_S: Final = 0.25
"""Seconds between checks of the topics."""
LIST_S: Final = 60.0

State = Literal["scheduled", "firing", "done", "dead", "withdrawn"]
TopicPath = Annotated[str, PathParameter(description="The topic's name", pattern=rf"^{TOPIC.pattern}\Z")]
RecurringPath = Annotated[str, PathParameter(description="The name of a recurring message", pattern=RECURRING_NAME)]
IdPath = Annotated[str, PathParameter(description="The message's id")]
After = Annotated[
    str, QueryParameter(description="The `next` of the previous page", max_length=64, pattern="^([0-9]+-[0-9a-f]+)?$")
]
Limit = Annotated[int, QueryParameter(ge=1, le=1_000, description="Number of entries to list")]
TagPath = Annotated[str, PathParameter(description="The tag", pattern=TAG)]
Since = Annotated[
    int,
    QueryParameter(description="The `until` of the previous page; 0: messages that are accepted now", ge=0, le=1 << 53),
]
Until = Annotated[
    int, QueryParameter(description="The `until` of the previous page; 0: letters that are dead now", ge=0, le=1 << 53)
]


class MessagesFace:
    """The part of delayed messages in the HTTP face: its routes, and the nodes that they ask."""

    ready = True
    """It is always ready: without its nodes, requests report that."""

    def __init__(self, base: Base) -> None:
        self.base, self._where = base, base.where
        self.batch_max = min(BATCH_MAX, base.options.batch_max)
        self._found: dict[str, list[tuple[str, int]]] = {}
        self._looked = 0.0
        self._admin: Link | None = None
        self._receives: Receives | None = None
        self._own = given(base.told["messages"]) if base.told.get("messages") else None
        """The settings to receive with, and the topics; None: receivers are asked."""
        self._following: asyncio.Task[None] | None = None
        for outcome in ("accepted", "refused"):
            self.count(outcome, 0)
        for name in COUNTERS if self._own else ():
            self._count(name, 0)

    def count(self, outcome: str, count: int) -> None:
        """Count messages sent over HTTP."""
        self.base.counts.add("http_delayed", "Delayed messages sent over HTTP, by outcome", count, outcome=outcome)

    def _count(self, name: str, count: int) -> None:
        self.base.counts.add(name, COUNTERS[name], count)

    async def ask(self, question: str, asked: Any, kind: type[T], timeout_s: float = 10.0) -> T:
        """Ask the node that owns the topics and answers operators. Raises `Problem`."""
        await self._look()
        return await _asked(self._administration().ask(question, asked, kind, timeout_s=timeout_s))

    async def receive(self, work: Callable[[Receives], Awaitable[T]]) -> T:
        """Send, change, show or lease messages. Raises `Problem`."""
        await self._look()
        if self._receives is None:
            if self._own is None:
                self._receives = Receivers(partial(self._places, RECEIVE), self._token())
            else:
                self._receives = Receiving(*self._own, partial(self._places, CENTER), self._token(), self._count)
        return await _asked(work(self._receives))

    async def need(self) -> None:
        """Raise `Nothing` if no node that takes messages is known: then nothing was asked."""
        await self._look()
        role = RECEIVE if self._own is None else CENTER
        if not self._places(role):
            raise Nothing(Problem("unavailable", f"no {role} is known"))

    def redirect(self, where: Where) -> None:
        """Use these servers and this token."""
        self._where = where

    async def _look(self) -> None:
        if time.monotonic() - self._looked <= LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            processes = await self.base.nodes()
        except UserError:  # the last nodes stay
            return
        self._found = {
            role: [each.bind for each in processes if each.role == role and each.bind]
            for role in (RECEIVE, CENTER, ADMIN)
        }

    def _administration(self) -> Link:
        if self._admin is None:
            self._admin = Link(ADMIN, partial(self._places, ADMIN), self._token())
        return self._admin

    async def _follow(self, topics: Topics) -> None:
        following = Following(topics, self._newer)
        while True:
            await following.changed()
            await asyncio.sleep(TOPICS_S)

    async def _newer(self, version: int) -> Book | None:
        await self._look()
        with contextlib.suppress(Problem):  # the token cannot be read yet
            return await newer(self._administration(), version)
        return None

    def _places(self, role: str) -> list[tuple[str, int]]:
        return self._found.get(role, [])

    def _token(self) -> bytes:
        if isinstance(self._where, muster.Address):
            token = self._where.token
            return token.encode() if isinstance(token, str) else token
        try:
            return read_token(str(Folder(Path(self._where)).token))
        except muster.MusterError as error:
            raise Problem("unavailable", str(error)) from None

    def extend(self, request: AnyRequest) -> None:
        """Extend the deadline of a request that makes a list."""
        self.base.ongoing(request).extend(LIST_S)

    async def unless_gone(self, request: AnyRequest, answer: Coroutine[Any, Any, T], more_s: float) -> T:
        """An answer that may take `more_s` longer; cancelled once its asker is gone."""
        ongoing = self.base.ongoing(request)
        ongoing.extend(more_s)
        answering = asyncio.ensure_future(answer)
        if ongoing.connection is not None:
            ongoing.connection.on_lost = partial(_cancel, answering)
            if ongoing.connection.gone:
                answering.cancel()
        try:
            return await answering
        except asyncio.CancelledError:
            if ongoing.connection is not None and ongoing.connection.gone:
                raise Problem("unavailable", "the client has disconnected") from None
            raise
        finally:
            answering.cancel()
            if ongoing.connection is not None:
                ongoing.connection.on_lost = None

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def nodes(caller: NamedDependency[Caller]) -> MessagesFace:
            return self

        messages = [send, listed, show, change, dead, replay, drop, replay_page, drop_page, by_tag, change_by_tag]
        leased = [lease, leases, recurring_all, recurring_put, recurring_removed]
        handlers = [*messages, *leased, stats, topics, topic_shown, topic_changed]
        provided = {"nodes": Provide(nodes, sync_to_thread=False)}
        return [Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["messages"])]

    async def start(self) -> None:
        """Follow the topics."""
        if self._own is not None:
            self._following = asyncio.create_task(self._follow(self._own[1]))

    def access_changed(self) -> None:
        """Does nothing: no request lasts."""

    def drain(self) -> None:
        """Does nothing: no request lasts."""

    async def stop(self) -> None:
        """As `Face.stop`."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        for each in (self._receives, self._admin):
            if each is not None:
                await each.close()

    def status(self) -> dict[str, Any]:
        """Empty: it has no state of its own."""
        return {}


@post(
    MESSAGES,
    status_code=200,
    opt={
        "query": bodies.QUERY,
        "body": Body((bodies.Post, list[bodies.Post]), {"*/*": "One message, unchanged; its times are in the query"}),
    },
    responses={
        200: success(bodies.Accepted, "Durable; a batch is answered as with 207"),
        207: success(bodies.AcceptedBatch, "Some of the batch were refused"),
        **problems(400, 401, 403, 404, 409, 413, 422, 429, 503, 504),
    },
)
async def send(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Send one message or a batch of up to 1,000; the answer comes once all are durable.

    `application/json` is `{"data": …, "in_ms": 1800000, "id": "order-7"}`, or an array of these; `at` and `expires_at`
    are milliseconds since 1970 or ISO 8601. Any other body is one message, unchanged, with its `in_ms`, `at`, `id` in
    the query. Messages with the same id in a topic are one message.
    """
    caller.need("send", topic)
    body = await request.body()
    kind = str(request.headers.get("content-type", "")).partition(";")[0].strip().lower()

    async def do() -> Answer:
        is_batch = bodies.is_batch(body, kind)
        try:
            if is_batch:
                no_words(request.query_params, bodies.QUERY)
            sends = bodies.batch(body) if is_batch else [bodies.one(body, kind, request.query_params)]
            if len(sends) > nodes.batch_max:
                raise Problem("too_long", f"too many messages in a batch (limit {nodes.batch_max})")
            for each in sends:
                need_ways(caller, each.target, each.for_topic)
            caller.spend(len(sends))
        except Problem as problem:
            raise Nothing(problem) from None
        await nodes.need()
        answers = await nodes.receive(lambda receives: receives.send(topic, sends))
        refused = sum(isinstance(each, Refused) for each in answers)
        nodes.count("accepted", len(answers) - refused)
        nodes.count("refused", refused)
        if is_batch:
            return Answer(207 if refused else 200, msgspec.json.encode(bodies.accepted_batch(answers)))
        (answer,) = answers
        if isinstance(answer, Refused):
            raise Nothing(Problem(answer.code, answer.detail))
        return Answer(200, msgspec.json.encode(bodies.accepted(answer)))

    return await nodes.base.once(request, caller, body, do)


def need_ways(caller: Caller, target: str, for_topic: str = "") -> None:
    """Raise `Problem` unless the caller may use a target that a message names in place of its topic's: this needs the
    scope of sending there directly."""
    if for_topic:
        caller.need("send", for_topic)
    if not target:
        return
    try:
        found = parse(target)
    except TargetError as error:
        raise Problem("bad_request", str(error)) from None
    if found.kind == "room":
        caller.need("publish", found.name)
    elif found.kind == "user":
        caller.need("unicast", found.name)
    elif found.kind == "topics":
        for each in found.name.split(","):
            caller.need("send", each)
    elif into := ways.targets().get(found.kind):
        caller.need(into.action, found.name)
    else:
        caller.need("target", target)


def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()


async def _asked(answer: Awaitable[T]) -> T:
    """Raises `Problem`."""
    try:
        return await answer
    except Refusal as refusal:
        code = refusal.code if refusal.code in KINDS else "unavailable"
        raise Problem(code, refusal.detail) from None
    except Unreachable as error:
        raise Problem("unavailable", str(error)) from None


@get(
    f"{MESSAGES}/{{id:str}}",
    responses={
        200: success(bodies.Message, "The message"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def show(
    topic: TopicPath, id: IdPath, caller: NamedDependency[Caller], nodes: NamedDependency[MessagesFace]
) -> Response[bytes]:
    """The present state of a message; 404 if it is unknown, or was forgotten after its end."""
    caller.need("show", topic)
    checked = _id(id)
    (found,) = await nodes.receive(lambda receives: receives.show(topic, [checked]))
    if found is None:
        raise Problem("not_found", f"topic {topic} has no message {id}")
    return _json(bodies.message(found))


@get(
    MESSAGES,
    operation_id="messages_list",
    responses={
        200: success(bodies.Messages, "Messages, the earliest first"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def listed(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    states: Annotated[
        list[State] | None, QueryParameter(description="Repeat it for more; default scheduled and firing")
    ] = None,
    due_ms: Annotated[
        int | None, QueryParameter(ge=0, le=1 << 48, description="Only messages due, or retried, within this time")
    ] = None,
    tag: Annotated[
        str,
        QueryParameter(
            pattern=rf"^$|{TAG}",
            description="Only messages with this tag; a page looks at up to 5,000 messages for it, and may have none",
        ),
    ] = "",
    limit: Limit = 100,
    after: After = "",
) -> Response[bytes]:
    """Messages of a topic by the time of their next attempt, or their due time. With a tag, `matching` counts this page
    alone."""
    caller.need("show", topic)
    nodes.extend(request)
    end = EVER if due_ms is None else now_ms() + due_ms
    query = Query(topic, 0, end, list(states or LIVE), limit, after, tag)
    found = await nodes.ask("list", query, Listed, LIST_S)
    messages = [bodies.message(each) for each in found.messages]
    return _json(bodies.Messages(messages=messages, matching=found.matching, more=found.more, next=found.next or None))


@post(
    f"{MESSAGES}/{{id:str}}/{{verb:str}}",
    status_code=200,
    opt={"body": Body((bodies.Move,))},
    responses={
        200: success(bodies.Moved, "The outcome of the change"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def change(
    request: AnyRequest,
    topic: TopicPath,
    id: IdPath,
    verb: Annotated[Verb, PathParameter(description="cancel, postpone or advance")],
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Cancel a message, or move it: `{"by_ms": 600000}` or `{"to": "2027-01-01T00:00:00Z"}`.

    `outcome` is `done`, `already fired`, `cancelled`, `expired`, or `unknown`: then the change is applied if the
    message comes.
    """
    caller.need("change", topic)
    body = await request.body()

    async def do() -> Answer:
        with repeatable():
            if verb == "cancel":
                no_body(body)
            move = bodies.Move() if verb == "cancel" else bodies.move(body)
            asked = Change(id=_id(id), verb=verb, by_ms=move.by_ms, at=ms(move.to, "to"))
        await nodes.need()
        (answer,) = await nodes.receive(lambda receives: receives.change(topic, [asked]))
        if isinstance(answer, Refused):
            raise Nothing(Problem(answer.code, answer.detail))
        return Answer(200, msgspec.json.encode(bodies.moved(answer)))

    return await nodes.base.once(request, caller, body, do)


@post(
    "/topics/{topic:str}/lease",
    status_code=200,
    opt={"body": Body((bodies.LeaseAsked,))},
    responses={
        200: success(bodies.LeasedMessages, "Messages, perhaps none"),
        **problems(400, 401, 403, 404, 409, 413, 422, 429, 503, 504),
    },
)
async def lease(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Lease due messages of a topic whose target is `pull:`: `{"most": 32, "wait_s": 20, "lease_s": 60}`.

    A message is leased to one program at a time. Say `done` before `until`, or it is due again: see the other route. The
    answer comes as soon as one message is due, else after `wait_s` without any.
    """
    caller.need("work", topic)
    body = await request.body()
    asked = decoded(body or b"{}", bodies.LeaseAsked)
    waits = Lease(topic, asked.most, asked.wait_s, asked.lease_s)

    async def do() -> Answer:
        with repeatable():
            found = await nodes.unless_gone(
                request, nodes.receive(lambda receives: receives.lease(waits)), asked.wait_s + LEASE_MORE_S
            )
        return Answer(200, msgspec.json.encode(bodies.LeasedMessages(messages=[bodies.leased(each) for each in found])))

    return await nodes.base.once(request, caller, body, do)


@post(
    "/topics/{topic:str}/leases",
    status_code=200,
    opt={"body": Body((bodies.LeaseEnds,))},
    responses={
        200: success(bodies.LeaseOutcomes, "What came of each"),
        **problems(400, 401, 403, 404, 409, 413, 422, 429, 503, 504),
    },
)
async def leases(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Say what came of leases: `{"done": [LEASE], "again": [{"lease", "in_s", "why"}], "dead": [{"lease", "why"}],
    "back": [LEASE], "extend": [{"lease", "by_s"}]}`.

    Each is answered by `done`, or by `lost` where the lease had run out and another program has the message.
    """
    caller.need("work", topic)
    body = await request.body()
    asked = decoded(body, bodies.LeaseEnds)
    ends = bodies.lease_ends(asked)

    async def do() -> Answer:
        with repeatable():
            said = await nodes.receive(lambda receives: receives.end_leases(topic, ends)) if ends else []
        return Answer(200, msgspec.json.encode(bodies.lease_outcomes(asked, said)))

    return await nodes.base.once(request, caller, body, do)


@get(
    "/topics/{topic:str}/recurring",
    responses={
        200: success(bodies.RecurringMessages, "A page, by name"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def recurring_all(
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    limit: Limit = 1_000,
    after: cursors.After = "",
) -> Response[bytes]:
    """The recurring messages of a topic."""
    caller.need("show", topic)
    last = cursors.read("recurring", after, str)
    entries = sorted(await nodes.ask("recurring", topic, list[Entry]), key=lambda entry: entry.asked.name)
    shown, next = cursors.page("recurring", entries, lambda entry: entry.asked.name, last, limit)
    return _json(bodies.RecurringMessages(recurring=[bodies.recurring(each) for each in shown], next=next))


@put(
    "/topics/{topic:str}/recurring/{name:str}",
    status_code=200,
    opt={"body": Body((bodies.RecurringAsked,))},
    responses={
        200: success(bodies.RecurringMessage, "As it is now"),
        **problems(400, 401, 403, 404, 413, 429, 503),
    },
)
async def recurring_put(
    request: AnyRequest,
    topic: TopicPath,
    name: RecurringPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
) -> Response[bytes]:
    """Have a message sent again and again: `{"cron": "0 3 * * *", "zone": "Asia/Shanghai", "data": {}, "missed": "once"}`.

    Each occurrence is one message, whose id has its time. Asked for again, nothing changes. The key needs `send` and
    `change` for the topic.
    """
    caller.need("change", topic)
    caller.need("send", topic)
    asked = decoded(await request.body(), bodies.RecurringAsked)
    new = NewEntry(
        topic=topic, name=name, cron=asked.cron, zone=asked.zone, missed=asked.missed, body=bytes(asked.data)
    )
    return _json(bodies.recurring(await nodes.ask("recurring-put", new, Entry)))


@delete(
    "/topics/{topic:str}/recurring/{name:str}",
    status_code=200,
    responses={
        200: success(bodies.RecurringMessage, "As it was"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def recurring_removed(
    topic: TopicPath, name: RecurringPath, caller: NamedDependency[Caller], nodes: NamedDependency[MessagesFace]
) -> Response[bytes]:
    """Remove a recurring message, and cancel the one that waits."""
    caller.need("change", topic)
    return _json(bodies.recurring(await nodes.ask("recurring-remove", (topic, name), Entry)))


@get(
    "/topics/{topic:str}/dead",
    responses={
        200: success(bodies.DeadLetters, "A page of dead letters"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def dead(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    limit: Limit = 100,
    after: After = "",
) -> Response[bytes]:
    """Messages whose attempts all failed, with the last answers of their targets."""
    caller.need("show", topic)
    nodes.extend(request)
    page = await nodes.ask("dead-page", Query(topic, 0, EVER, ["dead"], limit, after), DeadPage, LIST_S)
    letters = [
        bodies.DeadLetter(
            message=bodies.message(each.message),
            died_at=each.at,
            last=each.outcome,
            status=each.status,
            answer=each.answer.decode(errors="replace"),
        )
        for each in page.letters
    ]
    return _json(bodies.DeadLetters(letters=letters, next=page.next or None))


@post(
    "/topics/{topic:str}/dead/{id:str}/replay",
    status_code=200,
    responses={
        200: success(bodies.Moved, "The outcome of the change"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def replay(
    request: AnyRequest,
    topic: TopicPath,
    id: IdPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Schedule a dead letter again, due now, with all its attempts."""
    return await _letter(request, topic, id, caller, nodes, "replay")


@post(
    "/topics/{topic:str}/dead/{id:str}/drop",
    status_code=200,
    responses={
        200: success(bodies.Moved, "The outcome of the change"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def drop(
    request: AnyRequest,
    topic: TopicPath,
    id: IdPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Give a dead letter up: it is cancelled and cannot be replayed."""
    return await _letter(request, topic, id, caller, nodes, "drop")


@post(
    "/topics/{topic:str}/dead/replay",
    status_code=200,
    responses={
        200: success(bodies.MovedLetters, "At most 1,000 letters are due again"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def replay_page(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    until: Until = 0,
    after: After = "",
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Schedule the dead letters of a topic again, a page for each request. A letter that dies again meanwhile is left."""
    return await _letters(request, topic, caller, nodes, "replay-page", LetterPage(topic, until, after))


@post(
    "/topics/{topic:str}/dead/drop",
    status_code=200,
    responses={
        200: success(bodies.MovedLetters, "At most 1,000 letters are dropped"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def drop_page(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    until: Until = 0,
    after: After = "",
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Give the dead letters of a topic up, a page for each request. A letter that dies meanwhile is left."""
    return await _letters(request, topic, caller, nodes, "drop-page", LetterPage(topic, until, after))


@get(
    "/topics/{topic:str}/tags/{tag:str}",
    operation_id="messages_count_by_tag",
    responses={
        200: success(bodies.ByTag, "The count of one page"),
        **problems(400, 401, 403, 404, 429, 503, 504),
    },
)
async def by_tag(
    request: AnyRequest,
    topic: TopicPath,
    tag: TagPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    until: Since = 0,
    after: After = "",
) -> Response[bytes]:
    """Count the waiting messages of a topic that have a tag: add the `matching` of all pages. A page looks at up to 1,000
    messages."""
    caller.need("show", topic)
    nodes.extend(request)
    found = await nodes.ask("tag-page", TagPage(topic, tag, "count", 0, until, after), TagChanged, LIST_S)
    return _json(bodies.by_tag(found))


@post(
    "/topics/{topic:str}/tags/{tag:str}/{verb:str}",
    operation_id="messages_change_by_tag",
    status_code=200,
    opt={"body": Body((bodies.TagMove,))},
    responses={
        200: success(bodies.ByTag, "The counts of one page"),
        **problems(400, 401, 403, 404, 409, 413, 422, 429, 503, 504),
    },
)
async def change_by_tag(
    request: AnyRequest,
    topic: TopicPath,
    tag: TagPath,
    verb: Annotated[Literal["cancel", "move"], PathParameter(description="cancel or move")],
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    until: Since = 0,
    after: After = "",
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Cancel the waiting messages that have a tag, or move them to a time: `{"to": "2027-01-01T00:00:00Z"}`. A page of up
    to 1,000 messages for each request: go on with `until` and `next` until `next` is null, with the same body. A page that
    is asked for again changes nothing more."""
    caller.need("change", topic)
    body = await request.body()
    nodes.extend(request)

    async def do() -> Answer:
        with repeatable():
            if verb == "cancel":
                no_body(body)
            at = 0 if verb == "cancel" else ms(decoded(body, bodies.TagMove).to, "to")
            page = TagPage(topic, tag, verb, at or 0, until, after)
            found = await nodes.ask("tag-page", page, TagChanged, LIST_S)
        request.scope["state"]["note"] = f"{found.done} messages of {tag}"
        return Answer(200, msgspec.json.encode(bodies.by_tag(found)))

    return await nodes.base.once(request, caller, body, do)


async def _letter(
    request: AnyRequest, topic: str, id: str, caller: Caller, nodes: MessagesFace, question: str
) -> Response[bytes]:
    caller.need("change", topic)
    body = await request.body()
    letter = _id(id)

    async def do() -> Answer:
        with repeatable():
            (answer,) = await nodes.ask(question, (topic, [letter]), list[Changed])
        return Answer(200, msgspec.json.encode(bodies.moved(answer)))

    return await nodes.base.once(request, caller, body, do)


async def _letters(
    request: AnyRequest, topic: str, caller: Caller, nodes: MessagesFace, question: str, page: LetterPage
) -> Response[bytes]:
    caller.need("change", topic)
    body = await request.body()
    nodes.extend(request)

    async def do() -> Answer:
        with repeatable():
            found = await nodes.ask(question, page, LettersChanged, LIST_S)
        changed = sum(each.outcome == "done" for each in found.changed)
        request.scope["state"]["note"] = f"{changed} dead letters"
        moved = bodies.MovedLetters(changed=changed, until=found.until, next=found.next or None)
        return Answer(200, msgspec.json.encode(moved))

    return await nodes.base.once(request, caller, body, do)


@get(
    "/topics/{topic:str}/stats",
    responses={
        200: success(Stats, "Figures by minute, and the backlog"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def stats(
    request: AnyRequest, topic: TopicPath, caller: NamedDependency[Caller], nodes: NamedDependency[MessagesFace]
) -> Response[bytes]:
    """The figures of each of the last minutes, and the backlog by due time."""
    caller.need("show", topic)
    nodes.extend(request)
    return _json(await nodes.ask("stats", topic, Stats, LIST_S))


@get(
    "/topics",
    responses={
        200: success(bodies.TopicPage, "A page of topics, by name"),
        **problems(400, 401, 403, 429, 503),
    },
)
async def topics(
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    limit: Limit = 1_000,
    after: cursors.After = "",
    search: Annotated[str, QueryParameter(max_length=255, description="Text that the name or target contains")] = "",
) -> Response[bytes]:
    """The topics that the key may show, without their secrets."""
    last = cursors.read("topics", after, str)
    found = await nodes.ask("topics", None, list[Topic])
    named = (each for each in found if search in each.name or search in each.callback)
    mine = sorted((each for each in named if caller.may("show", each.name)), key=lambda each: each.name)
    shown, next = cursors.page("topics", mine, lambda each: each.name, last, limit)
    return _json(bodies.TopicPage(topics=[bodies.topic(each) for each in shown], next=next))


@get(
    "/topics/{topic:str}",
    responses={
        200: success(bodies.TopicWhole, "The topic"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def topic_shown(
    request: AnyRequest, topic: TopicPath, caller: NamedDependency[Caller], nodes: NamedDependency[MessagesFace]
) -> Response[bytes]:
    """A topic's settings without its secrets, its backlog, and the targets that get nothing now."""
    caller.need("show", topic)
    nodes.extend(request)
    return _json(bodies.topic_whole(await nodes.ask("topic-show", topic, TopicState, LIST_S)))


@patch(
    "/topics/{topic:str}",
    opt={"body": Body((TopicChange,))},
    responses={
        200: success(bodies.TopicChanged, "The topic after the change"),
        **problems(400, 401, 403, 404, 409, 422, 429, 503, 504),
    },
)
async def topic_changed(
    request: AnyRequest,
    topic: TopicPath,
    caller: NamedDependency[Caller],
    nodes: NamedDependency[MessagesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Change settings of a topic: those in the body, for example `{"callback": "https://…", "retries_ms": [1000]}`.

    `{"secret": ""}` makes a new secret and returns it; the former one signs too for `overlap_s`, by default a day. A
    new callback needs the scope of its target.
    """
    caller.need("manage", topic)
    body = await request.body()
    asked = decoded(body, TopicChange)
    if asked.callback is not None:
        need_ways(caller, asked.callback)
    if asked.allowed is not None:
        for network in asked.allowed:
            caller.need("target", network)

    async def do() -> Answer:
        with repeatable():
            found = await nodes.ask("topic-change", (topic, asked), Topic)
        return Answer(200, msgspec.json.encode(bodies.changed(found, asked)))

    return await nodes.base.once(request, caller, body, do)


def face(base: Base) -> MessagesFace:
    """As `systems.http.face.Module`."""
    return MessagesFace(base)


def _id(id: str) -> str:
    if not is_id(id):
        raise Problem("bad_request", f"invalid id of a message {id!r:.80}")
    return id


def _json(document: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(document) + b"\n", media_type=MediaType.JSON)
