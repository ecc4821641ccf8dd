"""Messages that wait for an outcome, and their check-backs.

    prepare:  a check-back, durable at Muster, due in `check_s`, with the message in it
    the handler's work
    tell:     send the message, withdraw the check-back

If the handler reports no outcome, the check-back fires: a signed POST (Standard Webhooks) that asks for it. `OK`: the
message is sent. `ABORT`: it is not. Not known: the answer is 503, and its topic's retries bring it again; after the
last one it is a dead letter. Owns these steps and the answers over HTTP. It must not know where an outcome is stored.
"""

import asyncio
import json
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from .callbacks import verified
from .calls import Call, Calls
from .errors import Invalid, MusterError
from .messages import Messages, Sent

CHECK_S: Final = 60.0
ANSWER_S: Final = 8.0
"""Limit of the time for an answer, in seconds; shorter than a callback's deadline, which is 10 s unless its topic sets
another."""
CHECK_TYPE: Final = "application/vnd.muster.check"
BODY_BYTES_MAX: Final = 1 << 20
"""Limit of a body; the schedule takes 1 MiB with the envelope."""
ID_BYTES: Final = 16
DELAY_S_MAX: Final = 3_650 * 86_400
LOG: Final = logging.getLogger("muster.checks")

Word = Literal["OK", "ABORT"]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A final outcome. `at_ms`: its time, in ms since 1970; None: use the current time."""

    word: Word
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The HTTP answer to a check-back: 200 once the outcome is final and carried out; any other status asks for another
    check-back."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message before its outcome. `in_s`: delay in seconds from the outcome; None: no delay. `call`: the handler's
    call."""

    topic: str
    type: str
    in_s: float | None
    body: bytes
    call: Call | None = None
    key: str = ""

    def encoded(self) -> bytes:
        """Encode as a check-back carries it: a line of JSON, then the body."""
        head: dict[str, Any] = {"topic": self.topic, "type": self.type, "in_s": self.in_s}
        if self.call is not None:
            head["call"] = [self.call.handler, self.call.hour, self.call.process, self.call.offset]
        if self.key:
            head["key"] = self.key
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.body


def decoded(content: bytes) -> Prepared:
    """Decode what `encoded` wrote. Raises `ValueError`."""
    head, line, body = content.partition(b"\n")
    said = json.loads(head)
    if not line or not isinstance(said, dict) or said.keys() - {"call", "key"} != {"topic", "type", "in_s"}:
        raise ValueError("malformed check-back")
    call = said.get("call")
    if call is not None and not (isinstance(call, list) and list(map(type, call)) == [str, int, str, int]):
        raise ValueError("malformed check-back")
    call = None if call is None else Call(*call)
    return Prepared(str(said["topic"]), str(said["type"]), said["in_s"], body, call, str(said.get("key", "")))


class Checks(ABC):
    """Messages with an outcome, and the answers to their check-backs: an ASGI application, for the callback of its topic.

    `calls`: the calls of this process by handler and whole hour.
    """

    def __init__(self, messages: Messages, *, check_topic: str, secret: str, check_s: float, answer_s: float) -> None:
        """`check_topic`: a topic for these check-backs alone; `secret`: the secret that this topic signs with. Raises
        `Invalid`."""
        verified(secret, {}, b"")
        if not check_s > 0:
            raise Invalid(f"invalid time until a check-back: {check_s} s")
        self.calls = Calls()
        self._messages, self._secret = messages, secret
        self._check_topic, self._check_s, self._answer_s = check_topic, check_s, answer_s

    def _prepared(self, topic: str, data: Any, in_s: float | None, type: str, key: str) -> Prepared:
        """Check the arguments and make the message. Raises `Invalid`."""
        if topic == self._check_topic:
            raise Invalid(f"topic {topic} is reserved for the check-backs; send to another one")
        if in_s is not None and not 0 <= in_s <= DELAY_S_MAX:
            raise Invalid(f"invalid delay {in_s} s (expected 0 to {DELAY_S_MAX})")
        if not isinstance(data, bytes):
            data, type = json.dumps(data, separators=(",", ":")).encode(), "application/json"
        return Prepared(topic, type, in_s, data, key=key)

    # --- steps ------------------------------------------------------------------------------------------------------

    def prepare(self, id: str, prepared: Prepared) -> None:
        """Make the check-back durable. Raises as `Messages.send`, and `Refused` where the message could not be sent
        later: its topic does not exist, or the key may not send to it."""
        self._messages.send(
            self._check_topic,
            prepared.encoded(),
            in_s=self._check_s,
            id=id,
            type=CHECK_TYPE,
            for_topic=prepared.topic,
        )

    def send(self, id: str, prepared: Prepared, outcome: Outcome) -> Sent:
        """Send a message whose outcome is OK; sending the same id again changes nothing. Raises as `Messages.send`."""
        at = None if prepared.in_s is None or outcome.at_ms is None else outcome.at_ms / 1_000 + prepared.in_s
        in_s = prepared.in_s if at is None else None
        return self._messages.send(
            prepared.topic, prepared.body, in_s=in_s, at=at, id=id, type=prepared.type, key=prepared.key
        )

    def withdraw(self, id: str) -> None:
        """Withdraw the check-back. One that is in flight follows the outcome. Raises as `Messages.cancel`."""
        self._messages.cancel(self._check_topic, id)

    def ended(self, prepared: Prepared, word: Word) -> None:
        """Record that the outcome of a call is final."""
        if prepared.call is not None:
            self.calls.end(prepared.call, committed=word == "OK")

    # --- check-backs ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def outcome(self, id: str, prepared: Prepared) -> Outcome | str:
        """Return the outcome of a message, or the reason why it is not known now."""

    @abstractmethod
    def outcome_sync(self, id: str, prepared: Prepared) -> Outcome | str:
        """The same for programs without an event loop. Raises `Invalid` if the outcome needs an event loop."""

    async def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """Answer a check-back: its headers, with names in lower case, and its body. Never raises because of malformed
        input."""
        asked = self._asked(headers, content)
        if isinstance(asked, Answer):
            return asked
        id, prepared = asked
        outcome = self._remembered(prepared) or await self.outcome(id, prepared)
        return await asyncio.to_thread(self._obeyed, id, prepared, outcome)

    def answer_sync(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """The same for a view of a framework without an event loop."""
        asked = self._asked(headers, content)
        if isinstance(asked, Answer):
            return asked
        id, prepared = asked
        return self._obeyed(id, prepared, self._remembered(prepared) or self.outcome_sync(id, prepared))

    def _asked(self, headers: Mapping[str, str], content: bytes) -> tuple[str, Prepared] | Answer:
        if not verified(self._secret, headers, content):
            return Answer(401, "the signature was not made with the secret of the topic of check-backs")
        try:
            return headers["webhook-id"], decoded(content)
        except ValueError:
            return Answer(400, "malformed check-back")

    def _remembered(self, prepared: Prepared) -> Outcome | None:
        """The outcome that this process knows. None for a message with a delay: the bits do not hold the moment from
        which it counts."""
        committed = None if prepared.call is None else self.calls.outcome(prepared.call)
        if committed is None or (committed and prepared.in_s is not None):
            return None
        return Outcome("OK" if committed else "ABORT")

    def _obeyed(self, id: str, prepared: Prepared, outcome: Outcome | str) -> Answer:
        if isinstance(outcome, str):
            return Answer(503, outcome)
        self.ended(prepared, outcome.word)
        if outcome.word == "OK":
            try:
                self.send(id, prepared, outcome)
            except MusterError as error:
                return Answer(503, f"the message is committed but not sent: {error}")
        return Answer(200, outcome.word)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            raise Invalid(f"unsupported scope {scope['type']} (check-backs come over HTTP)")
        content, more = b"", True
        while more and len(content) <= BODY_BYTES_MAX:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            content, more = content + part.get("body", b""), part.get("more_body", False)
        if len(content) > BODY_BYTES_MAX:
            said = Answer(413, f"the check-back is too long (limit {BODY_BYTES_MAX} bytes)")
        else:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            said = await self.answer(headers, content)
        text = said.text.encode()
        head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": said.status, "headers": head})
        await send({"type": "http.response.body", "body": text})


class Pending:
    """One message before its outcome. `id`: the message's id. `sent`: the answer to it; None: a check-back will send
    it."""

    def __init__(self, checks: Checks, prepared: Prepared, handler: str) -> None:
        self.id = secrets.token_hex(ID_BYTES)
        self.sent: Sent | None = None
        self._checks, self._prepared, self._handler = checks, prepared, handler

    def _prepare(self) -> None:
        """Begin the call. Raises as `Messages.send`: then the call is aborted."""
        self._prepared = replace(self._prepared, call=self._checks.calls.begin(self._handler))
        try:
            self._checks.prepare(self.id, self._prepared)
        except BaseException:
            self._checks.ended(self._prepared, "ABORT")
            raise

    def _commit(self, outcome: Outcome) -> None:
        """Report the commit; if Muster does not answer, the check-back sends the message."""
        self._checks.ended(self._prepared, "OK")
        try:
            self.sent = self._checks.send(self.id, self._prepared, outcome)
            self._checks.withdraw(self.id)
        except MusterError as failed:
            LOG.warning("message %s is committed, and a check-back will send it: %s", self.id, failed)

    def _abort(self) -> None:
        """Report that the effect did not happen, so no check-back is needed."""
        self._checks.ended(self._prepared, "ABORT")
        try:
            self._checks.withdraw(self.id)
        except MusterError as failed:
            LOG.warning("message %s is aborted, and a check-back will drop it: %s", self.id, failed)
