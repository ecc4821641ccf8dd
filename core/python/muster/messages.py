"""Delayed messages over HTTP, for any program: send, cancel, postpone, advance, read. Needs nothing besides Python.

Owns the shapes of questions and answers (`docs/messages.md`), and two clients: `Messages` with one connection, for
threads, and `AsyncMessages` with several, for asyncio. It must not know rooms.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from .errors import Invalid, Refused
from .face import CONNECTIONS, Face
from .face_sync import TIMEOUT_S, SyncFace

BATCH_MAX: Final = 1_000

Outcome = Literal["done", "already fired", "unknown", "cancelled", "expired"]
"""The result of a change. `done`: it took place. `already fired`: a callback was made or is in progress. `unknown`: no
such message yet; the change is applied if it comes. `cancelled`, `expired`: the message ended this way before."""
State = Literal["scheduled", "firing", "retry", "done", "dead", "cancelled", "expired"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A durable message. Times are seconds since 1970."""

    id: str
    due_at: float
    state: State
    duplicate: bool
    """The message was durable before, and nothing changed."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome of a change; state and due time if the message is known."""

    outcome: Outcome
    state: State | None
    due_at: float | None


@dataclass(frozen=True, slots=True)
class Message:
    """The present state of a message. `next_at`: the next attempt, or the end of the claim while it fires."""

    id: str
    topic: str
    state: State
    due_at: float
    attempts: int
    type: str
    body: bytes
    next_at: float | None
    expires_at: float | None
    key: str = ""
    tags: tuple[str, ...] = ()
    result: Any = None
    """Of a task that is done: what its handler returned."""


@dataclass(frozen=True, slots=True)
class ByTag:
    """Counts of a job by tag, so far. `looked`: waiting messages of the topic that it looked at; `matching`: those with the
    tag; `done`: those that it cancelled or moved; `late`: those that fired, ended or were changed otherwise before."""

    looked: int
    matching: int
    done: int
    late: int


class Messages:
    """One connection to an HTTP face. Several threads may share it; their calls run one after another.

    A call that gets no answer raises `Unavailable` or `TimedOut`: it may have succeeded. Repeat it with the same id.
    """

    def __init__(self, url: str, *, key: str, timeout: float = TIMEOUT_S) -> None:
        """`url`: `http://host:port` or `https://…` of the face, or of the proxy in front of it. Raises `Invalid`."""
        self._face = SyncFace(url, key=key, timeout=timeout)

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        self._face.close()

    def send(
        self,
        topic: str,
        data: Any,
        *,
        in_s: float | None = None,
        at: float | None = None,
        id: str | None = None,
        window_s: float = 0.0,
        expires_at: float | None = None,
        target: str = "",
        type: str = "application/octet-stream",
        for_topic: str = "",
        key: str = "",
        tags: Sequence[str] = (),
    ) -> Sent:
        """Send one message; it is durable when this returns.

        `data`: bytes are a body of this `type`; anything else is sent as JSON. `in_s`: delay in seconds, or `at`: due
        time; without both it is due at once. Messages with the same `id` are one message: give an id, so that the call
        can be repeated. `target`: a URL that replaces the topic's; the key needs the scope for it. `for_topic`: for a
        check-back, the topic of the message that it carries; the call is refused if that topic does not exist. `key`:
        messages of one key go one after another, or a few at once, as the topic says. `tags`: up to 8, by which it is
        counted, cancelled and moved with others. Raises `Refused`, `Unavailable`, `TimedOut`.
        """
        body = message(
            data,
            in_s=in_s,
            at=at,
            id=id,
            window_s=window_s,
            expires_at=expires_at,
            target=target,
            type=type,
            for_topic=for_topic,
            key=key,
            tags=tags,
        )
        return _sent(self._ask("POST", _path(topic), body))

    def send_many(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> list[Sent | Refused]:
        """Send up to 1,000 messages made by `message`. The answers are in this order. Raises as `send`."""
        if not _checked_batch(messages):
            return []
        return _sent_many(self._ask("POST", _path(topic), list(messages)))

    def get(self, topic: str, id: str) -> Message | None:
        """Return a message; None where it is unknown, or was forgotten after its end."""
        try:
            said = self._ask("GET", _path(topic, id))
        except Refused as refused:
            if refused.code == "not_found":
                return None
            raise
        return _message(said)

    def cancel(self, topic: str, id: str) -> Changed:
        """Withdraw a message."""
        return self._changed(topic, id, "cancel", {})

    def postpone(self, topic: str, id: str, *, by_s: float | None = None, to: float | None = None) -> Changed:
        """Move the due time later: by a duration, or to `to`. Raises `Refused`, with `conflict` if the new time is
        earlier."""
        return self._changed(topic, id, "postpone", _move(by_s, to))

    def advance(self, topic: str, id: str, *, by_s: float | None = None, to: float | None = None) -> Changed:
        """Move the due time earlier: by a duration, or to `to`. Raises `Refused`, with `conflict` if the new time is
        later."""
        return self._changed(topic, id, "advance", _move(by_s, to))

    def count_tagged(self, topic: str, tag: str) -> Iterator[ByTag]:
        """Count the waiting messages of a topic that have a tag: iterate over the counts so far, page by page; the last ones
        are those of all."""
        return self._tagged(topic, tag, "", {})

    def cancel_tagged(self, topic: str, tag: str) -> Iterator[ByTag]:
        """Withdraw the waiting messages that have a tag and were sent before this call: iterate over the counts so far, to
        the end. A job that was broken off can be repeated."""
        return self._tagged(topic, tag, "/cancel", {})

    def move_tagged(self, topic: str, tag: str, *, to: float) -> Iterator[ByTag]:
        """Move them to a due time, in seconds since 1970, as `cancel_tagged` withdraws them."""
        return self._tagged(topic, tag, "/move", {"to": round(to * 1_000)})

    def _tagged(self, topic: str, tag: str, verb: str, document: Mapping[str, int]) -> Iterator[ByTag]:
        pages = _Pages(topic, tag, verb)
        while not pages.over:
            said = self._ask("POST" if verb else "GET", pages.path, document if verb else None)
            yield pages.take(said)

    def _changed(self, topic: str, id: str, verb: str, move: Mapping[str, int]) -> Changed:
        return _changed(self._ask("POST", f"{_path(topic, id)}/{verb}", move))

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        return self._face.ask(method, path, document)


class AsyncMessages:
    """Several connections to an HTTP face, for a program of asyncio: calls go on side by side. Belongs to one loop.

    A call that is not answered raises `Unavailable` or `TimedOut`: it may have been done. Repeat it with the same id.
    """

    def __init__(self, url: str, *, key: str, timeout: float = TIMEOUT_S, connections: int = CONNECTIONS) -> None:
        """`url`: as of `Messages`. `connections`: questions at once; further ones wait. Raises `Invalid`."""
        self._face = Face(url, key=key, timeout=timeout, connections=connections)

    async def __aenter__(self) -> "AsyncMessages":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._face.close()

    async def send(self, topic: str, data: Any, **more: Any) -> Sent:
        """Send one message; it is durable when this returns. The arguments are those of `Messages.send`."""
        return _sent(await self._face.ask("POST", _path(topic), message(data, **more)))

    async def send_many(self, topic: str, messages: Sequence[Mapping[str, Any]]) -> list[Sent | Refused]:
        """As `Messages.send_many`."""
        if not _checked_batch(messages):
            return []
        return _sent_many(await self._face.ask("POST", _path(topic), list(messages)))

    async def get(self, topic: str, id: str) -> Message | None:
        """As `Messages.get`."""
        try:
            return _message(await self._face.ask("GET", _path(topic, id)))
        except Refused as refused:
            if refused.code == "not_found":
                return None
            raise

    async def cancel(self, topic: str, id: str) -> Changed:
        """As `Messages.cancel`."""
        return await self._change(topic, id, "cancel", {})

    async def postpone(self, topic: str, id: str, *, by_s: float | None = None, to: float | None = None) -> Changed:
        """As `Messages.postpone`."""
        return await self._change(topic, id, "postpone", _move(by_s, to))

    async def advance(self, topic: str, id: str, *, by_s: float | None = None, to: float | None = None) -> Changed:
        """As `Messages.advance`."""
        return await self._change(topic, id, "advance", _move(by_s, to))

    def count_tagged(self, topic: str, tag: str) -> AsyncIterator[ByTag]:
        """As `Messages.count_tagged`."""
        return self._tagged(topic, tag, "", {})

    def cancel_tagged(self, topic: str, tag: str) -> AsyncIterator[ByTag]:
        """As `Messages.cancel_tagged`."""
        return self._tagged(topic, tag, "/cancel", {})

    def move_tagged(self, topic: str, tag: str, *, to: float) -> AsyncIterator[ByTag]:
        """As `Messages.move_tagged`."""
        return self._tagged(topic, tag, "/move", {"to": round(to * 1_000)})

    async def _tagged(self, topic: str, tag: str, verb: str, document: Mapping[str, int]) -> AsyncIterator[ByTag]:
        pages = _Pages(topic, tag, verb)
        while not pages.over:
            yield pages.take(await self._face.ask("POST" if verb else "GET", pages.path, document if verb else None))

    async def _change(self, topic: str, id: str, verb: str, move: Mapping[str, int]) -> Changed:
        return _changed(await self._face.ask("POST", f"{_path(topic, id)}/{verb}", move))


def message(
    data: Any,
    *,
    in_s: float | None = None,
    at: float | None = None,
    id: str | None = None,
    window_s: float = 0.0,
    expires_at: float | None = None,
    target: str = "",
    type: str = "application/octet-stream",
    for_topic: str = "",
    key: str = "",
    tags: Sequence[str] = (),
) -> dict[str, Any]:
    """Make one message for `Messages.send_many`. Arguments as for `Messages.send`. Raises `Invalid`."""
    if in_s is not None and at is not None:
        raise Invalid("in_s and at exclude each other: give one of them")
    made: dict[str, Any]
    made = {"base64": base64.b64encode(data).decode(), "type": type} if isinstance(data, bytes) else {"data": data}
    if id is not None:
        made["id"] = id
    if in_s is not None:
        made["in_ms"] = round(in_s * 1_000)
    if at is not None:
        made["at"] = round(at * 1_000)
    if window_s:
        made["window_ms"] = round(window_s * 1_000)
    if expires_at is not None:
        made["expires_at"] = round(expires_at * 1_000)
    if target:
        made["target"] = target
    if for_topic:
        made["for_topic"] = for_topic
    if key:
        made["key"] = key
    if tags:
        made["tags"] = list(tags)
    return made


class _Pages:
    """The pages of a job by tag, and its counts so far."""

    def __init__(self, topic: str, tag: str, verb: str) -> None:
        self._path = f"/api/v1/topics/{quote(topic, safe='')}/tags/{quote(tag, safe='')}{verb}"
        self._words: dict[str, Any] = {}
        self._sums = [0, 0, 0, 0]
        self.over = False

    @property
    def path(self) -> str:
        """The next page."""
        return f"{self._path}?{urlencode(self._words)}" if self._words else self._path

    def take(self, said: Mapping[str, Any]) -> ByTag:
        """The counts with those of one more page."""
        names = ("looked", "matching", "done", "late")
        self._sums = [total + said[name] for total, name in zip(self._sums, names, strict=True)]
        self._words = {"until": said["until"], "after": said["next"]}
        self.over = said["next"] is None
        return ByTag(*self._sums)


def _path(topic: str, id: str = "") -> str:
    path = f"/api/v1/topics/{quote(topic, safe='')}/messages"
    return f"{path}/{quote(id, safe='')}" if id else path


def _move(by_s: float | None, to: float | None) -> dict[str, int]:
    if (by_s is None) == (to is None):
        raise Invalid("give either by_s or to")
    if by_s is not None:
        return {"by_ms": round(by_s * 1_000)}
    assert to is not None
    return {"to": round(to * 1_000)}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000


def _checked_batch(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is something to send. Raises `Invalid`."""
    if len(messages) > BATCH_MAX:
        raise Invalid(f"too many messages in a batch: {len(messages)} (limit {BATCH_MAX})")
    return bool(messages)


def _sent_many(said: Mapping[str, Any]) -> list[Sent | Refused]:
    return [
        _sent(each) if "problem" not in each else Refused(each["problem"]["detail"], each["problem"]["code"])
        for each in said["messages"]
    ]


def _message(said: Mapping[str, Any]) -> Message:
    return Message(
        id=said["id"],
        topic=said["topic"],
        state=said["state"],
        due_at=said["due_at"] / 1_000,
        attempts=said["attempts"],
        type=said["type"],
        body=body_of(said),
        next_at=_seconds(said.get("next_at")),
        expires_at=_seconds(said.get("expires_at")),
        key=said.get("key", ""),
        tags=tuple(said.get("tags", ())),
        result=said.get("result"),
    )


def body_of(said: Mapping[str, Any]) -> bytes:
    """The body of a message in JSON."""
    return base64.b64decode(said["base64"]) if "base64" in said else json.dumps(said.get("data")).encode()


def _changed(said: Mapping[str, Any]) -> Changed:
    return Changed(said["outcome"], said.get("state"), _seconds(said.get("due_at")))


def _sent(said: Mapping[str, Any]) -> Sent:
    return Sent(said["id"], said["due_at"] / 1_000, said["state"], said.get("duplicate", False))
