"""What nodes of the system, programs and operators say to each other about messages. Owns shapes and their limits.

Times are milliseconds since 1970. It must not know how these travel, nor what is done with them.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from muster_server import _engines
from muster_server.systems.messages.topics import Topic

ID: Final = r"^[A-Za-z0-9][A-Za-z0-9_:-]{0,127}\Z"
"""Of a message. Without dots: a signature covers `id.time.body`."""
BATCH_MAX: Final = 1_000
KIND_CHARS_MAX: Final = 255
WINDOW_MS_MAX: Final = 24 * 3_600_000
LIVE: Final = ("scheduled", "firing")
"""States in which a message waits, or is under way."""
EVER: Final = 1 << 62
"""After every due time."""
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

State = Literal["scheduled", "firing", "retry", "done", "dead", "cancelled", "expired"]
Outcome = Literal["done", "already fired", "unknown", "cancelled", "expired"]
"""Of a change: it took place; it came too late, since a callback is or was under way; no such message is known, and if it
comes, the change takes place then; the message was withdrawn before; its `expires_at` came first."""
Verb = Literal["cancel", "postpone", "advance"]
Ms = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
"""Milliseconds; what they may be in a message is checked later, by name."""
MessageName = Annotated[str, Meta(pattern=ID)]


class Send(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message as a producer sends it. `in_ms` or `at`; without both it is due at once."""

    body: bytes
    id: MessageName | None = None
    """The same id in the same topic is the same message. None: one is made."""
    in_ms: Ms | None = None
    at: Ms | None = None
    window_ms: Annotated[int, Meta(ge=0, le=WINDOW_MS_MAX)] = 0
    """It may fire so much later; a herd is spread over it."""
    expires_at: Ms | None = None
    """It does not fire from this time on."""
    target: str = ""
    """Instead of the topic's."""
    kind: Annotated[str, Meta(max_length=KIND_CHARS_MAX)] = "application/octet-stream"
    """The media type of the body."""
    for_topic: str = ""
    """Of a check-back: the topic of the message that it carries."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """It is durable. `duplicate`: it was so before, and nothing changed."""

    id: str
    due_at: int
    state: State = "scheduled"
    duplicate: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It was not done. `code` is one of the problems of the HTTP face, or `conflict`, `disk_full`."""

    code: str
    detail: str


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a waiting message. `postpone` and `advance`: to `at`, or by `by_ms`."""

    id: MessageName
    verb: Verb
    at: Ms | None = None
    by_ms: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None


class Changed(msgspec.Struct, frozen=True, kw_only=True, tag="changed"):
    """What came of a change; `due_at` and `state` where the message is known."""

    id: str
    outcome: Outcome
    state: State | None = None
    due_at: int | None = None


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is. `next_at`: the next attempt, or the end of the claim of a message that fires."""

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
    result: bytes | None = None
    """What the program that leased it said with `done`."""


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: the message and the last answer of its target."""

    message: Shown
    at: int
    """When its last attempt failed."""
    outcome: str
    """`refused` with `status`, or `failed` with its cause in `answer`, or `claim ran out`."""
    status: int | None
    answer: bytes
    """The begin of what the target said."""


class DeadPage(msgspec.Struct, frozen=True, array_like=True):
    """Dead letters. `next`: asks for the page after this one; empty: it is the last one."""

    letters: list[Dead]
    next: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by time. `matching`: how many there are; `more`: there are still more than were counted."""

    messages: list[Shown]
    matching: int
    more: bool
    next: str = ""
    """Asks for the page after this one; empty: it is the last one."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What the schedule keeps of a message beside its times: its body there."""

    id: str
    target: str
    kind: str
    accepted_at: int
    body: bytes


class Fire(msgspec.Struct, frozen=True, array_like=True):
    """A message to call back for, under a live claim until `until`."""

    number: int
    topic: int
    claim: int
    until: int
    due_at: int
    attempts: int
    envelope: bytes


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What came of a fire. `deliver`: answered well; `fail`: another attempt at `next`, or none; `release`: no attempt was
    made, due again at `next`."""

    number: int
    topic: int
    claim: int
    verb: Literal["deliver", "fail", "release"]
    next: int | None
    lateness_ms: int
    """From the due time of this attempt to its begin; -1: no attempt, or a retry."""
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
    """The name of its node; empty from workers of before 0.3."""


class Results(msgspec.Struct, frozen=True, array_like=True):
    """A worker's results: an array of `Result`."""

    incarnation: int
    weight: int
    results: msgspec.Raw


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A target that gets nothing now, or only trials. `topic`: its number; None: the whole origin."""

    topic: int | None
    url: str
    why: Literal["unreachable", "failing", "paused"]
    until: int
    """Now or earlier: it is being tried."""


class Holds(msgspec.Struct, frozen=True, array_like=True):
    """All targets that a worker holds."""

    incarnation: int
    held: list[Held]


class Which(msgspec.Struct, frozen=True, array_like=True):
    """Messages by topic (None: all), time and state; `limit` of them."""

    topic: int | None
    begin: int
    end: int
    states: list[str]
    limit: int
    after: tuple[int, int] | None = None
    """Only those after this time and number."""


class Found(msgspec.Struct, frozen=True, array_like=True):
    """Each as a `found` of the schedule; how many match, by `BACKLOG`; and whether there are more than were counted. `last`:
    the time and number of the last one, where others may follow."""

    found: list[list[Any]]
    matching: int
    backlog: list[int]
    more: bool
    last: tuple[int, int] | None = None


class Query(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a topic (empty: all) whose next attempt, or due time, is in the range."""

    topic: str
    begin: int
    end: int
    states: list[str]
    limit: int
    after: str = ""
    """The `next` of the page before."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as it stands: its backlog, and the targets that get nothing now."""

    topic: Topic
    pending: int
    dead: int
    overdue: int
    overdue_ms: int
    """Since the oldest overdue message was due."""
    held: list[Held]


class ReplayPage(msgspec.Struct, frozen=True, array_like=True):
    """Replays a page of a topic's dead letters. `until`, `after`: of the page before."""

    topic: str
    until: int = 0
    after: str = ""


class Replayed(msgspec.Struct, frozen=True, array_like=True):
    """A page of replayed letters. `next`: asks for the next one; empty: it is the last one."""

    changed: list[Changed]
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
    """Since the oldest of them was due."""


class Scrubbed(msgspec.Struct, frozen=True, array_like=True):
    """The findings of a proof of the schedule. `faults`: the first of them in words."""

    messages: int
    bodies: int
    fault_count: int
    faults: list[str]


class Numbers:
    """The numbers of a topic's messages in the schedule. Who does not know the key cannot find two ids with one number."""

    def __init__(self, key: bytes, topic: int) -> None:
        self._key, self._topic = key, topic

    def of(self, ids: Sequence[str]) -> list[int]:
        """The numbers of the messages with these ids."""
        return _engines.message_numbers(self._key, self._topic, ids)


def is_id(text: str) -> bool:
    """Whether a message can be called so."""
    return re.match(ID, text) is not None
