"""One partition that is served on a port: its clients, its write-behind, the reports of its counts; and its end.

Owns the order of start and end, and the replies of an owner that may have lost its ownership. Knows no registry.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from muster_server._engines import LikesEngine
from muster_server.plane.service import Figure
from muster_server.systems.likes.erasing import Eraser
from muster_server.systems.likes.lease import Lease
from muster_server.systems.likes.listener import Listener, Tls
from muster_server.systems.likes.means import Means, Mine
from muster_server.systems.likes.partition import Partition
from muster_server.systems.likes.slots import Node

LOOK_S: Final = 0.2
"""Seconds between checks whether the log still accepts changes."""
LAST_S: Final = 1.0
"""Limit of the last pass at the end, in seconds; the log has what it does not write."""
END_S: Final = 5.0
"""Limit of the wait for changes that wait for the log when the partition is given up, in seconds."""
UNSURE: Final = "CLUSTERDOWN this node may not own the slot any more and is checking the registry; try again"
MOVES: Final = "TRYAGAIN the slot is moving to another node"


class Served:
    """Call `start`, then `end` or `give_up`, then `close`. `lease`: set for a node among several."""

    def __init__(
        self, means: Means, partition: Partition, mine: Mine = lambda key: True, lease: Lease | None = None
    ) -> None:
        self.partition, self.engine, self.behind = partition, partition.engine, partition.behind
        self.mirror = means.mirror(self.engine, mine)
        options = means.settings.options
        guard = None if lease is None else self._look
        self.listener = Listener(self.engine, options.connections_max, partition.logged, guard=guard)
        self.eraser = Eraser(self.engine, self.behind, partition.logged, means.log)
        self.tasks: list[asyncio.Task[Any]] = []
        """Its tasks. If one ends, it has failed: the log accepts no more changes."""
        self._means, self._lease = means, lease
        self._unsure = self.lost = False
        """`lost`: a later owner has the log."""

    def start(self, bind: tuple[str, int], tls: Tls | None) -> tuple[str, int]:
        """Listen; returns the bound address. Raises `OSError` if it is in use."""
        bound = self.listener.start(bind, tls)
        work = [self.behind.run(), self.eraser.run(), _watch(self.engine), *self._means.shows(self.engine, self.mirror)]
        self.tasks = [asyncio.create_task(each) for each in work]
        return bound

    def tell(self, nodes: Sequence[Node], me: int, epoch: int) -> None:
        """Set the nodes that its clients are told."""
        self.engine.set_cluster(list(nodes), me, epoch)

    @property
    def failed(self) -> bool:
        """Whether it accepts no changes any more."""
        return self.lost or any(task.done() for task in self.tasks)

    # --- ownership ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Answer only what no other owner can have changed. Called before each answer to a question."""
        assert self._lease is not None
        sure = self._lease.lasts() or self._owns()
        if sure == self._unsure:
            self._unsure = not sure
            # With a log elsewhere, changes continue: the log itself refuses those of a former owner.
            self.engine.suspend(None if sure else UNSURE, self.lost)

    def _owns(self) -> bool:
        """Check the log in its folder: a node that takes it over claims it there first."""
        if self.lost or self.partition.logged is not None:
            return False
        try:
            owns = self.engine.owns()
        except (OSError, RuntimeError):
            return False
        self.lost = not owns
        return owns

    # --- its end ------------------------------------------------------------------------------------------------

    async def end(self, drain_s: float) -> None:
        """Answer everything accepted, for at most `drain_s` seconds; write behind once more; close the log."""
        await self._stop()
        await self.listener.drain(drain_s)
        await self._last_pass()
        self.listener.close()
        await self._close_log()

    async def give_up(self, *, lost: bool) -> bool:
        """Accept nothing more, answer everything accepted, close the log and forget all; clients wait until
        `send_away`.

        Returns False if changes still wait for the log: then it can only be closed.
        """
        self.eraser.paused = True
        if not lost:
            await self._last_pass()  # so that the next owner has less to write
        await self.listener.hold(END_S)
        self.listener.guard = None
        self.engine.suspend(MOVES, True)
        await self._stop()
        self.listener.unwatch()
        await self._close_log()
        if self.engine.pending():
            return False
        self.engine.forget()
        return True

    def send_away(self) -> None:
        """Send clients of a partition that was given up to the address of the last `tell`."""
        self.engine.suspend(None, True)
        self.listener.go_on()

    def close(self) -> None:
        """Close the rest."""
        self.listener.close()

    async def _stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _last_pass(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self.behind.tried()

    async def _close_log(self) -> None:
        await self.behind.close()
        if self.partition.logged is not None:
            await self.partition.logged.close()
        with contextlib.suppress(OSError):  # the log refuses, or has another owner, so it cannot be sealed
            await asyncio.to_thread(self.partition.close)

    # --- status -------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why changes are not accepted now, for example a full disk; empty if they are."""
        return self.engine.figures()["trouble"] or ""

    def notes(self) -> list[str]:
        """The same as text, for `muster status`."""
        refused = [f"changes are refused: {self.trouble}"] if self.trouble else []
        return [*refused, *self.eraser.notes()]

    def counters(self) -> list[Figure]:
        """Commands, batches, clients, passes."""
        listener, clients, figures = self.listener, self.listener.clients(), self.engine.figures()
        return [
            ("likes_commands", "Commands of clients", figures["commands"]),
            ("likes_feeds", "Pages of feeds that were answered, one for each partition", figures["feeds"]),
            ("likes_feed_items", "Items of these pages", figures["feed_items"]),
            ("likes_batches", "Groups of changes that were made durable with one sync", listener.batches),
            ("likes_clients", "Clients that connected", clients.accepted),
            ("likes_clients_refused", "Clients refused beyond likes.connections_max", clients.refused),
            ("likes_changes_not_taken", "Changes that the log did not accept", figures["not_taken"]),
            *self.behind.counters(),
            *self.eraser.counters(),
            *([] if self.mirror is None else self.mirror.counters()),
        ]

    def gauges(self) -> list[Figure]:
        """Items, users, likes, and waiting changes."""
        figures = self.engine.figures()
        return [
            ("likes_items", "Items", figures["items"]),
            ("likes_users", "Users who liked an item", figures["users"]),
            ("likes_held", "Likes of all items", figures["likes"]),
            ("likes_leaderboards", "Leaderboards", figures["leaderboards"]),
            ("likes_members", "Members of all leaderboards", figures["members"]),
            ("likes_offset", "Offset of the log", figures["offset"]),
            (
                "likes_refuses",
                "Partitions that accept no change now, because their disk is full",
                int(bool(figures["trouble"])),
            ),
            ("likes_connections", "Connected clients", self.listener.clients().connected),
            *self.behind.gauges(),
            *self.eraser.gauges(),
            *([] if self.mirror is None else self.mirror.gauges()),
        ]


def moves(opened: int, handed_over: int, taken_away: int) -> list[Figure]:
    """Counters of a node's partitions."""
    return [
        ("likes_partitions_opened", "Partitions that this node started to serve", opened),
        ("likes_partitions_handed_over", "Partitions that this node handed over to others", handed_over),
        ("likes_partitions_taken_away", "Partitions that others took over from this node", taken_away),
    ]


def shares(served: int, shut: int) -> list[Figure]:
    """Gauges of a node's partitions."""
    return [
        ("likes_partitions", "Partitions that this node serves", served),
        ("likes_partitions_shut", "Partitions of this node that it cannot open", shut),
    ]


async def _watch(engine: LikesEngine) -> None:
    """Raise `OSError` once the log accepts no more changes: it has to be opened again."""
    while (why := engine.refusal()) is None:  # noqa: ASYNC110 - the engine tells no one else
        await asyncio.sleep(LOOK_S)
    raise OSError(f"the log accepts no more changes: {why}")
