"""The shapes of the routes of delayed messages: bodies of requests, and their answers in JSON.

Owns these shapes, and which part of a body is the message. Knows no route and no node.
"""

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from muster_server.systems.http.bodies import decoded, no_words
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.times import Time, ms
from muster_server.systems.messages.recurring import CRON_CHARS_MAX, Entry, Missed
from muster_server.systems.messages.shapes import (
    ID,
    LEASE_CHARS_MAX,
    LEASE_S_MAX,
    LEASE_WAIT_S_MAX,
    LEASED_MAX,
    WINDOW_MS_MAX,
    Changed,
    Key,
    Leased,
    LeaseEnd,
    LeaseSaid,
    Ms,
    Outcome,
    Refused,
    Send,
    Sent,
    Shown,
    TagChanged,
    Tags,
    TopicState,
)
from muster_server.systems.messages.topics import Topic, TopicChange

JSON: Final = "application/json"
QUERY: Final = frozenset({"id", "in_ms", "at", "window_ms", "expires_at", "target", "type", "key", "tags"})
"""Query parameters for a body that is not JSON."""
NOTHING: Final = msgspec.Raw(b"")
AnId = Annotated[str, Meta(pattern=ID)]
Lease = Annotated[str, Meta(max_length=LEASE_CHARS_MAX)]
"""The name of a lease."""


class Post(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message in JSON. `data`: any JSON, which is the body unchanged; or `base64`, with its `type`."""

    data: msgspec.Raw = msgspec.field(default_factory=lambda: NOTHING)  # the API description hashes defaults
    base64: bytes | None = None
    type: Annotated[str, Meta(max_length=255)] = "application/octet-stream"
    id: AnId | None = None
    in_ms: Ms | None = None
    at: Time | None = None
    window_ms: Annotated[int, Meta(ge=0, le=WINDOW_MS_MAX)] = 0
    expires_at: Time | None = None
    target: str = ""
    for_topic: str = ""
    """For a check-back: the topic to which its message is sent later. It must exist, and the key may send to it."""
    key: Key = ""
    """Messages of one key go in order, or a few at once, as the topic says."""
    tags: Tags = ()
    """By which it is listed, counted, cancelled and moved with others."""


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The move of a due time: by a duration, or to a time."""

    by_ms: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    to: Time | None = None


class TagMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The due time to which messages are moved."""

    to: Time


class ByTag(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a job by tag. `looked`: waiting messages of the topic that it looked at; `matching`: those with the tag that
    were accepted before the job began; `done`: those that it cancelled or moved; `late`: those that fired, ended or were
    changed otherwise before. `until` and `next`: the `until` and `after` of the next page; `next` is null at the end."""

    looked: int
    matching: int
    done: int
    late: int
    until: int
    next: str | None


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one message: it is durable, or it was refused for this reason."""

    id: str | None = None
    due_at: int | None = None
    state: str | None = None
    duplicate: bool = False
    """The message was durable before, and nothing changed."""
    problem: dict[str, Any] | None = None


class AcceptedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a batch, in the same order."""

    messages: list[Accepted]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The present state of a message. `data` if the body is JSON, else `base64`. Times are milliseconds since 1970."""

    id: str
    topic: str
    state: str
    due_at: int
    attempts: int
    accepted_at: int
    type: str
    data: Any = None
    base64: bytes | None = None
    next_at: int | None = None
    expires_at: int | None = None
    target: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    result: Any = None
    """What the program that did it said."""


class RecurringAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recurring message: `cron` as Debian's cron has it, in a `zone`. `data`: any JSON, which is the body of each. After a
    stop, `missed` has the latest occurrence made up for, or all, or none."""

    cron: Annotated[str, Meta(max_length=CRON_CHARS_MAX)]
    zone: Annotated[str, Meta(max_length=64)] = "UTC"
    missed: Missed = "once"
    data: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class RecurringMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring message. `last`: the latest occurrence whose message was made; mostly it is the next one, and waits."""

    topic: str
    name: str
    cron: str
    zone: str
    missed: str
    data: Any
    last: int


class RecurringMessages(msgspec.Struct, frozen=True, kw_only=True):
    """A page of recurring messages, by name."""

    recurring: list[RecurringMessage]
    next: str | None
    """The `after` of the next page."""


class LeaseAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program waits for messages: up to `most`, for `wait_s` where none is due, each under a lease of `lease_s`."""

    most: Annotated[int, Meta(ge=1, le=LEASED_MAX)] = 1
    wait_s: Annotated[float, Meta(ge=0, le=LEASE_WAIT_S_MAX)] = 20.0
    lease_s: Annotated[float, Meta(ge=1, le=LEASE_S_MAX)] = 60.0


class LeasedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message under a lease until `until`. `data` where the body is JSON, else `base64`."""

    id: str
    lease: str
    attempt: int
    until: int
    due_at: int
    accepted_at: int
    type: str
    data: Any = None
    base64: bytes | None = None


class LeasedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were due."""

    messages: list[LeasedMessage]


class Done(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message that was done. `result`: any JSON of up to 4 KiB, kept with the message."""

    lease: Lease
    result: msgspec.Raw = msgspec.field(default_factory=lambda: NOTHING)


class Again(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message that failed: due again in `in_s`, or by the topic's retries; after its last attempt it is a dead letter."""

    lease: Lease
    in_s: Annotated[float, Meta(ge=0, le=86_400 * 366)] | None = None
    why: str = ""


class Hopeless(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message that no attempt can help: a dead letter at once."""

    lease: Lease
    why: str = ""


class Longer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lease that lasts so long from now on."""

    lease: Lease
    by_s: Annotated[float, Meta(ge=1, le=LEASE_S_MAX)]


class LeaseEnds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program says of its leases. `back`: not begun, due again at once, and no attempt."""

    done: list[Lease | Done] = []
    again: list[Again] = []
    dead: list[Hopeless] = []
    back: list[Lease] = []
    extend: list[Longer] = []


class LeaseOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`done`; `lost`: the lease had run out and another program has the message, or it has its end; `busy`: say it again. Of
    an extension, the name of the lease from now on, and its end."""

    outcome: str
    lease: str | None = None
    until: int | None = None


class LeaseOutcomes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In the order of the request."""

    done: list[LeaseOutcome] = []
    again: list[LeaseOutcome] = []
    dead: list[LeaseOutcome] = []
    back: list[LeaseOutcome] = []
    extend: list[LeaseOutcome] = []


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a change; state and due time if the message is known."""

    id: str
    outcome: Outcome
    state: str | None = None
    due_at: int | None = None


class MovedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The number of dead letters that one request replayed or dropped. `next`: the `after` of the next request, with this
    `until`; null: no letter is left."""

    changed: int
    until: int
    next: str | None = None


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages, the earliest first; the number of matches, and whether there are more than were counted."""

    messages: list[Message]
    matching: int
    more: bool
    next: str | None
    """The `after` of the next page."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message whose attempts all failed, and the last answer of its target."""

    message: Message
    died_at: int
    last: str
    status: int | None
    answer: str


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """A page of dead letters."""

    letters: list[DeadLetter]
    next: str | None
    """The `after` of the next page."""


class HeldTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target that gets nothing until then: `unreachable`, `failing`, or `paused` by its `Retry-After`."""

    url: str
    why: str
    until: int


class TopicWhole(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a topic, without its secrets. `overdue`: messages due for a second whose first attempt has
    no answer or the
    retry has not begun."""

    name: str
    callback: str
    secrets: int
    workers: int
    policy: str
    retries_ms: tuple[int, ...]
    jitter: int
    timeout_s: float
    retry_after_max_s: float
    rate: float
    concurrency: int
    per_key: int
    rate_per_key: float
    dead_stops_key: bool
    paused: bool
    allowed: tuple[str, ...]
    pending: int
    dead: int
    overdue: int
    overdue_ms: int
    held: list[HeldTarget]


class TopicChanged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic after a change. `secret`: the new one, if the change made or gave one."""

    name: str
    callback: str
    secrets: int
    secret: str | None = None
    retire_at: int | None = None
    """Time at which a former secret stops signing."""
    workers: int
    policy: str
    retries_ms: tuple[int, ...]
    jitter: int
    timeout_s: float
    retry_after_max_s: float
    rate: float
    concurrency: int
    per_key: int
    rate_per_key: float
    dead_stops_key: bool
    allowed: tuple[str, ...]
    paused: bool = False


class TopicShown(msgspec.Struct, frozen=True, kw_only=True):
    """A topic without its secrets."""

    name: str
    callback: str
    workers: int
    policy: str
    retries_ms: tuple[int, ...]
    timeout_s: float
    paused: bool


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of topics, by name."""

    topics: list[TopicShown]
    next: str | None
    """The `after` of the next page."""


_POST: Final = msgspec.json.Decoder(Post)
_POSTS: Final = msgspec.json.Decoder(list[Post])
_MOVE: Final = msgspec.json.Decoder(Move)


def one(body: bytes, kind: str, query: Any) -> Send:
    """Parse one message: in JSON, or any other body unchanged, with its times in the query. Raises `Problem`."""
    if kind == JSON:
        no_words(query, QUERY)
        return _send(decoded(body, _POST))
    told: dict[str, Any] = {name: value for name, value in query.items() if name in QUERY}
    if "tags" in told:
        told["tags"] = told["tags"].split(",")
    try:
        post = msgspec.convert(told | {"base64": b""}, Post, strict=False)
    except msgspec.MsgspecError as error:
        raise Problem("bad_body", str(error)) from None
    return msgspec.structs.replace(_send(post), body=body, kind=kind or post.type)


def batch(body: bytes) -> list[Send]:
    """Parse an array of messages in JSON. Raises `Problem`."""
    return [_send(post) for post in decoded(body, _POSTS)]


def is_batch(body: bytes, kind: str) -> bool:
    """Whether the body is an array."""
    return kind == JSON and body.lstrip()[:1] == b"["


def move(body: bytes) -> Move:
    """Parse the move of a due time. Raises `Problem`."""
    return decoded(body or b"{}", _MOVE)


def _send(post: Post) -> Send:
    data = bytes(post.data)
    if bool(data) == (post.base64 is not None):
        raise Problem("bad_body", "data and base64 exclude each other: give one of them")
    return Send(
        body=data if post.base64 is None else post.base64,
        id=post.id,
        in_ms=post.in_ms,
        at=ms(post.at, "at"),
        window_ms=post.window_ms,
        expires_at=ms(post.expires_at, "expires_at"),
        target=post.target,
        kind=JSON if post.base64 is None else post.type,
        for_topic=post.for_topic,
        key=post.key,
        tags=post.tags,
    )


def accepted(answer: Sent | Refused) -> Accepted:
    """One answer of a batch."""
    if isinstance(answer, Refused):
        return Accepted(problem=Problem(answer.code, answer.detail).short())
    return Accepted(id=answer.id, due_at=answer.due_at, state=answer.state, duplicate=answer.duplicate)


def accepted_batch(answers: Sequence[Sent | Refused]) -> AcceptedBatch:
    """All answers of a batch in JSON form."""
    return AcceptedBatch(messages=[accepted(each) for each in answers])


def moved(changed: Changed) -> Moved:
    """The outcome of a change in JSON form."""
    return Moved(id=changed.id, outcome=changed.outcome, state=changed.state, due_at=changed.due_at)


def by_tag(changed: TagChanged) -> ByTag:
    """A page of a job by tag in JSON form."""
    return ByTag(
        looked=changed.looked,
        matching=changed.matching,
        done=changed.done,
        late=changed.late,
        until=changed.until,
        next=changed.next or None,
    )


def message(shown: Shown) -> Message:
    """A message in JSON form."""
    data = _data(shown)
    return Message(
        id=shown.id,
        topic=shown.topic,
        state=shown.state,
        due_at=shown.due_at,
        attempts=shown.attempts,
        accepted_at=shown.accepted_at,
        type=shown.kind,
        data=data,
        base64=shown.body if data is None else None,
        next_at=shown.next_at,
        expires_at=shown.expires_at,
        target=shown.target or None,
        key=shown.key or None,
        tags=shown.tags,
        result=msgspec.Raw(shown.result) if shown.result else None,
    )


def _data(shown: Shown) -> msgspec.Raw | None:
    """The body where it is JSON."""
    if shown.kind == JSON:
        with contextlib.suppress(Problem):
            decoded(shown.body, object)
            return msgspec.Raw(shown.body)
    return None


def recurring(entry: Entry) -> RecurringMessage:
    """A recurring message for JSON."""
    asked = entry.asked
    return RecurringMessage(
        topic=asked.topic,
        name=asked.name,
        cron=asked.cron,
        zone=asked.zone,
        missed=asked.missed,
        data=msgspec.Raw(asked.body),
        last=entry.last,
    )


def leased(found: Leased) -> LeasedMessage:
    """A leased message for JSON."""
    shown = found.message
    data = _data(shown)
    return LeasedMessage(
        id=shown.id,
        lease=found.lease,
        attempt=shown.attempts,
        until=found.until,
        due_at=shown.due_at,
        accepted_at=shown.accepted_at,
        type=shown.kind,
        data=data,
        base64=shown.body if data is None else None,
    )


def lease_ends(asked: LeaseEnds) -> list[LeaseEnd]:
    """In the order of `lease_outcomes`."""
    ends = [
        LeaseEnd(lease=each, verb="done")
        if isinstance(each, str)
        else LeaseEnd(lease=each.lease, verb="done", text=bytes(each.result))
        for each in asked.done
    ]
    ends += [
        LeaseEnd(
            lease=each.lease,
            verb="again",
            time_ms=None if each.in_s is None else round(each.in_s * 1_000),
            text=each.why.encode(),
        )
        for each in asked.again
    ]
    ends += [LeaseEnd(lease=each.lease, verb="dead", text=each.why.encode()) for each in asked.dead]
    ends += [LeaseEnd(lease=each, verb="back") for each in asked.back]
    ends += [LeaseEnd(lease=each.lease, verb="extend", time_ms=round(each.by_s * 1_000)) for each in asked.extend]
    return ends


def lease_outcomes(asked: LeaseEnds, said: Sequence[LeaseSaid]) -> LeaseOutcomes:
    """What came of each, by verb."""
    outcomes = [LeaseOutcome(outcome=each.outcome, lease=each.lease or None, until=each.until or None) for each in said]
    parts: list[list[LeaseOutcome]] = []
    for verb in (asked.done, asked.again, asked.dead, asked.back, asked.extend):
        parts.append(outcomes[: len(verb)])
        outcomes = outcomes[len(verb) :]
    return LeaseOutcomes(done=parts[0], again=parts[1], dead=parts[2], back=parts[3], extend=parts[4])


def changed(found: Topic, asked: TopicChange) -> TopicChanged:
    """A topic after a change, in JSON form."""
    return TopicChanged(
        name=found.name,
        callback=found.callback,
        secrets=len(found.secrets),
        secret=None if asked.secret is None else found.secrets[0],
        retire_at=found.retire_at or None,
        workers=found.workers,
        policy=found.policy,
        retries_ms=found.retries_ms,
        jitter=found.jitter,
        timeout_s=found.timeout_s,
        retry_after_max_s=found.retry_after_max_s,
        rate=found.rate,
        concurrency=found.concurrency,
        per_key=found.per_key,
        rate_per_key=found.rate_per_key,
        dead_stops_key=found.dead_stops_key,
        allowed=found.allowed,
        paused=found.paused,
    )


def topic_whole(state: TopicState) -> TopicWhole:
    """The state of a topic, in JSON form."""
    found = state.topic
    return TopicWhole(
        name=found.name,
        callback=found.callback,
        secrets=len(found.secrets),
        workers=found.workers,
        policy=found.policy,
        retries_ms=found.retries_ms,
        jitter=found.jitter,
        timeout_s=found.timeout_s,
        retry_after_max_s=found.retry_after_max_s,
        rate=found.rate,
        concurrency=found.concurrency,
        per_key=found.per_key,
        rate_per_key=found.rate_per_key,
        dead_stops_key=found.dead_stops_key,
        paused=found.paused,
        allowed=found.allowed,
        pending=state.pending,
        dead=state.dead,
        overdue=state.overdue,
        overdue_ms=state.overdue_ms,
        held=[HeldTarget(url=each.url, why=each.why, until=each.until) for each in state.held],
    )


def topic(found: Topic) -> TopicShown:
    """A topic in JSON form."""
    return TopicShown(
        name=found.name,
        callback=found.callback,
        workers=found.workers,
        policy=found.policy,
        retries_ms=found.retries_ms,
        timeout_s=found.timeout_s,
        paused=found.paused,
    )
