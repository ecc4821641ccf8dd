"""The fleet's routes over HTTP: instant measurements, runs and their results, tasks, clients.

The base owns keys, limits and idempotency (`systems/http/`); the requests are those of the commands. A web application
that writes the table of tasks itself calls `refresh`.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from litestar import MediaType, Response, Router, delete, get, post, put
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

import muster
from muster_server.plane.calls import CallError
from muster_server.systems.fleet.asking import AWAY, Asking
from muster_server.systems.fleet.http.streams import RunStream, ended_id
from muster_server.systems.fleet.questions import (
    RUN_PLACE,
    Client,
    ClientPage,
    Clients,
    Count,
    Counted,
    DropTask,
    Event,
    Explain,
    Explained,
    Fairness,
    Hour,
    MinuteRow,
    MinutesOf,
    MinutesPage,
    PastRuns,
    PutTask,
    Refresh,
    Refreshed,
    ResultsIn,
    ResultsOf,
    ResultsPage,
    RunBrief,
    RunNow,
    RunPage,
    Spread,
    TaskRow,
    Tasks,
    Watch,
    WheelShown,
)
from muster_server.systems.fleet.records import ResultRow, unfit
from muster_server.systems.fleet.selector import COUNTED, SelectorError, parse
from muster_server.systems.fleet.watching import SeenEvents
from muster_server.systems.fleet.wheel import PICK_MAX
from muster_server.systems.http import cursors
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, Nothing, repeatable
from muster_server.systems.http.lookout import Lookout
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import EventStream

NAMES_MAX: Final = 6
"""Tasks of a minute of the wheel that are named: its answer stays below 64 KiB."""
MINUTES: Final = 60
MINUTE_MAX: Final = (1 << 53) - 1
WAIT_S: Final = 600.0
AGAIN_S: Final = 0.5
TRIES_MAX: Final = 5
"""Limit of failed tries in a row before a stream of a run ends; each looks for the lead for some seconds."""
MOVES: Final = AWAY | {"moved", "store", "slow"}
CODES: Final = {
    "selector": "bad_request",
    "pick": "bad_request",
    "task": "bad_request",
    "run": "bad_request",
    "order": "too_long",
    "unknown": "not_found",
    "busy": "busy",
    "late": "timeout",
}
A = TypeVar("A")


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An instant measurement."""

    kind: str
    pick: int
    where: str = ""
    target: str = ""
    options: dict[str, Any] = {}


class Begun(msgspec.Struct, frozen=True):
    """The name of a run that has begun."""

    run: str


class Said(msgspec.Struct, frozen=True):
    """A client's result."""

    client: str
    ok: bool
    value: Any
    error: str


class Account(msgspec.Struct, frozen=True):
    """A run: each asked client is done, replaced, missed, or still open."""

    run: str
    state: str
    wanted: int
    done: list[str]
    replaced: list[str]
    missed: list[str]
    results: list[Said]
    reason: str = ""


class TaskBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A continuous task: `every_minutes` with `pick`, or `per_hour`."""

    kind: str
    target: str = ""
    where: str = ""
    every_minutes: int | None = None
    pick: int | None = None
    per_hour: int | None = None
    customer: Literal["major", "enterprise", "ordinary"] = "ordinary"
    slip_ms: int = 0
    options: dict[str, Any] = {}
    paused: bool = False


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """A minute of the wheel. `due`: samples; `sent`: clients asked, for minutes that are over."""

    minute: int
    due: int
    sent: int
    missed: int
    """Number of tasks that missed it, because no scheduler ran."""
    tasks: dict[str, int]
    """Number of tasks by class of customers."""
    names: list[str]
    """The first tasks, at most six."""


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """The last 60 minutes, then the next 60."""

    last_minute: int
    minutes: list[Minute]
    picked_per_task: float
    tasks_per_minute: float


class Evenness(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly a selector's clients are picked."""

    members: int
    round: int
    owed: int
    """Clients that still wait for their turn in the round."""
    picked: dict[str, int]
    """Number of clients by number of picks, through any selector."""
    lightest: float
    mean_weight: float
    punishment: float
    picked_per_task: float
    tasks_per_minute: float


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, by name."""

    tasks: list[TaskRow]
    next: str | None
    """The `after` of the next page."""


class ListedClients(msgspec.Struct, frozen=True, kw_only=True):
    """A page of clients, by name. `total`: all clients that match the selector."""

    total: int
    clients: list[Client]
    more: bool
    next: str | None
    """The `after` of the next page."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, the newest first."""

    runs: list[RunBrief]
    next: str | None
    """The `after` of the next page."""


class KeptResult(msgspec.Struct, frozen=True, kw_only=True):
    """A stored result of a task."""

    task: str
    minute: int
    client: str
    mark: str
    """Where the client was, as `country_province_city_carrier`."""
    kind: str
    target: str
    ok: bool
    ms: float | None
    """The number that stands for the value: its field `ms`, or the value itself."""
    error: str
    at_ms: int
    value: Any


class KeptResults(msgspec.Struct, frozen=True, kw_only=True):
    """A page of results, by minute and client."""

    results: list[KeptResult]
    next: str | None
    """The `after` of the next page."""


class RollUps(msgspec.Struct, frozen=True, kw_only=True):
    """A page of roll-ups, by minute and mark."""

    minutes: list[MinuteRow]
    next: str | None
    """The `after` of the next page."""


Where = Annotated[str, QueryParameter(description="A selector: `province=520000 and not carrier in (1, 2)`")]
TaskName = Annotated[str, PathParameter(description="The task's name")]


@post(
    "/runs",
    status_code=200,
    opt={"body": Body((Measure,))},
    responses={
        200: success(Account, "With `wait`: the run has ended"),
        202: success(Begun, "The run has begun; its account is at /api/v1/fleet/runs/RUN"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def measure(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    wait: Annotated[bool, QueryParameter(description="Answer when the run has ended, with all results")] = False,
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Ask clients at once: `{"kind": "ping", "target": "example.org", "where": "province=520000", "pick": 100}`."""
    body = await request.body()
    asked = _body(body, Measure)
    caller.need("measure", asked.kind)
    _check(asked)
    if wait:
        fleet.base.ongoing(request).extend(WAIT_S)

    async def do() -> Answer:
        spent = _spend(caller, asked.pick)
        question = RunNow(asked.kind, asked.target, asked.where, asked.pick, asked.options, wait)
        name = ""
        try:
            async for event in (await fleet.asking()).follow(question, Event):
                name = event.run
        except CallError as error:
            if not name:
                caller.regain(spent)
            raise Nothing(_problem(error)) from None
        if not wait:
            return Answer(202, msgspec.json.encode(Begun(name)))
        return Answer(200, msgspec.json.encode(await fleet.account(name, caller)))

    return await fleet.base.once(request, caller, body, do)


@get("/runs/{run:str}", responses={200: success(Account, "The run"), **problems(400, 401, 403, 404, 429, 503)})
async def run_account(
    run: Annotated[str, PathParameter(description="Name of a run, or of a task for its last run")],
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
) -> Response[bytes]:
    """A run's account and results, while it runs and afterwards."""
    return _json(msgspec.json.encode(await fleet.account(run, caller)))


@get(
    "/runs/{run:str}/events",
    responses={
        200: ResponseSpec(
            str, generate_examples=False, media_type="text/event-stream", description="Events as they arrive"
        ),
        204: success(None, "The run has ended, and the client has its last event"),
        **problems(400, 401, 403, 404, 429, 503),
    },
)
async def run_events(
    run: Annotated[str, PathParameter(description="Name of a run, or of a task for its last run")],
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", description="The id of `ended`: the answer is 204")
    ] = None,
) -> Response[Any]:
    """Events of a run, from its beginning on: `asked`, `result`, `replaced`, and `ended`, which is the last one.

    `goodbye` has the reason if a stream ends before the run; a stream that is opened again starts from the beginning.
    `ended` has an id: a client that reconnects with it, as an `EventSource` does by itself, gets 204, which ends its
    retries.
    """
    explained = await fleet.ask(Explain(run), Explained)
    caller.need("measure", explained.kind)
    if last_event_id == ended_id(explained.run):
        return Response(b"", status_code=204)
    return fleet.stream(explained, caller)


@get(
    "/runs/{run:str}/draws",
    responses={200: success(Explained, "The draws of the run"), **problems(401, 403, 404, 429, 503)},
)
async def run_draws(
    run: Annotated[str, PathParameter(description="Name of a run, or of a task for its last run")],
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
) -> Response[bytes]:
    """The draws of a run's clients, and whether they give the same clients again."""
    explained = await fleet.ask(Explain(run), Explained)
    caller.need("measure", explained.kind)
    return _json(msgspec.json.encode(explained))


@get("/tasks", responses={200: success(TaskPage, "A page of tasks"), **problems(400, 401, 403, 429, 503)})
async def tasks(
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, description="Number of tasks to list")] = 1_000,
    after: cursors.After = "",
    search: Annotated[
        str, QueryParameter(max_length=255, description="Text that name, kind or selector contains")
    ] = "",
) -> Response[bytes]:
    """The tasks that the key may see, by name."""
    last = cursors.read("tasks", after, str)
    rows = await fleet.ask(Tasks(), list[TaskRow])
    mine = sorted((row for row in rows if caller.may("tasks", row.name)), key=lambda row: row.name)
    if not mine:
        caller.need("tasks", "*")
    found = [row for row in mine if search in f"{row.name} {row.kind} {row.selector}"]
    shown, next = cursors.page("tasks", found, lambda row: row.name, last, limit)
    return _json(msgspec.json.encode(TaskPage(tasks=list(shown), next=next)))


@put(
    "/tasks/{task:str}",
    status_code=200,
    opt={"body": Body((TaskBody,))},
    responses={
        200: success(TaskRow, "The task runs from the next minute on"),
        **problems(400, 401, 403, 413, 429, 503),
    },
)
async def put_task(
    request: AnyRequest, task: TaskName, caller: NamedDependency[Caller], fleet: NamedDependency["FleetFace"]
) -> Response[bytes]:
    """Create or replace a task. The key needs `tasks` for its name, and `measure` for its kind."""
    caller.need("tasks", task)
    said = _body(await request.body(), TaskBody)
    caller.need("measure", said.kind)
    values = {
        "selector": said.where,
        **{name: getattr(said, name) for name in said.__struct_fields__ if name != "where"},
    }
    try:
        row = msgspec.convert({"name": task, **values}, TaskRow)
    except msgspec.ValidationError as error:
        raise Problem("bad_request", str(error)) from None
    return _json(msgspec.json.encode(await fleet.ask(PutTask(row, False), TaskRow)))


@delete(
    "/tasks/{task:str}",
    status_code=200,
    responses={200: success(dict[str, bool], "The task was removed"), **problems(401, 403, 404, 429, 503)},
)
async def drop_task(
    task: TaskName, caller: NamedDependency[Caller], fleet: NamedDependency["FleetFace"]
) -> Response[bytes]:
    """Remove a task. Its runs and results stay."""
    caller.need("tasks", task)
    if not await fleet.ask(DropTask(task), bool):
        raise Problem("not_found", f"there is no task {task}"[:400])
    return _json(b'{"removed":true}')


First = Annotated[
    int | None, QueryParameter(ge=0, le=MINUTE_MAX, description="The first minute since 1970 [59 before `last`]")
]
Last = Annotated[int | None, QueryParameter(ge=0, le=MINUTE_MAX, description="The last minute since 1970 [now]")]


@get(
    "/tasks/{task:str}/results",
    responses={200: success(KeptResults, "A page of results"), **problems(400, 401, 403, 429, 503)},
)
async def task_results(
    task: TaskName,
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    first: First = None,
    last: Last = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200, description="Number of results to list")] = 100,
    after: cursors.After = "",
) -> Response[bytes]:
    """The stored results of a task, by minute and client, of kinds that the key may measure."""
    caller.need("tasks", task)
    place = cursors.read("results", after, tuple[int, str])
    page = await fleet.ask(ResultsIn(task, *_span(first, last), limit, place), ResultsPage)
    for kind in {row.kind for row in page.results}:
        caller.need("measure", kind)
    rows = [KeptResult(**{**msgspec.structs.asdict(row), "value": msgspec.Raw(row.value)}) for row in page.results]
    next = cursors.written("results", (rows[-1].minute, rows[-1].client)) if page.more else None
    return _json(msgspec.json.encode(KeptResults(results=rows, next=next)))


@get(
    "/tasks/{task:str}/minutes",
    responses={200: success(RollUps, "A page of roll-ups"), **problems(400, 401, 403, 429, 503)},
)
async def task_minutes(
    task: TaskName,
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    first: First = None,
    last: Last = None,
    mark: Annotated[
        str | None, QueryParameter(max_length=260, description="Only this mark; empty: only the rows of all clients")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, description="Number of rows to list")] = 1_000,
    after: cursors.After = "",
) -> Response[bytes]:
    """Results, failures and percentiles of a task by minute and mark, of kinds that the key may measure."""
    caller.need("tasks", task)
    place = cursors.read("minutes", after, tuple[int, str])
    page = await fleet.ask(MinutesOf(task, *_span(first, last), mark, limit, place), MinutesPage)
    for kind in {row.kind for row in page.minutes}:
        caller.need("measure", kind)
    next = cursors.written("minutes", (page.minutes[-1].minute, page.minutes[-1].mark)) if page.more else None
    return _json(msgspec.json.encode(RollUps(minutes=page.minutes, next=next)))


@post(
    "/refresh",
    status_code=200,
    responses={
        200: success(Refreshed, "The scheduler uses the table"),
        **problems(400, 401, 403, 409, 422, 429, 503, 504),
    },
)
async def refresh(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Read the table of tasks again, after a web application wrote it."""
    caller.need("tasks", "*")
    body = await request.body()

    async def do() -> Answer:
        with repeatable():
            return Answer(200, msgspec.json.encode(await fleet.ask(Refresh(), Refreshed)))

    return await fleet.base.once(request, caller, body, do)


@get(
    "/clients",
    responses={200: success(ListedClients, "A page of clients, by name"), **problems(400, 401, 403, 429, 503)},
)
async def clients(
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    where: Where = "",
    limit: Annotated[int, QueryParameter(ge=1, le=10_000, description="Number of clients to list")] = 100,
    after: Annotated[
        str,
        QueryParameter(
            pattern=r"^[A-Za-z0-9_-]{0,64}\Z",
            description="The `next` of the previous page, which is the name of its last client",
        ),
    ] = "",
) -> Response[bytes]:
    """List the clients that match a selector."""
    caller.need("clients", "*")
    found = await fleet.ask_index(where, Clients(where, limit, after), ClientPage)
    next = found.clients[-1].name if found.more and found.clients else None
    answer = ListedClients(total=found.total, clients=found.clients, more=found.more, next=next)
    return _json(msgspec.json.encode(answer))


@get(
    "/counts",
    responses={200: success(Counted, "Clients by value, most first"), **problems(400, 401, 403, 429, 503)},
)
async def counts(
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    by: Annotated[Literal[COUNTED], QueryParameter(description="An attribute of clients")] = "province",  # type: ignore[valid-type]
    where: Where = "",
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, description="Number of values to list")] = 500,
) -> Response[bytes]:
    """Count the clients that match a selector for each value of an attribute."""
    caller.need("clients", "*")
    return _json(msgspec.json.encode(await fleet.ask_index(where, Count(by, where, limit), Counted)))


@get(
    "/fairness",
    responses={200: success(Evenness, "The clients by number of picks"), **problems(400, 401, 403, 429, 503)},
)
async def fairness(
    caller: NamedDependency[Caller], fleet: NamedDependency["FleetFace"], where: Where = ""
) -> Response[bytes]:
    """How evenly the clients that match a selector are picked."""
    caller.need("clients", "*")
    spread = await fleet.ask_index(where, Fairness(where), Spread)
    return _json(msgspec.json.encode(spread))


@get("/wheel", responses={200: success(Wheel, "The last hour and the next hour"), **problems(401, 403, 429, 503)})
async def wheel(caller: NamedDependency[Caller], fleet: NamedDependency["FleetFace"]) -> Response[bytes]:
    """The schedule of the continuous tasks by minute."""
    caller.need("tasks", "*")
    shown = await fleet.ask(Hour(), WheelShown)
    minutes = [
        Minute(
            minute=slot.minute,
            due=slot.due,
            sent=slot.sent,
            missed=slot.missed,
            tasks={name: len(each) for name, each in slot.tasks.items()},
            names=list(itertools.islice(itertools.chain.from_iterable(slot.tasks.values()), NAMES_MAX)),
        )
        for slot in shown.slots
    ]
    answer = Wheel(
        last_minute=shown.last_minute,
        minutes=minutes,
        picked_per_task=shown.picked_per_task,
        tasks_per_minute=shown.tasks_per_minute,
    )
    return _json(msgspec.json.encode(answer))


@get("/runs", responses={200: success(History, "A page of runs"), **problems(400, 401, 403, 429, 503)})
async def history(
    caller: NamedDependency[Caller],
    fleet: NamedDependency["FleetFace"],
    limit: Annotated[int, QueryParameter(ge=1, le=200, description="Number of runs to list")] = 50,
    after: Annotated[
        str, QueryParameter(description="The `next` of the previous page", pattern=rf"^({RUN_PLACE})?\Z")
    ] = "",
) -> Response[bytes]:
    """The started runs whose kind the key may measure, the newest first. A page may have fewer than `limit`."""
    page = await fleet.ask(PastRuns(limit, after), RunPage)
    mine = [run for run in page.runs if caller.may("measure", run.kind)]
    if not mine:
        caller.need("measure", "*")
    return _json(msgspec.json.encode(History(runs=mine, next=page.next or None)))


class FleetFace:
    """The fleet's part of the HTTP face. It is ready even if no fleet runs: its routes report that."""

    ready: Final = True

    def __init__(self, base: Base) -> None:
        self.base = base
        self._lookout = Lookout(base)
        self._asking: Asking | None = None
        self._streams: set[RunStream] = set()
        self.draining = False

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def fleet(caller: NamedDependency[Caller]) -> FleetFace:  # sync: awaiting here costs a task group per request
            return self

        handlers = [measure, run_account, run_events, run_draws, tasks, put_task, drop_task, refresh, clients]
        handlers += [counts, fairness, wheel, history, task_results, task_minutes]
        provided = {"fleet": Provide(fleet, sync_to_thread=False)}
        return [Router("/api/v1/fleet", route_handlers=handlers, dependencies=provided, tags=["fleet"])]

    async def start(self) -> None:
        """Nodes are looked up with the first request."""

    def redirect(self, address: muster.Address) -> None:
        """Look up the nodes again."""
        self._lookout.forget()

    def access_changed(self) -> None:
        """Streams check the access themselves."""
        for stream in self._streams:
            stream.wake()

    def drain(self) -> None:
        """Streams end."""
        self.draining = True
        self.access_changed()

    async def stop(self) -> None:
        """Close all."""
        if self._asking is not None:
            await self._asking.close()

    def status(self) -> dict[str, Any]:
        """The number of open streams of runs."""
        return {"run_streams": len(self._streams)}

    def stream(self, run: Explained, caller: Caller) -> EventStream:
        """A run's events for one reader. Raises `Problem`."""
        options = self.base.options
        if len(self._streams) >= options.streams_max:
            raise Problem("busy", "too many streams at once")
        return EventStream(
            RunStream(self, self._events(run.run), run.kind, caller, options.heartbeat_s, options.stall_s)
        )

    def open(self, stream: RunStream) -> None:
        """As `Streams.open`."""
        self._streams.add(stream)

    def close(self, stream: RunStream, reason: str) -> None:
        """As `Streams.close`."""
        self._streams.discard(stream)

    def sent(self, length: int) -> None:
        """As `Streams.sent`: bytes of runs are not counted."""

    async def _events(self, run: str) -> AsyncGenerator[Event]:
        """All events of a run, each once; from another scheduler if the leading one dies. Raises `Problem`."""
        told, tries = SeenEvents(), 0
        while not told.over:
            try:
                async with contextlib.aclosing((await self.asking()).follow(Watch(run), Event)) as events:
                    async for event in events:
                        if (new := told.new(event)) is not None:
                            tries = 0
                            yield new
            except CallError as error:
                tries += 1
                if error.code not in MOVES or tries >= TRIES_MAX:
                    raise _problem(error) from None
                await asyncio.sleep(AGAIN_S)

    async def asking(self) -> Asking:
        """Calls to the fleet's nodes. Raises `Problem`."""
        await self._lookout.look()
        if self._asking is None:
            self._asking = Asking(lambda: self._lookout.nodes, self._lookout.key(), self._lookout.look)
        return self._asking

    async def ask(self, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask the leading scheduler. Raises `Problem`."""
        try:
            return await (await self.asking()).lead(question, answer)
        except CallError as error:
            raise _problem(error) from None

    async def ask_index(self, where: str, question: msgspec.Struct, answer: type[A]) -> A:
        """Ask the index node that owns a selector. Raises `Problem`."""
        try:
            return await (await self.asking()).owner(where, question, answer)
        except SelectorError as error:
            raise Problem("bad_request", str(error)) from None
        except CallError as error:
            raise _problem(error) from None

    async def account(self, run: str, caller: Caller) -> Account:
        """A run's account, as far as the caller may see it. Raises `Problem`."""
        explained = await self.ask(Explain(run), Explained)
        caller.need("measure", explained.kind)
        rows = await self.ask(ResultsOf(explained.run), list[ResultRow])
        results = [Said(row.client, row.ok, msgspec.Raw(row.value), row.error) for row in rows]
        return Account(
            explained.run,
            explained.state,
            explained.wanted,
            explained.done,
            explained.replaced,
            explained.missed,
            results,
            explained.reason,
        )


def face(base: Base) -> FleetFace:
    """As `systems.http.face.Module`."""
    return FleetFace(base)


def _problem(error: CallError) -> Problem:
    return Problem(CODES.get(error.code, "unavailable"), str(error)[:400])


def _body(body: bytes, shape: type[A]) -> A:
    said = decoded(body, shape)
    try:
        msgspec.msgpack.encode(said)  # encode as for a scheduler
    except OverflowError:
        raise Problem("bad_body", "a number does not fit into 64 bits") from None
    return said


def _span(first: int | None, last: int | None) -> tuple[int, int]:
    """The minutes of a question. Raises `Problem`."""
    last = int(time.time() // 60) if last is None else last
    first = max(0, last - MINUTES + 1) if first is None else first
    if first > last:
        raise Problem("bad_request", f"invalid minutes {first} to {last} (expected first <= last)")
    return first, last


def _check(asked: Measure) -> None:
    """Refuse what a scheduler would refuse, before it counts towards the rate. Raises `Problem`."""
    if not 1 <= asked.pick <= PICK_MAX:
        raise Problem("bad_request", f"invalid pick {asked.pick} (expected 1 to {PICK_MAX} clients)")
    if why := unfit(asked.kind, asked.target, asked.where):
        raise Problem("bad_request", why)
    try:
        parse(asked.where)
    except SelectorError as error:
        raise Problem("bad_request", str(error)) from None


def _spend(caller: Caller, samples: int) -> int:
    try:
        return caller.spend_at_most_all(samples)
    except Problem as problem:
        raise Nothing(problem) from None


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(body + b"\n", status_code=status, media_type=MediaType.JSON, headers=dict(headers or {}))
