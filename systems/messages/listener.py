"""The requests that a node of the system serves to others: named, each with a body in MessagePack.

Owns the port, and the types of the bodies. It must not know the meaning of requests.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from muster_server.control.errors import UserError
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import Asked, Refusal

FINISH_S: Final = 2.0
"""Time for requests in progress when the node ends."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request: the type of its body, and the function that answers it; a stream is answered in pieces."""

    kind: Any
    answer: Callable[[Any], Awaitable[Any]] | None = None
    pieces: Callable[[Any], AsyncIterator[Any]] | None = None
    waits: bool = False
    """The answer may take its time: it is cancelled once its asker is gone. All others are carried out to their end."""


class Listener:
    """Call `start`, then `end`."""

    def __init__(
        self,
        bind: tuple[str, int],
        token: bytes,
        questions: Mapping[str, Question],
        malformed: tuple[type[Exception], ...] = (),
    ) -> None:
        """`malformed`: errors of answers that mean a malformed body."""
        self._questions = {name: (each, msgspec.msgpack.Decoder(each.kind)) for name, each in questions.items()}
        self._server = Server(key_of(token), {Asked: self._answer})
        self._errors = _Errors(malformed)
        self._changing: set[asyncio.Task[Any]] = set()
        self._malformed = 0
        self.address = bind

    @property
    def asked(self) -> int:
        """Number of requests."""
        return self._server.asked

    @property
    def refused(self) -> int:
        """Number of connections of strangers, and of malformed requests."""
        return self._server.refused + self._malformed

    async def start(self) -> None:
        """Listen. Raises `UserError` if the port is in use."""
        host, port = self.address
        try:
            await self._server.start(host, port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise UserError(f"{host}:{port}: {why}; set another address") from None
        self.address = host, self._server.port

    async def end(self) -> None:
        """Answer the requests in progress, and close."""
        await self._server.stop(FINISH_S)
        if self._changing:
            await asyncio.wait(self._changing, timeout=FINISH_S)

    def _answer(self, asked: Asked) -> Awaitable[Any] | AsyncIterator[Any]:
        try:
            question, decoder = self._questions[asked.name]
            body = decoder.decode(asked.body)
        except KeyError:
            self._malformed += 1
            raise CallError("question", f"unknown request {asked.name!r:.80}") from None
        except Exception:
            self._malformed += 1
            raise
        if question.pieces is not None:
            return self._stream(question.pieces(body))
        assert question.answer is not None
        return self._one(question.answer(body), waits=question.waits)

    async def _one(self, answer: Awaitable[Any], *, waits: bool) -> Any:
        with self._errors:
            if waits:
                return await answer
            task = asyncio.ensure_future(answer)
            self._changing.add(task)
            task.add_done_callback(self._changing.discard)
            return await asyncio.shield(task)

    async def _stream(self, pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
        with self._errors:
            async with contextlib.aclosing(pieces) as each:  # type: ignore[type-var]
                async for piece in each:
                    yield piece


class _Errors(contextlib.AbstractContextManager[None]):
    """Errors that leave as those of a call, in all roles alike."""

    def __init__(self, malformed: tuple[type[Exception], ...]) -> None:
        self._malformed = malformed

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, Refusal):
            raise CallError(error.code, error.detail) from None
        if isinstance(error, Unreachable):
            raise CallError("unavailable", str(error)) from None
        if isinstance(error, StoreError):
            text = f"the schedule failed: {error}; the request may have been carried out"
            raise CallError("unavailable", text) from None
        if isinstance(error, self._malformed):
            raise CallError("question", str(error)) from None
