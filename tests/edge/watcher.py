"""An unchanged SDK in a process of its own that watches rooms, and the judge of what it was told.

Seen = acknowledged or announced, nothing twice, and few resubscriptions.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from tests.edge import sdks

LINE_MAX: Final = 1 << 20


class Watcher:
    """The events of an SDK, by room."""

    def __init__(self) -> None:
        self.events = defaultdict[str, list[dict[str, Any]]](list)
        """By room; those of the connection have the room ""."""
        self.pid = 0
        """Its process."""
        self._changed = asyncio.Event()

    def take(self, event: dict[str, Any]) -> None:
        """One more event."""
        self.events[event.get("room", "")].append(event)
        self._changed.set()

    def seen(self, room: str) -> list[int]:
        """The data of a room's publications, in order."""
        return [event["data"] for event in self.events[room] if event["event"] == "publication"]

    def count(self, event: str) -> Counter[str]:
        """How often each room had such an event."""
        return Counter(each["room"] for events in self.events.values() for each in events if each["event"] == event)

    async def until(self, condition: Any) -> None:
        """Wait for events until this holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def faults(self, acknowledged: Mapping[str, Sequence[int]]) -> list[str]:
        """The faults in the SDK's events, against messages that were acknowledged while it watched."""
        found: list[str] = []
        for room, numbers in acknowledged.items():
            seen = self.seen(room)
            found += [f"{room}: {n} came {count} times" for n, count in Counter(seen).items() if count > 1]
            found += [f"{room}: {b} came behind {a}" for a, b in itertools.pairwise(seen) if b < a]
            silent = self._silent(room)
            missing = sorted(set(numbers) - set(seen))
            found += [f"{room}: nothing said that {n} is missing" for n in missing if silent(n)]
        return found

    def _silent(self, room: str) -> Any:
        """Whether no loss was announced between the numbers around one that is missing."""
        announced: list[tuple[int, int]] = []
        last, lost = -1, False
        for event in self.events[room]:
            if event["event"] == "publication":
                if lost:
                    announced.append((last, event["data"]))
                last, lost = event["data"], False
            # A room that the server subscribes to is unsubscribed at a gap, and subscribed again at once.
            elif event["event"] == "unsubscribed" or (
                event["event"] == "subscribed" and event["wasRecovering"] and not event["recovered"]
            ):
                lost = True
        return lambda number: not any(first < number < behind for first, behind in announced)


@contextlib.asynccontextmanager
async def watching(url: str, token: str, rooms: Sequence[str], made: Sequence[str] = ()) -> AsyncIterator[Watcher]:
    """A watcher whose rooms are subscribed. `made`: rooms that the server subscribes it to."""
    program = sdks.SDKS / "js" / "watch.mjs"  # it finds its packages beside itself
    shutil.copyfile(sdks.PROGRAMS / "js" / "watch.mjs", program)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", str(program), url, token, *rooms, stdin=pipe, stdout=pipe, limit=LINE_MAX
    )
    assert process.stdout is not None
    assert process.stdin is not None
    watcher, output = Watcher(), process.stdout
    watcher.pid = process.pid

    async def read() -> None:
        async for line in output:
            watcher.take(json.loads(line))

    reading = asyncio.create_task(read())
    try:
        await watcher.until(lambda: set(watcher.count("subscribed")) == {*rooms, *made})
        yield watcher
    finally:
        process.stdin.close()
        await process.wait()
        await reading
