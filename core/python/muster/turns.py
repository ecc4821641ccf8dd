"""Runs one compiled engine on the loop. Knows no role.

An engine has one descriptor, which is readable whenever a turn is due. A call into the engine makes a turn due, by
itself or by `soon`, so all calls within one tick of the loop leave in one turn. No thread, no timer, no task.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

MORE: Final = 1
EVENTS: Final = 2

Event = tuple[Any, ...]


class Engine(Protocol):
    """The methods of an engine that `Turns` calls."""

    def fd(self) -> int:
        """Return the descriptor to watch for reading."""

    def turn(self) -> int:
        """Receive, run timers, send; bounded. Returns the bits `MORE` and `EVENTS`."""

    def events(self) -> list[Event]:
        """Take the events since the last call."""

    def close(self) -> None:
        """Close the sockets."""


class Turns:
    """Owns an engine's turns from now until `close`.

    An exception of the engine, or of `events`, is an internal error: turns end, and `failed` is called once. The engine
    stays open until `close`.
    """

    def __init__(
        self,
        engine: Engine,
        events: Callable[[list[Event]], None],
        failed: Callable[[BaseException], None],
        *,
        watched: bool = True,
    ) -> None:
        """`watched`: run a turn whenever the descriptor is readable; otherwise only when `turn` is called."""
        self._engine, self._events, self._failed = engine, events, failed
        import asyncio  # commands import this file for its types, and need no loop

        self._loop = asyncio.get_running_loop()
        self._fd = engine.fd() if watched else None
        self._queued = self._ended = self._closed = False
        self.count = 0
        """Number of turns so far."""
        self.after: Callable[[], None] | None = None
        """Called after each turn, while set."""
        if self._fd is not None:
            self._loop.add_reader(self._fd, self.turn)

    def stop(self) -> None:
        """End the turns. A second call does nothing."""
        self._ended = True
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None

    def close(self) -> None:
        """End the turns, and close the engine. A second call does nothing."""
        self.stop()
        if not self._closed:
            self._closed = True
            self._engine.close()

    def soon(self) -> None:
        """Run a turn in the loop's next pass. Cheaper for frequent calls than making the descriptor readable."""
        if not self._queued:
            self._queued = True
            self._loop.call_soon(self._turn_again)

    def abandon(self) -> None:
        """Release the engine in a forked child; its descriptors close when their last holder releases them.

        No goodbye is sent on the parent's session. The reader stays: the child shares the loop's selector with its
        parent.
        """
        self._ended = self._closed = True
        self._fd = None
        del self._engine

    def turn(self) -> bool:
        """Run one turn, unless one is queued behind the loop's other work. Returns whether the caller has to wait for
        that one, or turns have ended."""
        if self._queued or self._ended:
            return True
        try:
            bits = self._engine.turn()
            self.count += 1
            if bits & EVENTS:
                self._events(self._engine.events())
            if bits & MORE and not self._ended:
                self._queued = True
                self._loop.call_soon(self._turn_again)
            if self.after is not None:
                self.after()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            self.stop()
            self._failed(error)
            return True
        return self._queued

    def _turn_again(self) -> None:
        self._queued = False
        self.turn()
