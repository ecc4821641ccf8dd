"""The shapes of messages, and of what nodes, programs and operators tell each other about them. Owns shapes and their
limits.

Times are milliseconds since 1970. It must not know how these are sent, nor how they are carried out.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from muster_server import _engines
from muster_server.systems.messages.topics import Topic

ID_CHARS_MAX: Final = 128
ID: Final = rf"^[A-Za-z0-9][A-Za-z0-9_:-]{{0,{ID_CHARS_MAX - 1}}}\Z"
"""Pattern of a message's id. It has no dots, because a signature covers `id.time.body`."""
KEY_CHARS_MAX: Final = 128
TAG: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}\Z"
TAGS_MAX: Final = 8
"""Tags of one message."""
BATCH_MAX: Final = 1_000
KIND_CHARS_MAX: Final = 255
WINDOW_MS_MAX: Final = 24 * 3_600_000
LIVE: Final = ("scheduled", "firing")
"""States in which a message waits, or is in progress."""
EVER: Final = 1 << 62
"""A time after every due time."""
BACKLOG_MS: Final = (0, 60_000, 600_000, 3_600_000, 86_400_000, 604_800_000)
"""Bounds of the backlog by due time, from now: overdue, a minute, ten, an hour, a day, a week, later."""
LEASED_MAX: Final = 1_000
"""Messages of one lease request."""
LEASE_S_MAX: Final = 3_600.0
LEASE_WAIT_S_MAX: Final = 60.0
LEASE_CHARS_MAX: Final = 128
RESULT_BYTES_MAX: Final = 4_096
"""Of a task."""
BACKLOG: Final = ("overdue", "1m", "10m", "1h", "1d", "7d", "later")

_ENCODER: Final = msgspec.msgpack.Encoder()

State = Literal["scheduled", "firing", "retry", "done", "dead", "cancelled", "expired"]
Outcome = Literal["done", "already fired", "unknown", "cancelled", "expired"]
"""The outcome of a change. `done`: it took place. `already fired`: too late, a callback is or was in progress.
`unknown`: no such message; the change is applied if it comes. `cancelled`: it was withdrawn before. `expired`: its
`expires_at` came first."""
Verb = Literal["cancel", "postpone", "advance"]
Ms = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
"""Milliseconds; the range for each field is checked later."""
Key = Annotated[str, Meta(max_length=KEY_CHARS_MAX)]
Tag = Annotated[str, Meta(pattern=TAG)]
Tags = Annotated[tuple[Tag, ...], Meta(max_length=TAGS_MAX)]
MessageName = Annotated[str, Meta(pattern=ID)]


class Send(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message as a producer sends it. `in_ms` or `at`; without both it is due at once."""

    body: bytes
    id: MessageName | None = None
    """Messages with the same id in a topic are one message. None: an id is made."""
    in_ms: Ms | None = None
    at: Ms | None = None
    window_ms: Annotated[int, Meta(ge=0, le=WINDOW_MS_MAX)] = 0
    """It may fire this much later, so that simultaneous messages are spread."""
    expires_at: Ms | None = None
    """It does not fire from this time on."""
    target: str = ""
    """Target instead of the topic's."""
    kind: Annotated[str, Meta(max_length=KIND_CHARS_MAX)] = "application/octet-stream"
    """The media type of the body."""
    for_topic: str = ""
    """For a check-back: the topic of the message that it carries."""
    key: Key = ""
    """Messages of one key go in order, or a few at once, as the topic says. Empty: it has none."""
    tags: Tags = ()
    """By which it is listed, counted, cancelled and moved with others."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """The message is durable. `duplicate`: it was durable before, and nothing changed."""

    id: str
    due_at: int
    state: State = "scheduled"
    duplicate: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request was not carried out. `code` is one of the problems of the HTTP face, or `conflict`, `disk_full`."""

    code: str
    detail: str


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a waiting message. `postpone` and `advance`: to `at`, or by `by_ms`."""

    id: MessageName
    verb: Verb
    at: Ms | None = None
    by_ms: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None


class Changed(msgspec.Struct, frozen=True, kw_only=True, tag="changed"):
    """The outcome of a change; `due_at` and `state` if the message is known."""

    id: str
    outcome: Outcome
    state: State | None = None
    due_at: int | None = None


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a message. `next_at`: the next attempt, or the end of the claim of a message that fires."""

    id: str
    topic: str
    state: State
    due_at: int
    attempts: int
    version: int
    next_at: int | None = None
    expires_at: int | None = None
    target: str = ""
    kind: str = ""
    accepted_at: int = 0
    body: bytes = b""
    key: str = ""
    tags: tuple[str, ...] = ()
    result: bytes | None = None
    """What the program that leased it said with `done`."""


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: the message and the last answer of its target."""

    message: Shown
    at: int
    """Time at which its last attempt failed."""
    outcome: str
    """`refused` with `status`, or `failed` with its cause in `answer`, or `claim ran out`."""
    status: int | None
    answer: bytes
    """The beginning of the target's answer."""


class DeadPage(msgspec.Struct, frozen=True, array_like=True):
    """Dead letters. `next`: the `after` of the next page; empty: this is the last one."""

    letters: list[Dead]
    next: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by time. `matching`: number of matches; `more`: there are more than were counted. With a tag, both are about
    the messages that this page looked at."""

    messages: list[Shown]
    matching: int
    more: bool
    next: str = ""
    """The `after` of the next page; empty: this is the last one."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What the schedule stores as the body of a message: everything besides its times."""

    id: str
    target: str
    kind: str
    accepted_at: int
    body: bytes
    key: str = ""
    tags: tuple[str, ...] = ()

    def packed(self) -> bytes:
        """In MessagePack. Without a key and tags it is as nodes before 0.3 read it."""
        if self.tags:
            return _ENCODER.encode(self)
        fields = (self.id, self.target, self.kind, self.accepted_at, self.body)
        return _ENCODER.encode((*fields, self.key) if self.key else fields)


class Fire(msgspec.Struct, frozen=True, array_like=True):
    """A message to fire, under a live claim until `until`."""

    number: int
    topic: int
    claim: int
    until: int
    due_at: int
    attempts: int
    envelope: bytes


class Result(msgspec.Struct, frozen=True, array_like=True):
    """The result of a fire. `deliver`: it succeeded; `fail`: another attempt at `next`, or none; `release`: no attempt
    was made, due again at `next`."""

    number: int
    topic: int
    claim: int
    verb: Literal["deliver", "fail", "release"]
    next: int | None
    lateness_ms: int
    """Time from the due time of this attempt to its start; -1: no attempt, or a retry."""
    took_ms: float
    outcome: str = ""
    status: int | None = None
    answer: bytes = b""


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A program waits for up to `most` messages of a topic, each for `lease_s`."""

    topic: str
    most: Annotated[int, Meta(ge=1, le=LEASED_MAX)]
    wait_s: Annotated[float, Meta(ge=0, le=LEASE_WAIT_S_MAX)]
    lease_s: Annotated[float, Meta(ge=1, le=LEASE_S_MAX)]


class Leased(msgspec.Struct, frozen=True, array_like=True):
    """A message under a lease. `lease`: what names it to the receivers."""

    lease: str
    until: int
    message: Shown


class LeaseEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says of a lease. `time_ms`: of `extend`, how long from now it lasts; of `again`, in how long the
    message is due again; without it by the topic's retries."""

    lease: Annotated[str, Meta(max_length=LEASE_CHARS_MAX)]
    verb: Literal["done", "again", "dead", "back", "extend"]
    time_ms: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    text: bytes = b""
    """The result, or why it failed."""


class LeaseSaid(msgspec.Struct, frozen=True, array_like=True):
    """What came of it: `done`; `lost`, its claim had run out and another one was won, or it ended before; `busy`, nothing
    was changed, say it again."""

    outcome: Literal["done", "lost", "busy"]
    lease: str = ""
    """After an extension: what names it from now on. The former name is good as well, while its center runs."""
    until: int = 0


class Join(msgspec.Struct, frozen=True, array_like=True):
    """A worker's stream begins."""

    incarnation: int
    held_max: int
    name: str = ""
    """The name of its node; empty for workers of versions before 0.3."""


class Results(msgspec.Struct, frozen=True, array_like=True):
    """A worker's results: an array of `Result`."""

    incarnation: int
    weight: int
    results: msgspec.Raw


class HeldTarget(msgspec.Struct, frozen=True, array_like=True):
    """A target that gets nothing now, or only trials. `topic`: its number; None: the whole origin."""

    topic: int | None
    url: str
    why: Literal["unreachable", "failing", "paused"]
    until: int
    """End of the pause; a past time: it is being tried."""


class Holds(msgspec.Struct, frozen=True, array_like=True):
    """All targets that a worker holds."""

    incarnation: int
    held: list[HeldTarget]


class Which(msgspec.Struct, frozen=True, array_like=True):
    """Selects messages by topic (None: all), time and state; at most `limit`."""

    topic: int | None
    begin: int
    end: int
    states: list[str]
    limit: int
    after: tuple[int, int] | None = None
    """Only messages after this time and number."""
    tag: str = ""
    """Only messages with this tag; a page looks at a bounded number of messages for it."""


class Found(msgspec.Struct, frozen=True, array_like=True):
    """Each as a `found` of the schedule; the number of matches, by `BACKLOG`; and whether there are more than were
    counted. `last`: the time and number of the last one, if others may follow."""

    found: list[list[Any]]
    matching: int
    backlog: list[int]
    more: bool
    last: tuple[int, int] | None = None
    looked: int = 0
    """With a tag: the number of messages that were looked at."""


class Query(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a topic (empty: all) whose next attempt, or due time, is in the range."""

    topic: str
    begin: int
    end: int
    states: list[str]
    limit: int
    after: str = ""
    """The `next` of the previous page."""
    tag: Annotated[str, Meta(pattern=rf"^$|{TAG}")] = ""
    """Only messages with this tag."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a topic: its backlog, and the targets that get nothing now."""

    topic: Topic
    pending: int
    dead: int
    overdue: int
    overdue_ms: int
    """Time since the oldest overdue message was due."""
    held: list[HeldTarget]


class LetterPage(msgspec.Struct, frozen=True, array_like=True):
    """Replays or drops a page of a topic's dead letters. `until`, `after`: those of the previous page."""

    topic: str
    until: int = 0
    after: str = ""


class LettersChanged(msgspec.Struct, frozen=True, array_like=True):
    """A page of replayed or dropped letters. `next`: the `after` of the next one; empty: this is the last one."""

    changed: list[Changed]
    until: int
    next: str


class TagPage(msgspec.Struct, frozen=True, array_like=True):
    """Counts, cancels or moves a page of the waiting messages of a topic that have a tag. `at`: the due time to which they
    are moved. `until`, `after`: those of the previous page."""

    topic: str
    tag: Tag
    verb: Literal["count", "cancel", "move"]
    at: Ms = 0
    until: int = 0
    after: str = ""


class TagChanged(msgspec.Struct, frozen=True, array_like=True):
    """One page of such a job. `next`: the `after` of the next one; empty: the job is done."""

    looked: int
    """Waiting messages of the topic that the page looked at."""
    matching: int
    """Messages with the tag that were accepted before the job began."""
    done: int
    """Messages that were cancelled or moved."""
    late: int
    """Messages that fired, ended or were changed otherwise before the job came to them."""
    until: int
    next: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: its minutes, newest last, and its backlog by due time."""

    topic: str
    minutes: list[dict[str, Any]]
    backlog: dict[str, int]
    pending: int
    more: bool
    overdue: int = 0
    """Due for a second or more without an answer to the first attempt, or without the retry that is due."""
    overdue_ms: int = 0
    """Time since the oldest of them was due."""


class Scrubbed(msgspec.Struct, frozen=True, array_like=True):
    """The findings of a scrub of the schedule. `faults`: descriptions of the first ones."""

    messages: int
    bodies: int
    fault_count: int
    faults: list[str]


class Numbers:
    """The numbers of a topic's messages in the schedule. Without the key nobody can find two ids with one number."""

    def __init__(self, key: bytes, topic: int) -> None:
        self._key, self._topic = key, topic

    def of(self, ids: Sequence[str]) -> list[int]:
        """The numbers of the messages with these ids."""
        return _engines.message_numbers(self._key, self._topic, ids)


def has_tag(body: bytes, tag: str) -> bool:
    """Return whether the body of a message in the schedule has a tag."""
    return tag.encode() in body and tag in msgspec.msgpack.decode(body, type=Envelope).tags


def is_id(text: str) -> bool:
    """Whether a text is a valid id of a message."""
    return re.match(ID, text) is not None
