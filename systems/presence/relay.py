"""The relay: changes from the store's stream to a durable log, at least once, in the order of the stream.

Owns how far it has come. A user's changes are all in one partition of one site's log, so their order stays. Must not know
what a change says.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec
import structlog

from muster_server.plane.log import Batch, Log, LogError, Logs
from muster_server.systems.presence.store import Shard, StoreError

APPENDED: Final = 4_000
"""Changes that the log takes at once."""
LOOK_S: Final = 0.5
"""Without a call to wake up."""
AGAIN_S: Final = 1.0
LATE_S: Final = 5.0
"""A log that answers has a change sooner."""
KEPT: Final = 1_000_000
"""Records of the log that stay for consumers, 250 B each."""
TRIM_EACH: Final = 50_000
RECALL: Final = 10_000
"""Records of the log that a writer reads at its start, before those that its store does not know: packets behind a gap come
to it again."""
RECALL_S: Final = 30.0
"""Time to read the log at the start: a million records take 2 s."""


class Recalled(msgspec.Struct, frozen=True):
    """A change as the log has it."""

    user: str
    device: str
    state: str
    gateway: int
    at_ms: int
    id: str


class Relay:
    """Runs until it is cancelled; then `close`."""

    waiting_max: Final = 1_900_000
    """Changes in the stream from which on the oldest go (`scripts.FEED_MAX` less some)."""

    def __init__(
        self, store: Shard, logs: Logs, name: str, partition: int, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._store, self._logs, self._name, self._partition, self._log = store, logs, name, partition, log
        self.published = ""
        """The place of the last change that the log has."""
        self.count = 0
        self.oldest_s = 0.0
        """Age of the oldest change that is not published, as the store says."""
        self._why = "starting"
        self._opened: Log | None = None
        self._streams = 0
        """How often the stream was made anew."""
        self._stopped = False
        self._woken = asyncio.Event()
        self._trimmed = 0

    @property
    def why(self) -> str:
        """Why changes wait; empty: they are published as they come."""
        if self._why or self.oldest_s < LATE_S:
            return self._why
        return f"the log has not taken changes for {self.oldest_s:.0f} s"

    def wake(self) -> None:
        """The stream has more."""
        self._woken.set()

    def begin_anew(self) -> None:
        """The stream was made anew: it begins with what the log may lack."""
        self.published, self._streams = "", self._streams + 1
        self.wake()

    def stop(self) -> None:
        """Another writer has the shard, and its relay goes on."""
        self._stopped = True
        self.wake()

    async def close(self) -> None:
        """Close the log."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None
        await self._logs.close()

    async def recall(self, logged: int, published: str) -> list[Recalled]:
        """The last change told of each device, where the store may know otherwise: records of the log from just before an
        offset, all where the store lost its own, then what the stream has after a place. None where the log is away."""
        last: dict[tuple[str, str], Recalled] = {}
        try:
            async with asyncio.timeout(RECALL_S):
                self._opened = await self._logs.open(self._name, self._partition)
                start = max(logged - RECALL, self._opened.start)
                if start < self._opened.end:
                    async for _, batch in self._opened.read(start):
                        for record in batch.records():
                            change = msgspec.json.decode(record, type=Recalled)
                            last[change.user, change.device] = change
                while waiting := await self._store.changes(published):
                    published = waiting[-1].place
                    for record in (record for entry in waiting for record in entry.told.records()):
                        change = msgspec.json.decode(record, type=Recalled)
                        last[change.user, change.device] = change
        except (LogError, StoreError, TimeoutError, msgspec.MsgspecError) as error:
            self._log.warning("what was told last is not known", cause=str(error) or type(error).__name__)
            await self._reopen()
            return []
        return list(last.values())

    async def run(self, epoch: int, published: str) -> None:
        """Publish what comes after a place of the stream. `epoch`: the writer's."""
        said, self.published = "", published
        while not self._stopped:
            try:
                if self._opened is None:
                    self._opened = await self._logs.open(self._name, self._partition)
                self._woken.clear()
                if not await self._step(epoch):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), LOOK_S)
                self._why = said = ""
            except (LogError, StoreError) as error:
                self._why = str(error)
                if said != str(error):
                    said = str(error)
                    self._log.warning("changes wait: they are not published", cause=said)
                if isinstance(error, LogError):
                    await self._reopen()
                await asyncio.sleep(AGAIN_S)

    async def _step(self, epoch: int) -> bool:
        """Whether there was anything."""
        assert self._opened is not None
        entries = await self._store.changes(self.published)
        if not entries:
            return False
        stream = self._streams
        for batch in _batches([entry.told for entry in entries]):
            await self._opened.append(batch)
            self.count += batch.count
        if stream == self._streams:
            self.published = entries[-1].place
            await self._store.published(epoch, self.published, self._opened.end)
        if self._opened.end - self._trimmed > TRIM_EACH:
            self._trimmed = self._opened.end
            await self._opened.truncate(max(0, self._opened.end - KEPT))
        return True

    async def _reopen(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            try:
                await opened.close()
            except LogError as error:
                self._log.debug("the log did not close", cause=str(error))


def _batches(told: list[Batch]) -> Iterator[Batch]:
    """The same changes in the same order, as many at once as the log takes well."""
    waiting: list[Batch] = []
    for batch in told:
        if waiting and sum(each.count for each in waiting) + batch.count > APPENDED:
            yield _joined(waiting)
            waiting = []
        if batch.count > APPENDED:
            records = list(batch.records())
            yield from (Batch.of(records[at : at + APPENDED]) for at in range(0, len(records), APPENDED))
        else:
            waiting.append(batch)
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Batch]) -> Batch:
    return Batch(b"".join(batch.payload for batch in batches), sum(batch.count for batch in batches))
