"""One event stream over HTTP: what happens to a run, from its beginning to its end, over the death of a scheduler too.

Owns the form of the events. It must not know how a run is followed.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from muster_server.systems.fleet.questions import Event
from muster_server.systems.http.access import Caller
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import Stream, Streams, event


class RunStream(Stream):
    """Sends `events` to one reader."""

    def __init__(
        self,
        streams: Streams,
        events: AsyncGenerator[Event],
        kind: str,
        caller: Caller,
        heartbeat_s: float,
        stall_s: float,
    ) -> None:
        super().__init__(streams, caller, heartbeat_s, stall_s)
        self._events, self._kind = events, kind
        self._away = False
        self._coming: asyncio.Future[Event] | None = None

    def begin(self) -> bytes:
        """Nothing; events are asked for from now on."""
        self._ask()
        return b""

    def take(self) -> bytes | None:
        """The next event. None: the run has ended."""
        if self._coming is None or not self._coming.done():
            return b""
        try:
            told = self._coming.result()
        except StopAsyncIteration:
            return None
        except Problem:
            self._away = True
            return b""
        if self._ended():
            return b""
        self._ask()
        return event(told.what, document(told), ended_id(told.run) if told.what == "ended" else "")

    def allowed(self) -> bool:
        """Whether the caller may still see the run."""
        return self.caller.may("measure", self._kind)

    def over(self) -> str:
        """`unavailable` where no scheduler answers."""
        return "unavailable" if self._away else ""

    async def stop(self) -> None:
        """Leave the run."""
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)
        await self._events.aclose()

    def _ask(self) -> None:
        self._coming = asyncio.ensure_future(anext(self._events))
        self._coming.add_done_callback(lambda _: self.wake())


def ended_id(run: str) -> str:
    """The id of the last event of a run: a reader that knows it wants nothing more."""
    return f"{run}/ended"


def document(said: Event) -> dict[str, Any]:
    """An event as JSON in one line, whatever a client wrote."""
    found: dict[str, Any] = msgspec.to_builtins(said)
    if said.what == "result":
        found["value"] = msgspec.Raw(msgspec.json.format(said.value, indent=-1))
    return found
