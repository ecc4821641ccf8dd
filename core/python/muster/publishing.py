"""The publishing half of a client: rooms, messages that wait for credit, calls that wait for an answer.

`Client` has the verbs and their documentation; `Publishing` carries them out. The engine keeps what it has taken and
repeats it until the room's owner has it.
"""

import asyncio
import math
from collections import OrderedDict, deque
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .deadlines import Deadlines
from .errors import MusterError, Refused, TimedOut, TooLong
from .inputs import check_data, check_message, check_name, full_name
from .items import Position

if TYPE_CHECKING:
    from .client import Client

_TAKEN, _NO_CREDIT, _TOO_LONG = range(3)
"""The engine's answers to a message."""
PROXY: Final = 1
"""The side of the sessions that publish."""


@dataclass(slots=True)
class _Publication:
    """A room that this client publishes to. Messages that wait for credit are sent first, in order."""

    name: str
    number: int | None = None
    """The engine's number of the room; None while the engine has no entry for it."""
    waiting: "OrderedDict[int, tuple[bytes, bytes | None]]" = field(default_factory=OrderedDict)
    """Unsent messages by ticket."""
    full: bool = False
    """The engine reported that there is no credit, and has not reported new credit since."""
    writable: "asyncio.Future[None] | None" = None
    watchers: int = 0
    refused: MusterError | None = None
    told: bool = False
    """A caller has received the refusal."""


@dataclass(slots=True, eq=False)
class _Flush:
    """A call that waits until what was published before it is acknowledged."""

    done: "asyncio.Future[None]"
    rooms: "deque[tuple[_Publication, int, int]]"
    """For each room: the last ticket that waited for credit, 0 if none did, and the sequence behind its last message."""


class Publishing:
    """Carries out the verbs of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._publications: dict[str, _Publication] = {}  # by full room name
        self._by_number: dict[int, _Publication] = {}
        self._untold: MusterError | None = None
        self._tickets: dict[int, tuple[_Publication, asyncio.Future[Position]]] = {}
        self._ticket = 0
        self._flushes: list[_Flush] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The client opens on this loop."""
        self._deadlines = Deadlines(loop, self._tickets)

    async def publish(self, room: str, data: bytes, block: bytes | None, seconds: float) -> Position:
        """Publish a message with encoded headers; return once it is numbered."""
        client = self._client
        publication = self._known(room)
        self._ticket = ticket = self._ticket + 1
        done: asyncio.Future[Position] = client.loop.create_future()
        self._tickets[ticket] = publication, done
        try:
            if publication.waiting or not self._push(publication, data, ticket, block):
                check_message(data, block)
                publication.waiting[ticket] = data, block
            if seconds < math.inf:
                self._deadlines.add(ticket, seconds)
            return await done
        except TimeoutError as error:
            if isinstance(error, MusterError):
                raise
            late = client.too_late(f"publish to {room}", seconds, PROXY)
            raise self._late(room, publication, late) from None
        finally:
            if self._tickets.pop(ticket, None) is not None:  # no outcome yet
                publication.waiting.pop(ticket, None)
            if publication.number is None:
                self._drop_unwanted(publication)

    def _late(self, room: str, publication: _Publication, error: TimedOut) -> MusterError:
        """The error of a publish that timed out, with the reason if the owner or the proxy delayed it."""
        client = self._client
        said = None if client.closed or publication.number is None else client.engine.put_off(publication.number)
        if said is None or said[0] not in {"busy", "rate_limited"}:
            return error
        if said[0] == "busy":
            return Refused(f"publish to {room}", "busy")
        limit = (
            "above the rate at which a proxy accepts messages of one user (rate_limited; user_message_rate, "
            "user_byte_rate)"
        )
        return TimedOut(f"{error}; {limit}; try again in {max(said[1], 0.1):.1f} s")

    def publish_nowait(self, room: str, data: bytes, block: bytes | None) -> bool:
        """Publish if there is credit; False if there is none."""
        publication = self._known(room)
        taken = not publication.waiting and self._push(publication, data, 0, block)
        if publication.number is None:
            self._drop_unwanted(publication)
        return taken

    async def writable(self, room: str, seconds: float) -> None:
        """Return when there may be credit."""
        publication = self._open(room)
        if publication.number is not None and not publication.full:
            return
        client = self._client
        if publication.writable is None:
            publication.writable = client.loop.create_future()
        publication.watchers += 1
        try:
            await client.wait(asyncio.shield(publication.writable), seconds, f"wait for {room} to take messages", PROXY)
        finally:
            publication.watchers -= 1
            if not publication.watchers:  # with no caller left, the refusal would be lost
                publication.writable = None
            self._drop_unwanted(publication)

    async def flush(self, seconds: float) -> None:
        """Return once everything published before is acknowledged. Raises the refusals that no caller got."""
        client, count = self._client, self.unacknowledged()
        if count:
            rooms = deque(
                (each, next(reversed(each.waiting), 0), self._end(each)) for each in self._publications.values()
            )
            flush = _Flush(client.loop.create_future(), rooms)
            self._flushes.append(flush)
            client.turns.after = self._check_flushed
            try:
                await client.wait(flush.done, seconds, f"flush of {count} unacknowledged messages", PROXY)
            finally:
                if flush in self._flushes:
                    self._flushes.remove(flush)
        for publication in self._publications.values():
            if publication.refused is not None and not publication.told:
                publication.told = True
                raise copy(publication.refused)
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold

    def unacknowledged(self) -> int:
        """Number of messages that no owner has acknowledged yet."""
        engine = self._client.engine
        waited = [each for each in self._publications.values() if each.refused is None]
        placed = [each.number for each in waited if each.number is not None]
        return sum(len(each.waiting) for each in waited) + sum(engine.unacknowledged(each)[1] for each in placed)

    # --- rooms --------------------------------------------------------------------------------------------------

    def _known(self, room: str) -> _Publication:
        """Return the known publication, without the checks of `_open` where they are not needed."""
        publication = self._publications.get(room) or self._publications.get(full_name(room))
        if publication is None or publication.refused is not None or not self._client.publishes:
            return self._open(room)
        self._client.check_here("this client")
        return publication

    def _open(self, room: str) -> _Publication:
        self._client.check_publishes()
        full = full_name(room)
        publication = self._publications.get(full)
        if publication is None:
            check_name(room)
            self._client.check_side(PROXY)
            publication = self._publications[full] = _Publication(room)
            self._place(publication)
        if publication.refused is not None:
            publication.told = True
            raise copy(publication.refused)
        return publication

    def _place(self, publication: _Publication) -> bool:
        """Get a number of the engine, which may close a room without unacknowledged messages for it."""
        placed = self._client.engine.publication(publication.name)
        if placed is None:
            return False
        publication.number, closed = placed
        self._by_number[publication.number] = publication
        if closed is not None:
            gone = self._by_number.pop(closed)
            del self._publications[full_name(gone.name)]
            if not gone.told:
                self._untold = self._untold or gone.refused
        return True

    def _drop_unwanted(self, publication: _Publication) -> None:
        """Forget a room without a number once no call waits for one."""
        if publication.number is None and not publication.watchers and not publication.waiting:
            self._publications.pop(full_name(publication.name), None)
            self._check_flushed()

    def _push(self, publication: _Publication, data: bytes, ticket: int, block: bytes | None) -> bool:
        if publication.number is None:
            return False
        try:
            said = self._client.engine.publish(publication.number, data, ticket, block)
        except TypeError:
            check_data(data)
            raise
        if said == _TAKEN:
            self._client.turns.soon()
            return True
        if said == _NO_CREDIT:
            publication.full = True
            return False
        if said == _TOO_LONG:
            check_message(data, block)
            raise TooLong("the headers do not fit into one datagram (payload_bytes); nothing was sent")
        raise copy(publication.refused or Refused(f"publish to {publication.name}", "unknown"))

    def _end(self, publication: _Publication) -> int:
        """The sequence behind the last message that the engine has taken."""
        return sum(self._client.engine.unacknowledged(publication.number)) if publication.number is not None else 0

    def _check_flushed(self) -> None:
        for flush in list(self._flushes):
            while flush.rooms and self._is_flushed(flush):
                flush.rooms.popleft()
            if not flush.rooms:
                self._flushes.remove(flush)
                if not flush.done.done():
                    flush.done.set_result(None)
        if not self._flushes:
            self._client.turns.after = None

    def _is_flushed(self, flush: _Flush) -> bool:
        """Whether its first room has nothing more to wait for."""
        publication, ticket, end = flush.rooms[0]
        number = publication.number
        if publication.refused is not None:
            return True
        if ticket:
            if next(iter(publication.waiting), ticket + 1) <= ticket:
                return False
            end = self._end(publication)  # the engine has taken them meanwhile
            flush.rooms[0] = publication, 0, end
        if number is None or self._by_number.get(number) is not publication:  # closed, as it had none
            return True
        return self._client.engine.unacknowledged(number)[0] >= end

    # --- events -------------------------------------------------------------------------------------------------

    def on_published(self, tickets: list[int], positions: list[Position]) -> None:
        """These messages have their positions."""
        for ticket, position in zip(tickets, positions, strict=True):
            known = self._tickets.pop(ticket, None)
            if known is not None and not known[1].done():
                known[1].set_result(position)

    def on_writable(self, number: int) -> None:
        """There is credit for this room again."""
        publication = self._by_number.get(number)
        if publication is not None:
            self._send_waiting(publication)

    def on_vacant(self) -> None:
        """The engine can publish to another room."""
        for publication in [each for each in self._publications.values() if each.number is None]:
            if not self._place(publication):
                break
            self._send_waiting(publication)

    def on_refused(self, number: int, code: str) -> None:
        """The owner or the proxy refuses this room."""
        publication = self._by_number.get(number)
        if publication is not None:
            self._refuse(publication, Refused(f"publish to {publication.name}", code))

    def on_error(self, error: MusterError) -> None:
        """The session is refused: so is every room that is not yet."""
        for publication in list(self._publications.values()):
            if publication.refused is None:
                self._refuse(publication, error)

    def on_error_over(self, error: MusterError) -> None:
        """The session opens again after this refusal."""
        for publication in self._publications.values():
            if publication.refused is error:
                publication.refused, publication.told = None, False

    def close(self, error: MusterError) -> None:
        """End all calls with this error."""
        for flush in self._flushes:  # first: refused rooms would look flushed
            if not flush.done.done():
                fail(flush.done, error)
        self._flushes.clear()
        for publication in self._publications.values():
            self._refuse(publication, error)
        self._deadlines.close()

    def _refuse(self, publication: _Publication, error: MusterError) -> None:
        publication.refused = error
        publication.waiting.clear()
        for known, done in self._tickets.values():
            if known is publication and not done.done():
                publication.told = True
                done.set_exception(copy(error))
        if publication.writable is not None and not publication.writable.done():
            publication.told = True
            fail(publication.writable, error)
        publication.writable = None
        self._check_flushed()

    def _send_waiting(self, publication: _Publication) -> None:
        publication.full = False
        while publication.waiting:
            ticket, (data, block) = next(iter(publication.waiting.items()))
            try:
                if not self._tickets[ticket][1].done() and not self._push(publication, data, ticket, block):
                    return
            except Refused:  # its event follows and reaches all waiting calls
                return
            del publication.waiting[ticket]
        if publication.writable is not None and not publication.writable.done():
            publication.writable.set_result(None)
        publication.writable = None


def fail(future: "asyncio.Future[Any]", error: MusterError) -> None:
    """End a call with a copy of this error."""
    future.set_exception(copy(error))
    future.exception()  # marks the exception as retrieved, since perhaps no caller waits
