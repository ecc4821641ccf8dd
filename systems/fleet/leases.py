"""The clients that are online: a lease of (client, epoch) that every sign of life renews.

Owns epochs and the ends of leases. It must not know a broker, a topic or a clock: times in ms of a steady clock come
in. Connects, disconnects and last wills are hints: they shorten a lease, they do not end it, so that clients survive
their broker's end. Of two clients with one name the later epoch has the lease (I-1); the caller notifies both.
"""

from enum import StrEnum
from heapq import heapify, heappop, heappush

import msgspec


class Renewal(StrEnum):
    NEW = "new"
    """The client was offline, or had an earlier epoch: it is online now, with this one."""
    KEPT = "kept"
    STALE = "stale"
    """A later epoch is known: this one is superseded."""


class _Lease(msgspec.Struct):
    epoch: int
    until_ms: int | None
    """None: the lease has ended."""


class Leases:
    def __init__(self, *, lease_ms: int, hint_ms: int) -> None:
        """A lease lasts `lease_ms` from the last sign of life; a hint that the client left shortens it to `hint_ms`."""
        if not 0 < hint_ms <= lease_ms:
            raise ValueError(f"invalid hint_ms {hint_ms} and lease_ms {lease_ms} (expected 0 < hint_ms <= lease_ms)")
        self.lease_ms = self._lease_ms = lease_ms
        self._hint_ms = hint_ms
        self._leases: dict[str, _Lease] = {}
        self._ends: list[tuple[int, str]] = []
        """At least one entry for each online client, not later than its lease's end: a renewal moves no entry."""

    def renew(self, now_ms: int, client: str, epoch: int) -> Renewal:
        """Renew the lease after a sign of life."""
        until = now_ms + self._lease_ms
        lease = self._leases.get(client)
        if lease is not None and epoch < lease.epoch:
            return Renewal.STALE
        if lease is not None and epoch == lease.epoch and lease.until_ms is not None:
            lease.until_ms = max(lease.until_ms, until)
            return Renewal.KEPT
        if lease is None or lease.until_ms is None:
            heappush(self._ends, (until, client))
        self._leases[client] = _Lease(epoch, until)
        return Renewal.NEW

    def hint(self, now_ms: int, client: str, epoch: int) -> bool:
        """Note that the client may have left; returns whether that shortened its lease. Its next sign of life renews
        it."""
        lease = self._leases.get(client)
        until = now_ms + self._hint_ms
        if lease is None or lease.epoch != epoch or lease.until_ms is None or lease.until_ms <= until:
            return False
        lease.until_ms = until
        heappush(self._ends, (until, client))
        if len(self._ends) > 64 + 4 * len(self._leases):  # hints and renewals alternated
            self._ends = [(held.until_ms, name) for name, held in self._leases.items() if held.until_ms is not None]
            heapify(self._ends)
        return True

    def expire(self, now_ms: int) -> list[tuple[str, int]]:
        """The clients whose leases ended, each with its epoch, once."""
        ended = []
        while self._ends and self._ends[0][0] < now_ms:
            client = heappop(self._ends)[1]
            lease = self._leases.get(client)
            if lease is None or lease.until_ms is None:
                continue
            if lease.until_ms < now_ms:
                lease.until_ms = None
                ended.append((client, lease.epoch))
            else:
                heappush(self._ends, (lease.until_ms, client))
        return ended

    def forget(self, client: str) -> None:
        """Forget the client and its epoch: an older one may come again. For a client that left permanently."""
        self._leases.pop(client, None)

    def latest(self, client: str) -> int:
        """The latest epoch that was online; 0: none was."""
        lease = self._leases.get(client)
        return 0 if lease is None else lease.epoch

    def epoch(self, client: str) -> int | None:
        """The epoch that is online; None if the client is offline."""
        lease = self._leases.get(client)
        return None if lease is None or lease.until_ms is None else lease.epoch
