"""The shapes of answers, as JSON and in the description of the API."""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

import muster
from muster.room import known_offsets
from muster_server.systems.http.idempotency import Answer
from muster_server.systems.http.problems import Problem
from muster_server.systems.rooms.archive.shapes import Gap, Latest, Message, shown
from muster_server.systems.rooms.history import Found, Recent
from muster_server.systems.rooms.http.centrifugo import positions
from muster_server.systems.rooms.http.feeds import encoded, event_id


class Positioned(msgspec.Struct, frozen=True):
    """A message that the room's owner has numbered. `position`: `STREAM:OFFSET`."""

    position: str


class Failure(msgspec.Struct, frozen=True):
    """The reason why a message of a batch was not published."""

    code: str
    detail: str
    retryable: bool


class BatchEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a batch: its position, or the reason why it has none."""

    position: str | None = None
    error: Failure | None = None


class Batch(msgspec.Struct, frozen=True):
    """The results of a batch, in the same order."""

    published: int
    failed: int
    messages: list[BatchEntry]


class RoomMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a room. `at`: when the archive got it, in milliseconds since 1970; absent for a message in memory."""

    position: str
    sender: str
    data: str
    encoding: str = "utf-8"
    headers: dict[str, str] = {}
    at: int | None = None


class MissingMessages(msgspec.Struct, frozen=True):
    """Messages of the page's range that are missing. `last` is null when no server knows the end. `before`: the index of
    the message that follows, or the number of messages."""

    stream: str
    first: int
    last: int | None
    reason: str
    before: int


class Last(msgspec.Struct, frozen=True):
    """Messages of a room, oldest first unless reversed. `whole`: these are all messages of the room, or as many as
    requested. `gaps`: missing ones. `next`: the `after` of the next page; null: there is none now."""

    room: str
    messages: list[RoomMessage]
    whole: bool
    gaps: list[MissingMessages]
    next: str | None


class Resume(msgspec.Struct, frozen=True):
    """Where to go on behind a page, for each kind of client: `event_id` as `Last-Event-ID`, `positions` of a join in
    base64, `offset` and `epoch` as `since` of an SDK of Centrifuge."""

    event_id: str
    positions: str
    offset: int
    epoch: str


class LatestOfKeys(msgspec.Struct, frozen=True):
    """The latest message of each key of a room, in the order in which they came. `whole`: no key was left out as one too
    many (`archive.keys_max`), and the archive missed no message since the oldest of them. `resume`: everything that is
    not on the pages comes behind it. `next`: the `after` of the next page; null: there is none."""

    room: str
    messages: list[RoomMessage]
    whole: bool
    resume: Resume
    next: str | None


def latest(room: str, page: Latest, next: str | None) -> bytes:
    """A page as `LatestOfKeys`."""
    known = {shown(stream): offset for stream, offset in known_offsets(page.positions).items()}
    place = positions.told(page.positions)
    resume = Resume(event_id(known), base64.b64encode(page.positions).decode(), place.offset, place.epoch)
    messages = [_message(each) for each in page.messages]
    document = {"room": room, "messages": messages, "whole": page.whole, "resume": resume, "next": next}
    return msgspec.json.encode(document)


def last(room: str, found: Found[bytes], *, turned: bool, next: str | None) -> bytes:
    """A page of a room as `Last`. `turned`: in the other order than it was found."""
    messages: list[msgspec.Raw] = []
    gaps: list[MissingMessages] = []
    for item in reversed(found.items) if turned else found.items:
        if isinstance(item, Gap):
            gaps.append(MissingMessages(shown(item.stream), item.first, item.last, item.reason, len(messages)))
        else:
            messages.append(_message(item))
    document = {"room": room, "messages": messages, "whole": found.whole, "gaps": gaps, "next": next}
    return msgspec.json.encode(document)


def _message(item: Recent[bytes] | Message) -> msgspec.Raw:
    if isinstance(item, Recent):
        return msgspec.Raw(item.value)
    document: dict[str, Any] = {"position": str(item.place), "sender": str(item.sender), **encoded(item.data)}
    if item.headers:
        document["headers"] = item.headers
    document["at"] = item.at_ms
    return msgspec.Raw(msgspec.json.encode(document))


class Counted(msgspec.Struct, frozen=True):
    """The members of a room. `ids`: users, as text; `truncated`: there are more; `partial`: a gateway did not answer.
    `next`: the `after` of the next page of users."""

    count: int
    ids: list[str]
    truncated: bool
    partial: bool
    next: str | None


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a command: `delivered` to all `members`, `nobody` if the room has none, or `expired` after this
    many `members` had it."""

    outcome: str
    members: int


class Replied(msgspec.Struct, frozen=True):
    """The reply of a responder. `responder`: its name, which is random; `sender`: its user. `encoding` is `base64` for
    data that is no UTF-8."""

    responder: str
    sender: str
    data: str
    encoding: str


class Ended(msgspec.Struct, frozen=True):
    """The number of sessions that were ended."""

    ended: int


class Hop(msgspec.Struct, frozen=True):
    """A node on the path, the node that asked it, and the time until its answer, by the clock of that node."""

    asked_by: str
    node: str
    ms: float


class Path(msgspec.Struct, frozen=True):
    """A proxy that was asked for a room's members, and the time until its answer; `ms` is null if a node did not answer.
    `hops`: the broker, then its gateways, slowest first."""

    proxy: str
    ms: float | None
    hops: list[Hop]


class Paths(msgspec.Struct, frozen=True):
    """The paths of a room through the nodes. `proxies`: the number of all proxies, of which some were asked."""

    room: str
    members: int | None
    paths: list[Path]
    proxies: int


class Rooms(msgspec.Struct, frozen=True):
    """Rooms by name. `matching`: all such rooms that were read; `truncated`: some rooms were not read; `partial`: a
    gateway did not answer; `next`: the `after` of the next page. `per_s` of a room: its messages per second since the face
    listed the rooms before, null if that was more than two minutes ago."""

    rooms: list[dict[str, Any]]
    matching: int
    truncated: bool
    partial: bool
    next: str | None


def batch_answer(said: Sequence[muster.Position | Problem]) -> Answer:
    """The results of a batch; the status tells whether a part failed."""
    entries = [
        BatchEntry(error=Failure(**each.short())) if isinstance(each, Problem) else BatchEntry(position=str(each))
        for each in said
    ]
    failed = sum(isinstance(each, Problem) for each in said)
    return Answer(207 if failed else 200, msgspec.json.encode(Batch(len(said) - failed, failed, entries)))
