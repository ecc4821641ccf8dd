"""Checks messages and changes of them, numbers them, and passes them to the schedule.

Owns the checks of a message, its number, its due time, and the outcomes of changes. It must not know how requests come
or how the schedule is reached.
"""

import datetime
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from muster.clock import now_ms
from muster_server.systems.messages.lanes import Dues
from muster_server.systems.messages.schedule import NewChange, NewMessage, Reply
from muster_server.systems.messages.shapes import (
    BATCH_MAX,
    ID_CHARS_MAX,
    Change,
    Changed,
    Envelope,
    Numbers,
    Outcome,
    Refused,
    Send,
    Sent,
    Shown,
    is_id,
)
from muster_server.systems.messages.targets import (
    ALWAYS,
    PULL,
    SUBSCRIBERS,
    Kind,
    TargetError,
    accepted,
    most_bytes,
    parse,
)
from muster_server.systems.messages.topics import Topic, Topics

DAY_MS: Final = 86_400_000
ID_BYTES: Final = 12
OUTCOMES: Final[dict[str, Outcome]] = {
    "fired": "already fired",
    "withdrawn": "cancelled",
    "expired": "expired",
    "unknown": "unknown",
}
"""Outcomes by the reason of the schedule."""
WRONG_WAY: Final = {
    "not_later": "message {id} is due at {at}, which is later; use advance to move it to an earlier time",
    "not_sooner": "message {id} is due at {at}, which is earlier; use postpone to move it to a later time",
}
"""The details of a change to a time in the wrong direction."""
DIRECTIONS: Final = {"postpone": "later", "advance": "sooner"}


class Center(Protocol):
    """The path to the schedule. Raises `Unreachable`."""

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        """As `systems.messages.schedule.Schedule`."""

    async def change(self, topic: int, changes: Sequence[NewChange]) -> list[Reply]:
        """As `systems.messages.schedule.Schedule`."""

    async def get(self, ids: Sequence[int]) -> list[Reply]:
        """As `systems.messages.schedule.Schedule`."""

    async def answers(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Results of tasks, by number, where they said one."""


class Unreachable(Exception):
    """The schedule did not answer: the request may have been carried out. Repeat it with the same ids."""


class NoTopic(Exception):
    """There is no topic of this name."""


class Receiver:
    """The checks of one process. Batches have at most `BATCH_MAX` entries."""

    def __init__(
        self,
        topics: Topics,
        center: Center,
        *,
        body_bytes_max: int,
        delay_days_max: int,
        kinds: frozenset[Kind] = ALWAYS,
        wall: Callable[[], int] = now_ms,
    ) -> None:
        self._topics, self._center, self._wall = topics, center, wall
        self._kinds = kinds
        self._body_max, self._delay_max = body_bytes_max, delay_days_max * DAY_MS
        self._dues = Dues()

    def topic(self, name: str) -> Topic:
        """Raises `NoTopic`."""
        found = self._topics.named(name)
        if found is None:
            raise NoTopic(name)
        return found

    async def send(self, topic_name: str, sends: Sequence[Send]) -> list[Sent | Refused]:
        """Make messages durable. The results are in the same order. Raises `NoTopic`, `Unreachable`."""
        topic, now = self.topic(topic_name), self._wall()
        if len(sends) > BATCH_MAX:
            return [Refused(code="too_long", detail=f"too many messages in a batch (limit {BATCH_MAX})")] * len(sends)
        drawn = _ids(len(sends))
        ids = [send.id or other for send, other in zip(sends, drawn, strict=True)]
        numbers = Numbers(self._topics.key, topic.number).of(ids)
        made = [self._made(topic, *each, now) for each in zip(sends, ids, numbers, strict=True)]
        there = [each for each in made if not isinstance(each, Refused)]
        replies = await self._center.insert([message for message, _ in there]) if there else ()
        if len(there) == len(sends) and all(reply[0] == "inserted" and reply[1][1] == 1 for reply in replies):
            # The usual batch: all messages are new, and no change waited for one.
            return [
                Sent(id=envelope.id, due_at=reply[1][2]) for (_, envelope), reply in zip(there, replies, strict=True)
            ]
        told = iter(replies)
        answers: list[Sent | Refused] = []
        before: list[tuple[int, Envelope, int]] = []
        for each in made:
            if isinstance(each, Refused):
                answers.append(each)
                continue
            message, envelope = each
            reply = next(told)
            if reply[0] == "before":
                before.append((len(answers), envelope, message[0]))
            answers.append(_sent(envelope.id, reply))
        if before:
            found = await self._center.get([number for _, _, number in before])
            for (place, envelope, _), reply in zip(before, found, strict=True):
                if not _same(envelope, reply):
                    detail = f"topic {topic.name} has a different message with the id {envelope.id}"
                    answers[place] = Refused(code="conflict", detail=detail)
        return answers

    def _made(self, topic: Topic, send: Send, id: str, number: int, now: int) -> tuple[NewMessage, Envelope] | Refused:
        if len(send.body) > self._body_max:
            detail = f"body too long: {len(send.body)} bytes (limit {self._body_max}; see receive.body_bytes_max)"
            return Refused(code="too_long", detail=detail)
        if send.in_ms is not None and send.at is not None:
            return Refused(code="bad_request", detail="in_ms and at exclude each other: give one of them")
        if send.for_topic and (why := self._unsendable(topic, send)):
            return why
        if send.target and PULL in {send.target, topic.callback}:
            cause = (
                "programs lease its messages, which name no target" if topic.is_leased else "a topic alone has pull:"
            )
            return Refused(code="bad_request", detail=f"topic {topic.name}, target {send.target!r:.80}: {cause}")
        if send.target.startswith(SUBSCRIBERS):
            detail = f"target {send.target!r:.80}: a topic alone has subscribers"
            return Refused(code="bad_request", detail=detail)
        text = send.target or topic.callback
        if not text:
            return Refused(code="bad_request", detail=f"neither the message nor topic {topic.name} has a target")
        try:
            kind = accepted(text, self._kinds).kind
        except TargetError as error:
            return Refused(code="bad_request", detail=str(error))
        if why := self._too_long(text, kind, send.body):
            return why
        if kind == "topics" and not is_id(subscribed_id(topic.name, id)):
            limit = ID_CHARS_MAX - len(subscribed_id(topic.name, ""))
            detail = f"id {id!r:.140} is too long for a topic with subscribers (limit {limit})"
            return Refused(code="bad_request", detail=detail)
        due_at = send.at if send.at is not None else now + (send.in_ms or 0)
        if send.in_ms is not None and not 0 <= send.in_ms <= self._delay_max:
            detail = f"invalid delay {send.in_ms} ms (expected 0 to {self._delay_max}; see receive.delay_days_max)"
            return Refused(code="bad_request", detail=detail)
        if not 0 <= due_at <= now + self._delay_max:
            detail = (
                f"invalid due time {due_at} (expected 0 to {self._delay_max} ms from now; see receive.delay_days_max)"
            )
            return Refused(code="bad_request", detail=detail)
        # The same id gives the same moment of the window: a repeated message does not move.
        due_at += number % (send.window_ms + 1)
        if send.expires_at is not None and send.expires_at <= due_at:
            return Refused(code="bad_request", detail="the message expires before it is due")
        if not send.key.isprintable():
            return Refused(code="bad_request", detail=f"key {send.key!r:.140} is not printable")
        if topic.per_key and send.key:  # as the center does for all receivers, once it knows the topic
            due_at = self._dues.free(topic.number, send.key, due_at)
        envelope = Envelope(id, send.target, send.kind, now, send.body, send.key, send.tags)
        return (number, topic.number, due_at, send.expires_at, envelope.packed()), envelope

    def _unsendable(self, checks: Topic, send: Send) -> Refused | None:
        """Why the message of a check-back could not be sent to its topic after its outcome; None: it could."""
        topic = self._topics.named(send.for_topic)
        if topic is None:
            detail = f"no topic {send.for_topic!r:.80}, so the message of this check-back could not be sent"
            return Refused(code="not_found", detail=detail)
        if topic.name == checks.name:
            return Refused(code="bad_request", detail=f"topic {topic.name} is reserved for the check-backs")
        try:
            kind = accepted(topic.callback, self._kinds).kind
        except TargetError as error:
            return Refused(code="bad_request", detail=f"topic {topic.name}: {error}")
        _, _, body = send.body.partition(b"\n")  # after the head of a check-back
        return self._too_long(topic.callback, kind, body)

    def _too_long(self, target: str, kind: Kind, body: bytes) -> Refused | None:
        """Why a target cannot get a body of this length; of a topic with subscribers: why one of them cannot."""
        limits = [(kind, most_bytes(kind, self._body_max))]
        if kind == "topics":
            for name in parse(target).name.split(","):
                topic = self._topics.named(name)
                if topic is not None:
                    other = parse(topic.callback).kind
                    limits.append((f"{other} of topic {name}", most_bytes(other, self._body_max)))
        for name, most in limits:
            if len(body) > most:
                detail = f"body too long for target {name}: {len(body)} bytes (limit {most})"
                return Refused(code="too_long", detail=detail)
        return None

    async def change(self, topic_name: str, changes: Sequence[Change]) -> list[Changed | Refused]:
        """Cancel, postpone or advance. Raises `NoTopic`, `Unreachable`."""
        topic, now = self.topic(topic_name), self._wall()
        numbers = Numbers(self._topics.key, topic.number).of([change.id for change in changes])
        made = [self._asked(change, number, now) for change, number in zip(changes, numbers, strict=True)]
        there = [each for each in made if not isinstance(each, Refused)]
        replies = iter(await self._center.change(topic.number, there) if there else ())
        return [
            each if isinstance(each, Refused) else _changed(change.id, next(replies))
            for change, each in zip(changes, made, strict=True)
        ]

    def _asked(self, change: Change, number: int, now: int) -> NewChange | Refused:
        if change.verb == "cancel":
            return number, "cancel", None, None
        if (change.at is None) == (change.by_ms is None):
            return Refused(code="bad_request", detail=f"{change.verb} needs either a time or a duration")
        if change.by_ms is not None:
            if change.by_ms > self._delay_max:
                return Refused(
                    code="bad_request", detail=f"duration too long: {change.by_ms} ms (limit {self._delay_max})"
                )
            return number, "due_by", None, change.by_ms if change.verb == "postpone" else -change.by_ms
        assert change.at is not None
        if not 0 <= change.at <= now + self._delay_max:
            return Refused(
                code="bad_request", detail=f"invalid due time {change.at} (expected 0 to {self._delay_max} ms from now)"
            )
        return number, DIRECTIONS[change.verb], None, change.at

    async def show(self, topic_name: str, ids: Sequence[str]) -> list[Shown | None]:
        """The present states of messages; None: unknown, or forgotten. Raises `NoTopic`, `Unreachable`."""
        topic = self.topic(topic_name)
        numbers = Numbers(self._topics.key, topic.number).of(ids)
        replies = await self._center.get(numbers)
        done = [
            number
            for number, reply in zip(numbers, replies, strict=True)
            if topic.is_leased and reply[0] == "found" and reply[1][5] == "done"
        ]
        results = await self._center.answers(done) if done else {}
        return [
            msgspec.structs.replace(shown(topic.name, reply), result=results.get(number))
            if reply[0] == "found" and _of(id, reply)
            else None
            for id, number, reply in zip(ids, numbers, replies, strict=True)
        ]


def subscribed_id(topic: str, id: str) -> str:
    """The id that a message of a topic has at its subscribers: messages of no other topic have it."""
    return f"{topic.replace('.', '-')}:{id}"


def _ids(count: int) -> list[str]:
    """Make `count` new ids, from one random draw."""
    drawn, chars = secrets.token_hex(ID_BYTES * count), 2 * ID_BYTES
    return [drawn[place : place + chars] for place in range(0, chars * count, chars)]


def shown(topic: str, reply: Reply) -> Shown:
    """The message of a `found` reply."""
    _, message, _, body = reply
    _, version, due_at, expires_at, attempts, state, time_ = message
    envelope = msgspec.msgpack.decode(body, type=Envelope)
    return Shown(
        id=envelope.id,
        topic=topic,
        state=state,
        due_at=due_at,
        attempts=attempts,
        version=version,
        next_at=time_,
        expires_at=expires_at,
        target=envelope.target,
        kind=envelope.kind,
        accepted_at=envelope.accepted_at,
        body=envelope.body,
        key=envelope.key,
        tags=envelope.tags,
    )


def _sent(id: str, reply: Reply) -> Sent | Refused:
    if reply[0] in {"inserted", "before"}:
        _, _, due_at, _, _, state, _ = reply[1]
        return Sent(id=id, due_at=due_at, state=state, duplicate=reply[0] == "before")
    return _refused(reply)


def _changed(id: str, reply: Reply) -> Changed | Refused:
    if reply[0] == "changed":
        _, _, due_at, _, _, state, _ = reply[1]
        return Changed(id=id, outcome="done", state=state, due_at=due_at)
    if reply[0] == "ahead":
        return Changed(id=id, outcome="unknown")
    if reply[0] == "refused" and reply[1] in OUTCOMES:
        return Changed(id=id, outcome=OUTCOMES[reply[1]])
    if reply[0] == "refused" and reply[1] in WRONG_WAY:
        detail = WRONG_WAY[reply[1]].format(id=id, at=_time(reply[2]))
        return Refused(code="conflict", detail=detail)
    return _refused(reply)


def _time(ms: int) -> str:
    """Format a time in UTC."""
    return datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC).isoformat(timespec="milliseconds")


def _refused(reply: Reply) -> Refused:
    codes: dict[str, tuple[str, str]] = {
        "disk_full": ("disk_full", "the disk of the schedule is full; nothing was changed"),
        "body_too_long": ("too_long", "the body is too long for the schedule"),
        "refused": ("bad_request", "the schedule refuses this time"),
    }
    code, detail = codes.get(reply[0], ("unavailable", f"the schedule answers {reply[0]}"))
    return Refused(code=code, detail=detail)


def _same(envelope: Envelope, reply: Reply) -> bool:
    """Whether the stored message is the one that is sent again. A forgotten one cannot be compared."""
    if reply[0] != "found":
        return True
    there = msgspec.msgpack.decode(reply[3], type=Envelope)
    return msgspec.structs.replace(there, accepted_at=envelope.accepted_at) == envelope


def _of(id: str, reply: Reply) -> bool:
    return bool(msgspec.msgpack.decode(reply[3], type=Envelope).id == id)
