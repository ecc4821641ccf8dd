"""The events of a watch: their statuses beside their devices, and of an invisible user that it is offline.

Owns the form of states and of statuses in a watch, and the users that are hidden from it. Must not know stores.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muster_server.systems.presence.described import unseen
from muster_server.systems.presence.feeds import Recent
from muster_server.systems.presence.questions import ALL, Update, User
from muster_server.systems.presence.status import Status, others_see, shown
from muster_server.systems.presence.statuses import is_status, told_of

Look = Callable[[Sequence[int]], Awaitable[list[User]]]
"""The present states of users. Raises `CallError`."""


class Seen:
    """One watch. The states and changes that it gives are those that its owner may see."""

    def __init__(self, statuses: Mapping[int, Status], own: int) -> None:
        """`statuses`: the present ones of its users. `own`: the user who watches, which sees itself as it is."""
        self._statuses, self._own = dict(statuses), own

    def _hides(self, user: int) -> Status | None:
        """The status of a user that is offline for this watch."""
        status = self._statuses.get(user)
        return status if status is not None and status.mode == "invisible" and self._own not in {user, ALL} else None

    def standing(self, users: Sequence[User]) -> list[Update]:
        """The present states of devices, and the statuses."""
        told: list[Update] = []
        for user in users:
            told += self._states(user)
            if (status := self._status(user.user)) is not None:
                told.append(Update(status_record(user.user, status), status=True))
        return told

    async def told(self, change: Recent, look: Look) -> list[Update]:
        """Return what this watch is told of a change. Raises `CallError`."""
        if not is_status(change.id):
            return [] if self._hides(change.user) else [Update(change.record, change.id)]
        before, was = self._status(change.user), self._hides(change.user)
        self._take(change)
        after = self._status(change.user)
        turned = bool(was) != bool(self._hides(change.user))
        if after == before and not turned:
            return []
        told = [each for user in await look([change.user]) for each in self._states(user)] if turned else []
        # The last one alone has the id: a watch that is cut before it resumes before all of them.
        return [*told, Update(status_record(change.user, after, change), change.id, status=True)]

    async def missed(self, changes: Sequence[Recent], look: Look) -> list[Update]:
        """The changes since the last one that was read. Users whose status changed meanwhile are told as they are now: they
        may have been invisible. Raises `CallError`."""
        turned = list(dict.fromkeys(each.user for each in changes if is_status(each.id)))
        kept = [each for each in changes if not is_status(each.id) and not self._hides(each.user)]
        told = [Update(each.record, each.id) for each in kept if each.user not in turned]
        for user in await look(turned) if turned else ():
            told += self._states(user)
            told.append(Update(status_record(user.user, self._status(user.user)), status=True))
        if turned:
            last = next(each for each in reversed(changes) if is_status(each.id) and each.user == turned[-1])
            record = status_record(last.user, self._status(last.user), last)
            told[-1] = Update(record, last.id, status=True)
        return told

    def _take(self, change: Recent) -> None:
        status = shown(told_of(change.record).record, change.at_ms)
        if status is None:
            self._statuses.pop(change.user, None)
        else:
            self._statuses[change.user] = status

    def _status(self, user: int) -> Status | None:
        status = self._statuses.get(user)
        return status if self._own in {user, ALL} else others_see(status)

    def _states(self, user: User) -> Iterator[Update]:
        hidden = self._hides(user.user)
        return map(Update, standing(user if hidden is None else unseen(user, hidden)))


def standing(user: User) -> Iterator[bytes]:
    """The present states of a user's devices, in the form of changes without an id; one without a device if none is
    online."""
    known = _head(user.user, None, None)
    for each in user.devices:
        online = {"device": each.device, "state": "online", "gateway": each.gateway, "at_ms": each.since_ms}
        yield msgspec.json.encode(known | online)
    if not user.devices:
        offline = {"device": None, "state": "offline", "gateway": 0, "at_ms": user.last_seen_ms or 0}
        yield msgspec.json.encode(known | offline)


def status_record(user: int, status: Status | None, change: Recent | None = None) -> bytes:
    """A status in the form of a change. `change`: the change that it is; None: it is the present one."""
    told = _head(user, None if change is None else change.id, None)
    at = change.at_ms if change is not None else 0 if status is None else status.at
    return msgspec.json.encode(told | {"device": None, "state": "status", "gateway": 0, "at_ms": at, "status": status})


def _head(user: int, change: str | None, reason: str | None) -> dict[str, Any]:
    return {"user": str(user), "reason": reason, "id": change}
