"""Delayed messages over HTTP, for any program: send, cancel, postpone, advance, read. Needs nothing besides Python.

Owns the shapes of questions and answers (`docs/messages.md`), and two clients: `Messages` with one connection, for
threads, and `AsyncMessages` with several, for asyncio. It must not know rooms.
"""

import base64
import http.client
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

from .errors import Invalid, Refused, TimedOut, Unavailable
from .face import CONNECTIONS, Face, problem

TIMEOUT_S: Final = 30.0
BATCH_MAX: Final = 1_000
IDLE_S: Final = 5.0
"""A connection that was idle for longer, in seconds, is replaced: a face closes idle ones."""

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
    result: Any = None
    """Of a task that is done: what its handler returned."""


class Messages:
    """One connection to an HTTP face. Several threads may share it; their calls run one after another.

    A call that gets no answer raises `Unavailable` or `TimedOut`: it may have succeeded. Repeat it with the same id.
    """

    def __init__(self, url: str, *, key: str, timeout: float = TIMEOUT_S) -> None:
        """`url`: `http://host:port` or `https://…` of the face, or of the proxy in front of it. Raises `Invalid`."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise Invalid(f"invalid URL {url!r:.80} of an HTTP face (expected for example http://127.0.0.1:8080)")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._headers = {"x-api-key": key, "content-type": "application/json"}
        self._lock = threading.Lock()
        self._used = 0.0

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        with self._lock:
            self._connection.close()

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
    ) -> Sent:
        """Send one message; it is durable when this returns.

        `data`: bytes are a body of this `type`; anything else is sent as JSON. `in_s`: delay in seconds, or `at`: due
        time; without both it is due at once. Messages with the same `id` are one message: give an id, so that the call
        can be repeated. `target`: a URL that replaces the topic's; the key needs the scope for it. `for_topic`: for a
        check-back, the topic of the message that it carries; the call is refused if that topic does not exist. `key`:
        messages of one key go one after another, or a few at once, as the topic says. Raises `Refused`, `Unavailable`,
        `TimedOut`.
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

    def _changed(self, topic: str, id: str, verb: str, move: Mapping[str, int]) -> Changed:
        return _changed(self._ask("POST", f"{_path(topic, id)}/{verb}", move))

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        body = None if document is None else json.dumps(document, separators=(",", ":")).encode()
        with self._lock:
            if time.monotonic() - self._used > IDLE_S:
                self._connection.close()
            try:
                self._connection.request(method, path, body, self._headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except TimeoutError:
                self._connection.close()
                raise TimedOut("no answer in time; the call may have succeeded") from None
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise Unavailable(f"the HTTP face does not answer: {error or type(error).__name__}") from None
            self._used = time.monotonic()
        try:
            said = json.loads(content)
        except ValueError:
            raise Unavailable(f"unexpected answer {answer.status}: the server is not a Muster HTTP face") from None
        if answer.status >= 400:
            raise problem(said)
        return said


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
    return made


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
        raise Invalid(f"{len(messages)} messages; a batch has at most {BATCH_MAX}")
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
        result=said.get("result"),
    )


def body_of(said: Mapping[str, Any]) -> bytes:
    """The body of a message in JSON."""
    return base64.b64decode(said["base64"]) if "base64" in said else json.dumps(said.get("data")).encode()


def _changed(said: Mapping[str, Any]) -> Changed:
    return Changed(said["outcome"], said.get("state"), _seconds(said.get("due_at")))


def _sent(said: Mapping[str, Any]) -> Sent:
    return Sent(said["id"], said["due_at"] / 1_000, said["state"], said.get("duplicate", False))
