"""The relay: copies changes from the store's stream to a durable log, at least once, in the order of the stream.

Owns its progress. A user's changes are all in one partition of one site's log, so their order is kept. Must not know
the content of a change.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec
import structlog

from muster_server.plane.log import Batch, Log, LogError, Logs
from muster_server.plane.ownership.errors import Fenced, StoreError
from muster_server.systems.presence.store import Shard

APPENDED: Final = 4_000
"""Limit of changes that are appended to the log at once."""
LOOK_S: Final = 0.5
"""Seconds between checks without a wake-up."""
AGAIN_S: Final = 1.0
LATE_S: Final = 5.0
"""Seconds after which a change counts as late; a working log has it sooner."""
KEPT: Final = 1_000_000
"""Records of the log that stay for consumers, 250 B each."""
TRIM_EACH: Final = 50_000
RECALL: Final = 10_000
"""Records of the log that a writer reads at its start, before those that its store lacks: packets behind a gap come to
it again."""
RECALL_S: Final = 30.0
"""Limit of reading the log at the start, in seconds: a million records take 2 s."""


class Recalled(msgspec.Struct, frozen=True):
    """A change as the log stores it."""

    user: str
    device: str
    state: str
    gateway: int
    at_ms: int
    id: str


class Relay:
    """Runs until it is cancelled; call `close` then."""

    waiting_max: Final = 1_900_000
    """Changes in the stream from which on the oldest are dropped (a little less than `scripts.FEED_MAX`)."""

    def __init__(
        self, store: Shard, logs: Logs, name: str, partition: int, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._store, self._logs, self._name, self._partition, self._log = store, logs, name, partition, log
        self.published = ""
        """The stream's id of the last change that the log has."""
        self.count = 0
        self.oldest_s = 0.0
        """Age of the oldest change that is not published, in seconds, by the store."""
        self._why = "starting"
        self._opened: Log | None = None
        self._streams = 0
        """Number of times that the stream was rebuilt."""
        self._stopped = False
        self._woken = asyncio.Event()
        self._trimmed = 0

    @property
    def why(self) -> str:
        """Why changes wait; empty: they are published as they come."""
        if self._why or self.oldest_s < LATE_S:
            return self._why
        return f"the log has accepted no change for {self.oldest_s:.0f} s"

    def wake(self) -> None:
        """Called when the stream has more changes."""
        self._woken.set()

    def begin_anew(self) -> None:
        """Called when the stream was rebuilt: it begins with the changes that the log may lack."""
        self.published, self._streams = "", self._streams + 1
        self.wake()

    def stop(self) -> None:
        """Called when another writer has the shard, whose relay continues."""
        self._stopped = True
        self.wake()

    def notes(self, unpublished: int) -> list[str]:
        """The line of `muster status` while changes wait because the log does not take them."""
        return [f"{unpublished} changes wait for the log: {self.why}"] if unpublished and self.why else []

    async def close(self) -> None:
        """Close the log."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None
        await self._logs.close()

    async def recall(self, logged: int, published: str) -> list[Recalled]:
        """The last reported change of each device, where the store may have another state.

        These are records of the log from just before an offset, or all if the store lost its own, then the stream's
        changes after an id. None if the log does not answer."""
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
        except (StoreError, TimeoutError, msgspec.MsgspecError) as error:
            self._log.warning("the last reported changes are not known", cause=str(error) or type(error).__name__)
            await self._reopen()
            return []
        return list(last.values())

    async def run(self, epoch: int, published: str) -> None:
        """Publish the changes after an id of the stream. `epoch`: the writer's."""
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
            except StoreError as error:
                self._why = str(error)
                if said != str(error):
                    said = str(error)
                    self._log.warning("changes wait: cannot publish them", cause=said)
                if isinstance(error, LogError | Fenced):
                    await self._reopen()
                await asyncio.sleep(AGAIN_S)

    async def _step(self, epoch: int) -> bool:
        """Publish some changes; returns whether there were any."""
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
            except StoreError as error:
                self._log.debug("the log did not close", cause=str(error))


def _batches(told: list[Batch]) -> Iterator[Batch]:
    """The same changes in the same order, in batches that suit the log."""
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
