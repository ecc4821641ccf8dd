"""One event stream over HTTP: the events of a run, from its beginning to its end, even if a scheduler dies meanwhile.

Owns the format of events and the reason of the stream's end. It must not know how a run is followed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import msgspec

from muster_server.systems.fleet.questions import Event
from muster_server.systems.http.access import Caller
from muster_server.systems.http.front import Ongoing
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import BEGIN, COMMENT, Send, event, goodbye


class Face(Protocol):
    """The set of all streams."""

    @property
    def draining(self) -> bool:
        """Whether all must end."""

    def open(self, stream: "RunStream") -> None:
        """Add a stream. Raises `Problem`."""

    def close(self, stream: "RunStream") -> None:
        """Remove a stream."""


class RunStream:
    """Sends `events` to one reader."""

    def __init__(
        self, face: Face, events: AsyncGenerator[Event], kind: str, caller: Caller, heartbeat_s: float, stall_s: float
    ) -> None:
        self._face, self._events, self._kind, self._caller = face, events, kind, caller
        self._heartbeat_s, self._stall_s = heartbeat_s, stall_s
        self._woken = asyncio.Event()
        self.wake: Callable[[], None] = self._woken.set

    async def run(self, send: Send, request: Ongoing, headers: Any) -> None:
        """Send until the run, or the stream, is ended."""
        request.stream()
        connection = request.connection
        if connection is not None:
            connection.on_lost = self.wake
        self._face.open(self)
        coming = asyncio.ensure_future(anext(self._events))
        try:
            async with asyncio.timeout(None) as stalled:
                loop = asyncio.get_running_loop()

                async def say(body: bytes, more: bool = True) -> None:
                    stalled.reschedule(loop.time() + self._stall_s)
                    await send({"type": "http.response.body", "body": body, "more_body": more})
                    stalled.reschedule(None)

                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await say(BEGIN)
                while connection is None or not connection.gone:
                    if reason := self._ended():
                        await say(goodbye(reason), more=False)
                        return
                    if not coming.done():
                        if not await self._waited(coming):
                            await say(COMMENT)
                        continue
                    try:
                        said = coming.result()
                    except StopAsyncIteration:
                        await say(b"", more=False)
                        return
                    except Problem:
                        await say(goodbye("unavailable"), more=False)
                        return
                    coming = asyncio.ensure_future(anext(self._events))
                    await say(event(said.what, document(said), ended_id(said.run) if said.what == "ended" else ""))
        except TimeoutError:
            if connection is not None:
                connection.abort()
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            await self._events.aclose()
            self._face.close(self)

    async def _waited(self, coming: asyncio.Future[Event]) -> bool:
        """Wait for an event; returns False if none came within a heartbeat's interval."""
        self._woken.clear()
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            done, _ = await asyncio.wait(
                (coming, woken), timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            woken.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await woken
        return bool(done)

    def _ended(self) -> str:
        """The reason for which the stream must end now; empty while it continues."""
        if self._face.draining:
            return "draining"
        if not self._caller.may("measure", self._kind):
            return "revoked"
        if self._caller.until is not None and time.time() > self._caller.until:
            return "expired"
        return ""


def ended_id(run: str) -> str:
    """The id of the last event of a run: a client that sends it needs nothing more."""
    return f"{run}/ended"


def document(said: Event) -> dict[str, Any]:
    """An event as JSON in one line, whatever text a client wrote."""
    found: dict[str, Any] = msgspec.to_builtins(said)
    if said.what == "result":
        found["value"] = msgspec.Raw(msgspec.json.format(said.value, indent=-1))
    return found
