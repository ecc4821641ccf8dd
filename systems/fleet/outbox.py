"""Results out: each run that has ended goes to a topic of delayed messages, whose target gets it: a URL, a room, Kafka.

Owns the form of these messages and their ids. It must not know a database or a topic. The end of a run and its place in
the outbox are written together; a message that was handed over and not noted is handed over again with the same id,
which the topic takes once.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import structlog

from muster_server.plane.ways import NotTaken, Way
from muster_server.systems.fleet.records import ResultRow, RunRow, Store
from muster_server.systems.fleet.schema import run_name

AT_ONCE: Final = 50
LOOK_S: Final = 0.5
AGAIN_S: Final = 5.0
WARN_S: Final = 60.0
PART_BYTES_MAX: Final = 60_000
"""Limit of a message, which fits into a room's; a run with more results is several messages."""
JSON: Final = "application/json"


class Outbox:
    """Hands over while `run` runs."""

    def __init__(
        self, store: Store, epoch: int, way: Way, topic: str, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._store, self._epoch, self._way, self._topic, self._log = store, epoch, way, topic, log
        self._ended = asyncio.Event()
        self._warned = 0.0
        self.sent = 0
        """Messages that the topic has taken."""
        self.waiting = 0
        """Runs whose results wait, at the last look."""
        self.error = ""
        """Why they wait; empty: they do not."""

    def wake(self) -> None:
        """A run has ended."""
        self._ended.set()

    async def run(self) -> None:
        """Hand over until cancelled. Raises `StoreError`."""
        while True:
            self._ended.clear()
            try:
                more = await self.turn()
                self.error = ""
            except NotTaken as error:
                self._warn(str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            if not more:
                await self._ended.wait()
                await asyncio.sleep(LOOK_S)  # runs that end together are one look

    async def turn(self) -> bool:
        """Hand over the oldest runs, and return whether more wait. Raises `NotTaken`, `StoreError`."""
        found, self.waiting = await self._store.outbox(AT_ONCE)
        over = []
        try:
            for name in found:
                row = await self._store.run(*name)
                if row is not None:  # otherwise it was deleted by its age
                    await self._put(row, await self._store.results_of(name))
                over.append(name)
        finally:
            if over:
                await self._store.handed_over(self._epoch, over)
                self.waiting -= len(over)
        return self.waiting > 0

    async def _put(self, row: RunRow, results: Sequence[ResultRow]) -> None:
        for number, body in enumerate(messages(row, results)):
            try:
                await self._way.put(self._topic, f"fleet:{row.task}:{row.minute}:{number}", body, JSON)
            except NotTaken as error:
                if not error.lasting:
                    raise
                raise NotTaken(f"topic {self._topic} refuses results: {error}") from None
            self.sent += 1

    def _warn(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if text != self.error or now - self._warned > WARN_S:
            self._warned = now
            self._log.warning("results wait", cause=text)
        self.error = text


def messages(row: RunRow, results: Sequence[ResultRow]) -> list[bytes]:
    """The messages of a run that has ended, each a JSON document; the same run gives the same ones."""
    parts = list(_parts([msgspec.json.encode(_result(each)) for each in _ordered(results)]))
    head = {
        "run": run_name(row.task, row.minute),
        "task": row.task,
        "minute": row.minute,
        "kind": row.kind,
        "target": row.target,
        "selector": row.selector,
        "state": row.state,
        "reason": row.reason,
        "started_ms": row.started_ms,
        "wanted": row.wanted,
        "asked": sum(map(len, row.asked)),
        "done": row.done,
        "replaced": len(row.replaced or ()),
        "missed": row.missed,
        "parts": len(parts),
    }
    return [
        msgspec.json.encode({**head, "part": number, "results": [msgspec.Raw(each) for each in part]})
        for number, part in enumerate(parts)
    ]


def _ordered(results: Sequence[ResultRow]) -> list[ResultRow]:
    return sorted(results, key=lambda each: (each.at_ms, each.client))


def _parts(encoded: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The results of each message: at least one message, also without results."""
    part: list[bytes] = []
    size = 0
    for each in encoded:
        if part and size + len(each) > PART_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(each)
        size += len(each) + 1
    yield part


def _result(row: ResultRow) -> dict[str, Any]:
    said: dict[str, Any] = {"client": row.client, "mark": row.mark, "ok": row.ok, "at_ms": row.at_ms, "ms": row.ms}
    return said | {"value": msgspec.Raw(row.value)} | ({"error": row.error} if row.error else {})
