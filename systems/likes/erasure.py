"""Erasing a user and exporting what is known of one, over all nodes: requests to nodes, and how their answers are merged.

Owns the job's number and the cursor of an export. Knows neither subcommands nor HTTP.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.reach import PAGE
from muster_server.systems.likes.slots import key_within

if TYPE_CHECKING:  # it imports the Redis library, which a server without likes does not have
    from muster_server.systems.likes.routes import Routes

JOB_BITS: Final = 63
LOOK_S: Final = 0.2
"""Seconds between two looks at a job."""
Phase = Literal["likes", "leaderboards", "check", "files", "done"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
BEGIN: Final = "0"


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure over all partitions.

    `phase`: what the slowest partition does; `likes`: likes taken back by kind, those of items without a kind at "";
    `derived`: results of `BITOP` that the user was taken out of; `scores`: entries removed from leaderboards; `looked`:
    slots of items and leaderboards gone through, `of` how many; `at_ms`: when it began, or when it was done;
    `snapshots` and `segments`: what is left on disk, all from after the user's id was dropped.
    """

    job: int
    phase: Phase
    likes: dict[str, int]
    derived: int
    scores: int
    looked: int
    of: int
    at_ms: int
    snapshots: int
    segments: int

    @property
    def done(self) -> bool:
        """Whether neither the state nor a file names the user."""
        return self.phase == "done"


@dataclass(frozen=True, slots=True)
class Exported:
    """One thing of a user: a like of `item`, with its second since 1970 if that is known, or a `score` in the leaderboard
    `item`."""

    item: bytes
    at_s: int | None = None
    score: float | None = None


class Erasures:
    """Erasures and exports of one client of likes. Raises `StoreError`."""

    def __init__(self, routes: "Routes") -> None:
        self._routes = routes

    async def begin(self, user: int) -> int:
        """Begin to erase a user; returns the job's number. Durable on all partitions once this returns.

        After a `StoreError` it may have begun on some of them: begin again, with another number.
        """
        job = secrets.randbits(JOB_BITS)
        await self._routes.each(("LIKE.ERASE", user, job))
        return job

    async def show(self, job: int) -> Erasure:
        """The progress of a job. Raises `StoreError` if no partition knows it."""
        said = await self._routes.each(("LIKE.ERASURES", job))
        found = [partition[0] for partition in said if partition]
        if not found:
            raise StoreError(f"no erasure {job} is known; a node lists the last 1,000 that have ended")
        likes: dict[str, int] = {}
        phases = [_text(each[1]) for each in found] + ["likes"] * (len(said) - len(found))
        for each in found:
            kinds = each[11]
            for kind, count in zip(kinds[::2], kinds[1::2], strict=True):
                name = _text(kind)
                likes[name] = likes.get(name, 0) + int(count)
        phase = min(phases, key=PHASES.index)
        numbers = [[int(number) for number in each[2:11]] for each in found]
        sums = [sum(column) for column in zip(*numbers, strict=True)]
        items, items_of, boards, boards_of, derived, scores, _, snapshots, segments = sums
        at_ms = (max if phase == "done" else min)(each[6] for each in numbers)
        swept = PHASES.index(phase) >= PHASES.index("check")
        of = items + boards if swept else max(items_of + boards_of, items + boards)
        return Erasure(job, cast(Phase, phase), likes, derived, scores, items + boards, of, at_ms, snapshots, segments)

    async def erase(self, user: int, progress: Callable[[Erasure], None] = lambda erasure: None) -> Erasure:
        """Erase a user, and wait until no trace is left. If it is cancelled, the erasure continues."""
        job = await self.begin(user)
        while True:
            erasure = await self.show(job)
            progress(erasure)
            if erasure.done:
                return erasure
            await asyncio.sleep(LOOK_S)

    async def page(self, user: int, after: str = "", limit: int = PAGE) -> tuple[list[Exported], str]:
        """At most `limit` things of a user, and the cursor to continue with; empty: it was the last page.

        A page may be empty although others follow. Raises `StoreError`, also for a cursor that is none.
        """
        parts = await self._routes.partitions()
        first, _, cursor = after.partition(":") if after else (str(parts[0][0]), "", BEGIN)
        place = next((place for place, part in enumerate(parts) if str(part[0]) == first), None)
        if place is None:
            raise StoreError(f"invalid cursor {after!r:.80}")
        command = ("LIKE.EXPORT", user, cursor, min(limit, PAGE))
        keys = [key_within(*parts[place])]
        (said,) = await self._routes.ask([command], keys=keys)
        if isinstance(said, StoreError):
            raise said
        next_cursor, entries = _text(said[0]), [_exported(each) for each in said[1]]
        if next_cursor != BEGIN:
            return entries, f"{first}:{next_cursor}"
        return entries, f"{parts[place + 1][0]}:{BEGIN}" if place + 1 < len(parts) else ""

    async def export(self, user: int) -> AsyncIterator[Exported]:
        """Everything that is known of a user: likes, reactions and entries in leaderboards, partition by partition."""
        after = ""
        while True:
            entries, after = await self.page(user, after)
            for entry in entries:
                yield entry
            if not after:
                return


def _exported(said: Any) -> Exported:
    kind, item, value = said
    if _text(kind) == "score":
        return Exported(bytes(item), score=float(value))
    return Exported(bytes(item), at_s=None if value is None else int(value))


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="surrogateescape")
