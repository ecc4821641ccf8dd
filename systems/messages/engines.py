"""The threads that make callbacks: one for each list of networks that topics allow.

Owns which thread makes the callbacks of a topic. A thread keeps connections for all its topics, so no topic can use a
connection to a private address that only another topic allows. It must not know fires or results.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from muster_server import _engines
from muster_server.systems.messages.topics import Topic

Why = Literal["unreachable", "failing", "paused"]


class Engines:
    """Several engines with the interface of one `_engines.FiringEngine`. `answered` is called when there are results to
    collect."""

    def __init__(
        self,
        answered: Callable[[], None],
        allowed: Sequence[str],
        *,
        authorities: Sequence[bytes],
        identity: tuple[Sequence[bytes], bytes] | None,
        **settings: float | None,
    ) -> None:
        """`allowed`: networks that the configuration allows to all topics."""
        self._answered, self._allowed, self._settings = answered, tuple(allowed), settings
        self._authorities, self._identity = authorities, identity
        self._by: dict[tuple[str, ...], _engines.FiringEngine] = {}
        self._told: _engines.FiringEngine = self._of(())
        """The engine of the last piece."""

    def _of(self, allowed: tuple[str, ...]) -> _engines.FiringEngine:
        engine = self._by.get(allowed)
        if engine is None:
            settings = msgspec.json.encode({"allowed": [*self._allowed, *allowed], **self._settings})
            engine = _engines.FiringEngine(settings, authorities=self._authorities, identity=self._identity)
            self._by[allowed] = engine
            asyncio.get_running_loop().add_reader(engine.fd(), self._answered)
        return engine

    def topics(self, topics: Sequence[Topic]) -> None:
        """Use these topics. Calls in progress keep theirs."""
        for allowed in {each.allowed for each in topics}:
            self._of(allowed)
        for allowed, engine in self._by.items():
            engine.topics(
                [
                    (
                        each.number,
                        each.callback,
                        each.secrets,
                        each.timeout_s,
                        each.retries_ms,
                        each.jitter,
                        each.retry_after_max_s,
                    )
                    for each in topics
                    if each.allowed == allowed
                ]
            )

    def take(self, now: int, fires: bytes) -> bytes | None:
        """Make callbacks. Returns the fires that no thread makes; None: all are made."""
        left: bytes | None = fires
        for engine in self._by.values():
            left = engine.take(now, left) if left is not None else None
        return left

    def collect(self, now: int, random: int) -> None:
        """Process answers. Raises `OSError` if a thread ended."""
        for engine in self._by.values():
            engine.collect(now, random)

    def tell(self, results: bytes) -> None:
        """Add results."""
        self._of(()).tell(results)

    def piece(self, limit: int) -> bytes:
        """The oldest results of one thread; the next call takes another thread."""
        ready = [each for each in self._by.values() if each.waiting()]
        self._told = ready[0] if ready else self._told
        return self._told.piece(limit)

    def told(self, taken: bytes) -> None:
        """Report a byte for each result of the last piece; those with 0 stay."""
        self._told.told(taken)
        for allowed, engine in self._by.items():
            if engine is self._told:
                self._by[allowed] = self._by.pop(allowed)  # the others are next
                return

    def waiting(self) -> int:
        """Number of results."""
        return sum(each.waiting() for each in self._by.values())

    def under_way(self) -> int:
        """Number of callbacks."""
        return sum(each.under_way() for each in self._by.values())

    def made(self) -> dict[str, int]:
        """Attempts by outcome."""
        made: dict[str, int] = {}
        for engine in self._by.values():
            for name, count in engine.made().items():
                made[name] = made.get(name, 0) + count
        return made

    def held(self) -> list[tuple[int | None, str, Why, float]]:
        """Targets that get nothing now: topic (None: the whole origin), URL, reason, seconds left."""
        return [each for engine in self._by.values() for each in engine.held()]

    def close(self) -> None:
        """Cut off the calls in progress."""
        for engine in self._by.values():
            asyncio.get_running_loop().remove_reader(engine.fd())
            engine.close()
