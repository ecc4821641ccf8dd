"""Hints to devices and audiences: what is pushed after a commit. A lost hint is harmless, as the inbox is the truth.

Owns the queues and their bounds, and the form of a hint. A hint has the user's unread count of the moment at which it
is sent: the counts of all users whose hints go out together are read together. It must not know SQL.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

import muster
from muster.clock import now_ms
from muster.sizes import SEND_BYTES_MAX
from muster_server.plane.ownership.errors import StoreError
from muster_server.plane.service import Figure
from muster_server.systems.inbox.records import Told
from muster_server.systems.inbox.shapes import Entry

USERS_MAX: Final = 65_536
"""Limit of users whose hint waits; the oldest is dropped, and its user reads at the next hint."""
ROOMS_MAX: Final = 1_024
AT_ONCE: Final = 64
"""Hints that go out together: one query counts the unread entries of all their users."""
EXPIRES_S: Final = 5.0
BEGIN_BYTES: Final = 512
"""Bytes of an entry's data that a hint has."""
AGAIN_S: Final = 1.0
WARN_S: Final = 60.0
ROOM: Final = "audience:{}"


class Hints:
    """Sends while `run` runs. `client`: returns the client of the instance, or raises `MusterError`. `unread`: as
    `Store.unread`."""

    def __init__(
        self,
        client: Callable[[], Awaitable[muster.Client]],
        unread: Callable[[Sequence[int], int], Awaitable[dict[int, int]]],
        log: structlog.typing.FilteringBoundLogger,
        *,
        pushes: bool,
    ) -> None:
        """`pushes`: presence runs, so users have devices."""
        self._client, self._unread, self._log, self._pushes = client, unread, log, pushes
        self._users: OrderedDict[int, Told] = OrderedDict()
        self._rooms: OrderedDict[int, Entry] = OrderedDict()
        self._more = asyncio.Event()
        self._place = asyncio.Event()
        """Set when a hint has gone out."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(("delivered", "not_online", "failed", "dropped", "published"), 0)
        self._warned = 0.0

    def entry(self, told: Told) -> None:
        """Have the devices of a user told of an entry; of several that wait, the last one is told."""
        if not self._pushes or not told.push:
            return
        self._users.pop(told.user, None)
        self._users[told.user] = told
        if len(self._users) > USERS_MAX:
            self._users.popitem(last=False)
            self._counts["dropped"] += 1
        self._more.set()

    def broadcast(self, number: int, entry: Entry) -> None:
        """Have the room of an audience told of a broadcast."""
        self._rooms[number] = entry
        if len(self._rooms) > ROOMS_MAX:
            self._rooms.popitem(last=False)
            self._counts["dropped"] += 1
        self._more.set()

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await self._more.wait()
                while len(self._tasks) >= AT_ONCE:
                    self._place.clear()
                    await self._place.wait()
                try:
                    client = await self._client()
                except muster.MusterError as error:
                    self._warn(error)
                    await asyncio.sleep(AGAIN_S)
                    continue
                while self._rooms and len(self._tasks) < AT_ONCE:
                    self._begin(self._publish(client, self._rooms.popitem(last=False)[1]))
                free = min(AT_ONCE - len(self._tasks), len(self._users))
                some = [self._users.popitem(last=False)[1] for _ in range(free)]
                counts = await self._counted(some)
                for told in some:
                    self._begin(self._send(client, told, counts.get(told.user)))
                if not self._rooms and not self._users:
                    self._more.clear()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _counted(self, some: Sequence[Told]) -> dict[int, int]:
        """The unread entries of users; none while the database does not answer: a hint without a count is a hint."""
        if not some:
            return {}
        try:
            return await self._unread([each.user for each in some], now_ms())
        except StoreError:
            return {}

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._place.set()

    async def _send(self, client: muster.Client, told: Told, unread: int | None) -> None:
        try:
            results = await client.send(told.user, hint(told, unread), expires=EXPIRES_S)
        except muster.MusterError as error:
            self._counts["failed"] += 1
            self._warn(error)
            return
        got = any(each.outcome == "delivered" for each in results)
        self._counts["delivered" if got else "not_online"] += 1

    async def _publish(self, client: muster.Client, entry: Entry) -> None:
        try:
            await client.publish(ROOM.format(entry.audience), broadcast_hint(entry), timeout=EXPIRES_S)
        except muster.MusterError as error:
            self._counts["failed"] += 1
            self._warn(error)
            return
        self._counts["published"] += 1

    def _warn(self, error: muster.MusterError) -> None:
        now = asyncio.get_running_loop().time()
        if not self._warned or now - self._warned > WARN_S:
            self._warned = now
            self._log.warning("hints of new entries wait or are lost; inboxes are whole", cause=str(error))

    def counters(self) -> list[Figure]:
        """Hints by outcome."""
        text = "Hints to devices and audiences by outcome; a lost one is harmless, as its user reads the inbox"
        return [(f'inbox_hints{{outcome="{name}"}}', text, float(count)) for name, count in self._counts.items()]

    @property
    def waiting(self) -> int:
        """Hints that wait."""
        return len(self._users) + len(self._rooms)


def hint(told: Told, unread: int | None) -> bytes:
    """The message to a user's devices: the number of the entry, the user's unread entries, and the begin of its data as
    text."""
    counted = {} if unread is None else {"unread": unread}
    return _written({"seq": told.seq, **counted, "kind": told.new.kind, "begin": begin(told.new.data)})


def broadcast_hint(entry: Entry) -> bytes:
    """The message in the room of an audience."""
    return _written({"id": entry.id, "kind": entry.kind, "begin": begin(entry.data)})


def begin(data: bytes) -> str:
    """The first bytes of an entry's data."""
    return data[:BEGIN_BYTES].decode(errors="ignore")


def _written(said: dict[str, Any]) -> bytes:
    """Data full of quotes takes twice its bytes in JSON."""
    made = json.dumps({"inbox": said}, ensure_ascii=False, separators=(",", ":")).encode()
    while len(made) > SEND_BYTES_MAX:
        said = said | {"begin": said["begin"][: len(said["begin"]) // 2]}
        made = json.dumps({"inbox": said}, ensure_ascii=False, separators=(",", ":")).encode()
    return made
