"""Requests between the processes of a fleet: to index nodes and to schedulers, and their answers.

Owns shapes. It must not know how they are sent (`calls.py`), nor how they are carried out.
"""

from typing import Any, Final, Literal

import msgspec

RunClient = tuple[str, int]
"""A client and the epoch that is asked."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Checks whether the node answers."""


class Pong(msgspec.Struct, frozen=True):
    online: int = 0


class Draw(msgspec.Struct, frozen=True, tag=True):
    """The inputs of a draw: with them the same clients are picked again. Bitmaps are in the portable roaring format."""

    seed: int
    round: int
    of_round: int
    """This many clients belong to `round`, the others to the next round."""
    members: int
    tired: int
    excused: int
    punishment: float
    minute: int
    index: int
    """The node that picked."""
    replay: bytes = b""
    """Compressed state before the draw (`replay.py`); empty: it was too large to be stored."""


class PickOne(msgspec.Struct, frozen=True, tag=True):
    """Pick clients for a run. Answered by `Picked`."""

    epoch: int
    """The scheduler's epoch: a lower one than before is refused (I-1)."""
    run: str
    selector: str
    wanted: int
    seed: int
    hold_ms: int
    """The latest end of the run; from then on its clients are free again in any case."""
    without: list[str] = []


class Picked(msgspec.Struct, frozen=True):
    clients: list[RunClient]
    draw: Draw
    deck: str
    """The normal form of the selector."""
    marks: list[str] = []
    """The mark of each client; empty: the node is of a release that does not tell."""


class Follow(msgspec.Struct, frozen=True, tag=True):
    """Another index node picked: its deck advanced, and clients are busy and charged."""

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
    """Averages over the table of tasks, for the penalty."""

    epoch: int
    picked_per_task: float
    tasks_per_minute: float


class Clients(msgspec.Struct, frozen=True, tag=True):
    """The clients that match a selector; a page after the name `after`. Answered by `ClientPage`."""

    selector: str
    limit: int = 1_000
    after: str = ""


class Client(msgspec.Struct, frozen=True):
    name: str
    epoch: int
    attributes: dict[str, list[str]]
    weight: float
    picked: int
    """Number of picks since this index node began to count."""
    in_flight: int


class ClientPage(msgspec.Struct, frozen=True):
    total: int
    clients: list[Client]
    more: bool


class Readmit(msgspec.Struct, frozen=True, tag=True):
    """Let a client begin again with any epoch. Answered by whether it was known."""

    client: str


class Heal(msgspec.Struct, frozen=True, tag=True):
    """Follow the clock again, after it was ahead. Answered by `Healed`."""


class Healed(msgspec.Struct, frozen=True):
    """Minutes by which the clock had been ahead; 0: it was correct."""

    minutes: int


class Fairness(msgspec.Struct, frozen=True, tag=True):
    """How evenly a selector's clients are picked. Answered by `Spread`."""

    selector: str


class Spread(msgspec.Struct, frozen=True):
    members: int
    round: int
    """Round of the selector's deck; 0, with all members in `owed`: no client was picked by it yet."""
    owed: int
    """Members that still wait for their turn in the round."""
    picked: dict[int, int]
    """Number of members by number of picks, through any selector."""
    lightest: float
    mean_weight: float
    punishment: float
    picked_per_task: float
    tasks_per_minute: float


class Count(msgspec.Struct, frozen=True, tag=True):
    """The number of online clients for each value of an attribute. Answered by `Counted`."""

    attribute: str
    selector: str = ""
    limit: int = 500


class Counted(msgspec.Struct, frozen=True):
    attribute: str
    clients: int
    """Online clients that match the selector."""
    values: list[tuple[str, int]]
    """Values with their clients, the most clients first."""
    more: int
    """Number of values that are left out."""


class Stats(msgspec.Struct, frozen=True, tag=True):
    """Connects and disconnects in these minutes since 1970, both included. Answered by `MinuteCounts`."""

    first: int
    last: int


class MinuteCounts(msgspec.Struct, frozen=True):
    minute: int
    came: dict[str, int]
    """Number of clients by mark."""
    went: dict[str, int]


class Copy(msgspec.Struct, frozen=True, tag=True):
    """The whole state of an index node, for one that starts. Answered by bytes (`index_node.py`)."""


# --- schedulers --------------------------------------------------------------------------------------------------


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A continuous task, as the table has it. Exactly one of `every_minutes` and `per_hour` is set."""

    name: str
    kind: str
    target: str
    selector: str
    every_minutes: int | None = None
    pick: int | None = None
    """Clients per run, with `every_minutes`."""
    per_hour: int | None = None
    """Samples per hour."""
    customer: str = "ordinary"
    """`major`, `enterprise` or `ordinary`."""
    slip_ms: int = 0
    options: dict[str, Any] = {}
    paused: bool = False
    since_minute: int = 0
    refused: str = ""
    """Why the task cannot be scheduled; empty: it can. The table has no such column."""


class RunNow(msgspec.Struct, frozen=True, tag=True):
    """An instant measurement. Answered by `Event`s until the run's end; without `wait` by the first one only."""

    kind: str
    target: str
    selector: str
    pick: int
    options: dict[str, Any] = {}
    wait: bool = True


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Follow a run of any origin. `run`: its name, or a task's (its last run).

    Answered by `Event`s, from the first one to the run's end.
    """

    run: str


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of a run."""

    what: Literal["asked", "result", "replaced", "ended"]
    run: str
    clients: list[str] = []
    """With `asked`: the asked clients. With `replaced`: the silent ones."""
    client: str = ""
    ok: bool = False
    value: bytes = b"null"
    """The result in JSON, as the client sent it."""
    error: str = ""
    done: list[str] = []
    replaced: list[str] = []
    missed: list[str] = []
    wanted: int = 0
    members: int = 0


class Refresh(msgspec.Struct, frozen=True, tag=True):
    """The table of tasks changed: read it again. Answered by `Refreshed`."""


class Refreshed(msgspec.Struct, frozen=True):
    tasks: int
    refused: dict[str, str]
    """Tasks that cannot be scheduled, with the reason: they do not run."""


class PutTask(msgspec.Struct, frozen=True, tag=True):
    """Write a task into the table and read the table again. Answered by `TaskRow`."""

    task: TaskRow
    new: bool
    """Refuse a name that exists."""


class DropTask(msgspec.Struct, frozen=True, tag=True):
    """Remove a task. Answered by whether it existed."""

    name: str


class Tasks(msgspec.Struct, frozen=True, tag=True):
    """List the tasks. Answered by `TaskRow`s, by name."""


class Hour(msgspec.Struct, frozen=True, tag=True):
    """Show the wheel. Answered by `WheelShown`."""


class Slot(msgspec.Struct, frozen=True):
    minute: int
    due: int
    """Number of samples due."""
    sent: int
    """Number of clients asked; for past minutes."""
    tasks: dict[str, list[str]]
    """Tasks by class, in the order of classes."""
    missed: int = 0
    """Number of tasks that missed this minute: no scheduler ran, so due runs were not handed out."""


class WheelShown(msgspec.Struct, frozen=True):
    last_minute: int
    slots: list[Slot]
    """The last 60 minutes, then the next 60."""
    picked_per_task: float
    tasks_per_minute: float


class Explain(msgspec.Struct, frozen=True, tag=True):
    """A run's account. `run`: its name, or a task's (its last run). Answered by `Explained`."""

    run: str


RUN_PLACE: Final = r"([0-9]{1,18})-([A-Za-z0-9._-]{1,64})@([0-9]{1,18})"
"""Pattern of a place in the history of runs, as a page has it."""


class PastRuns(msgspec.Struct, frozen=True, tag=True):
    """The history of runs, the newest first; `after`: the `next` of the previous page. Answered by `RunPage`."""

    limit: int = 100
    after: str = ""


class RunBrief(msgspec.Struct, frozen=True):
    """A run in the history. `asked`, `done`, `replaced`, `missed`: numbers of clients."""

    run: str
    kind: str
    target: str
    selector: str
    state: str
    started_ms: int
    wanted: int
    asked: int
    done: int
    replaced: int
    missed: int
    reason: str


class RunPage(msgspec.Struct, frozen=True):
    runs: list[RunBrief]
    next: str
    """The `after` of the next page; empty: this is the last one."""


class ResultsOf(msgspec.Struct, frozen=True, tag=True):
    """A run's results. Answered by `ResultRow`s (`records.py`), in the order in which they came."""

    run: str


class ResultsIn(msgspec.Struct, frozen=True, tag=True):
    """The stored results of a task in these minutes, both included, by minute and client; `after`: the minute and the
    client of the last one of the previous page. Answered by `ResultsPage`."""

    task: str
    first: int
    last: int
    limit: int = 1_000
    after: tuple[int, str] | None = None


class Kept(msgspec.Struct, frozen=True):
    """A stored result, with what its run asked for."""

    task: str
    minute: int
    client: str
    mark: str
    """Where the client was, as `country_province_city_carrier`; `other` without these, empty if it was not stored."""
    kind: str
    target: str
    ok: bool
    ms: float | None
    """The number that stands for the value: its field `ms`, or the value itself."""
    error: str
    at_ms: int
    value: bytes
    """The result in JSON."""


class ResultsPage(msgspec.Struct, frozen=True):
    results: list[Kept]
    more: bool


class MinutesOf(msgspec.Struct, frozen=True, tag=True):
    """The roll-ups of a task in these minutes, both included, by minute and mark; `mark` None: of all marks. `after`:
    the minute and the mark of the last one of the previous page. Answered by `MinutesPage`."""

    task: str
    first: int
    last: int
    mark: str | None = None
    limit: int = 1_000
    after: tuple[int, str] | None = None


class MinuteRow(msgspec.Struct, frozen=True):
    """The roll-up of a task's run in one minute, of the clients of one mark."""

    task: str
    minute: int
    mark: str
    """Empty: all clients of the run."""
    kind: str
    target: str
    results: int
    """Clients that answered."""
    failed: int
    """Answers with `ok` false among them."""
    missed: int
    """Clients that were asked, were not replaced, and did not answer."""
    p50: float | None
    """Percentiles of `ms` over the answers with `ok` true; None: no answer has it."""
    p90: float | None
    p99: float | None


class MinutesPage(msgspec.Struct, frozen=True):
    minutes: list[MinuteRow]
    more: bool


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
    """The clients of each draw."""
    done: list[str]
    replaced: list[str]
    missed: list[str]
    replayed: bool | None
    """Whether the stored state gives the same clients; None: it was not stored."""
    reason: str = ""
