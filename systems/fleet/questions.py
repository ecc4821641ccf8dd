"""What the processes of a fleet ask each other: the questions to index nodes and to schedulers, and their answers.

Owns shapes. It must not know how they travel (`calls.py`), nor what is done about them.
"""

from typing import Any, Literal

import msgspec

Asked = tuple[str, int]
"""A client and the epoch that is asked."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Is somebody there?"""


class Pong(msgspec.Struct, frozen=True):
    online: int = 0


class Draw(msgspec.Struct, frozen=True, tag=True):
    """Why these clients were picked: with it, the same ones are picked again. Bitmaps are portable roaring ones."""

    seed: int
    round: int
    of_round: int
    """So many clients are of `round`, the others of the next one."""
    members: int
    tired: int
    excused: int
    punishment: float
    minute: int
    index: int
    """The node that picked."""
    replay: bytes = b""
    """Compressed state of before (`replay.py`); empty: it was too large to be kept."""


class PickOne(msgspec.Struct, frozen=True, tag=True):
    """Pick clients for a run. Answered by `Picked`."""

    epoch: int
    """Of the scheduler: a lower one than was seen is refused (I-1)."""
    run: str
    selector: str
    wanted: int
    seed: int
    hold_ms: int
    """The run's end at the latest; from then on its clients are free again, whatever is heard."""
    without: list[str] = []


class Picked(msgspec.Struct, frozen=True):
    clients: list[Asked]
    draw: Draw
    deck: str
    """The normal form of the selector."""


class Follow(msgspec.Struct, frozen=True, tag=True):
    """Another index node picked: its deck moved, clients are busy and punished."""

    epoch: int
    run: str
    deck: str
    clients: list[str]
    of_round: int
    round: int
    punishment: float
    hold_ms: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """A run ended: its clients are free."""

    epoch: int
    run: str


class Averages(msgspec.Struct, frozen=True, tag=True):
    """Of the table of tasks, for the punishment."""

    epoch: int
    picked_per_task: float
    tasks_per_minute: float


class Clients(msgspec.Struct, frozen=True, tag=True):
    """The clients that a selector means; a page after the name `after`. Answered by `ClientPage`."""

    selector: str
    limit: int = 1_000
    after: str = ""


class Client(msgspec.Struct, frozen=True):
    name: str
    epoch: int
    attributes: dict[str, list[str]]
    weight: float
    picked: int
    """Times since this index node began to count."""
    in_flight: int


class ClientPage(msgspec.Struct, frozen=True):
    total: int
    clients: list[Client]
    more: bool


class Readmit(msgspec.Struct, frozen=True, tag=True):
    """Let a client begin anew with any epoch. Answered by whether it was known."""

    client: str


class Heal(msgspec.Struct, frozen=True, tag=True):
    """Go by the clock again, after it was ahead. Answered by `Healed`."""


class Healed(msgspec.Struct, frozen=True):
    """Tasks run again so many minutes sooner; 0: the clock was right."""

    minutes: int


class Fairness(msgspec.Struct, frozen=True, tag=True):
    """How evenly a selector's clients are picked. Answered by `Spread`."""

    selector: str


class Spread(msgspec.Struct, frozen=True):
    members: int
    round: int
    """Of the selector's deck; 0 and `owed` all: it was never picked from."""
    owed: int
    """Members that the round still owes a turn."""
    picked: dict[int, int]
    """Members by how often they were picked, through any selector."""
    lightest: float
    mean_weight: float
    punishment: float
    picked_per_task: float
    tasks_per_minute: float


class Stats(msgspec.Struct, frozen=True, tag=True):
    """Comings and goings of these minutes since 1970, both included. Answered by `MinuteCounts`."""

    first: int
    last: int


class MinuteCounts(msgspec.Struct, frozen=True):
    minute: int
    came: dict[str, int]
    """By mark."""
    went: dict[str, int]


class Copy(msgspec.Struct, frozen=True, tag=True):
    """All that an index node knows, for one that begins. Answered by bytes (`index_node.py`)."""


# --- schedulers --------------------------------------------------------------------------------------------------


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A continuous task, as the table has it. Exactly one of `every_minutes` and `per_hour` is set."""

    name: str
    kind: str
    target: str
    selector: str
    every_minutes: int | None = None
    pick: int | None = None
    """Clients a run, with `every_minutes`."""
    per_hour: int | None = None
    """Samples an hour."""
    customer: str = "ordinary"
    """major, enterprise or ordinary."""
    slip_ms: int = 0
    options: dict[str, Any] = {}
    paused: bool = False
    since_minute: int = 0
    refused: str = ""
    """Why the task cannot be scheduled; empty: it can. The table has no such column."""


class RunNow(msgspec.Struct, frozen=True, tag=True):
    """An instant measurement. Answered by `Event`s until the run's end; without `wait` by the first one alone."""

    kind: str
    target: str
    selector: str
    pick: int
    options: dict[str, Any] = {}
    wait: bool = True


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Follow a run, whatever began it. `run`: its name, or a task's (its last run).

    Answered by `Event`s, from those that came before to the run's end.
    """

    run: str


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens to a run."""

    what: Literal["asked", "result", "replaced", "ended"]
    run: str
    clients: list[str] = []
    """asked: these. replaced: those that were silent."""
    client: str = ""
    ok: bool = False
    value: bytes = b"null"
    """JSON, as the client sent it."""
    error: str = ""
    done: list[str] = []
    replaced: list[str] = []
    missed: list[str] = []
    wanted: int = 0
    members: int = 0


class Refresh(msgspec.Struct, frozen=True, tag=True):
    """The table of tasks changed: read it. Answered by `Refreshed`."""


class Refreshed(msgspec.Struct, frozen=True):
    tasks: int
    refused: dict[str, str]
    """Tasks that cannot be scheduled, and why: they do not run."""


class PutTask(msgspec.Struct, frozen=True, tag=True):
    """Write a task into the table and read that. Answered by `TaskRow`."""

    task: TaskRow
    new: bool
    """Refuse a name that is there."""


class DropTask(msgspec.Struct, frozen=True, tag=True):
    """Answered by whether it was there."""

    name: str


class Tasks(msgspec.Struct, frozen=True, tag=True):
    """Answered by `TaskRow`s, by name."""


class Hour(msgspec.Struct, frozen=True, tag=True):
    """The wheel. Answered by `WheelShown`."""


class Slot(msgspec.Struct, frozen=True):
    minute: int
    due: int
    """Samples."""
    sent: int
    """Clients asked; for minutes that are over."""
    tasks: dict[str, list[str]]
    """By class, in their order."""
    missed: int = 0
    """Tasks of which this minute was missed: no scheduler ran, so nothing due was handed out."""


class WheelShown(msgspec.Struct, frozen=True):
    last_minute: int
    slots: list[Slot]
    """The last 60 minutes, then the 60 that come."""
    picked_per_task: float
    tasks_per_minute: float


class Explain(msgspec.Struct, frozen=True, tag=True):
    """A run's account. `run`: its name, or a task's (its last run). Answered by `Explained`."""

    run: str


class ResultsOf(msgspec.Struct, frozen=True, tag=True):
    """A run's results. Answered by `ResultRow`s (`records.py`), in the order in which they came."""

    run: str


class Explained(msgspec.Struct, frozen=True):
    run: str
    kind: str
    target: str
    selector: str
    state: str
    wanted: int
    started_ms: int
    draws: list[Draw]
    asked: list[list[str]]
    """Of each draw."""
    done: list[str]
    replaced: list[str]
    missed: list[str]
    replayed: bool | None
    """Whether the same clients come out of the stored state; None: it was not stored."""
    reason: str = ""
