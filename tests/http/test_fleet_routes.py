"""The routes of the fleet, over calls to a scheduler of the test's own."""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.plane.calls import CallError, Server, key_of
from muster_server.systems.fleet.questions import (
    DropTask,
    Event,
    Explain,
    Explained,
    Hour,
    Kept,
    MinuteRow,
    MinutesOf,
    MinutesPage,
    PastRuns,
    Ping,
    Pong,
    PutTask,
    ResultsIn,
    ResultsOf,
    ResultsPage,
    RunBrief,
    RunNow,
    RunPage,
    Slot,
    TaskRow,
    Watch,
    WheelShown,
)
from muster_server.systems.fleet.records import ResultRow
from tests.http.conftest import Beside, Make
from tests.http.streams import stream
from tests.ports import free_ports

SECRET = b"c" * 32


class Scheduler:
    """It leads, and has every run and task that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.looks, self.ready_at = 0, 1
        self.refuses: CallError | None = None
        (self.port,) = free_ports(1)
        answers: dict[type[msgspec.Struct], Any] = {
            Ping: self._ping,
            Explain: self._explain,
            ResultsOf: self._results_of,
            PutTask: self._put_task,
            DropTask: self._drop_task,
            RunNow: self._run_now,
            Watch: self._watch,
            PastRuns: self._past_runs,
            Hour: self._hour,
            ResultsIn: self._results_in,
            MinutesOf: self._minutes_of,
        }
        self.server = Server(key_of(SECRET), answers)

    async def nodes(self) -> Sequence[Process]:
        self.looks += 1
        address = ("127.0.0.1", self.port)
        return [
            Process(
                name="scheduler",
                role="scheduler",
                node=1,
                partition=0,
                pid=0,
                epoch=1,
                restarts=0,
                ready=self.looks >= self.ready_at,
                link=("127.0.0.1", 0),
                admin=("127.0.0.1", 0),
                bind=address,
            )
        ]

    def _note(self, question: Any) -> None:
        self.asked.append(question)
        if self.refuses is not None:
            raise self.refuses

    async def _ping(self, _: Ping) -> Pong:
        return Pong()

    async def _explain(self, question: Explain) -> Explained:
        self._note(question)
        return Explained(question.run, "ping", "", "", "done", 0, 0, [], [], [], [], [], None, "")

    async def _results_of(self, question: ResultsOf) -> list[ResultRow]:
        return []

    async def _put_task(self, question: PutTask) -> TaskRow:
        self._note(question)
        return question.task

    async def _drop_task(self, question: DropTask) -> bool:
        self._note(question)
        return True

    def _run_now(self, question: RunNow) -> AsyncIterator[Event]:
        async def events() -> AsyncIterator[Event]:
            self._note(question)
            yield Event("asked", "run-1@0", [], wanted=question.pick)

        return events()

    async def _past_runs(self, question: PastRuns) -> RunPage:
        self._note(question)
        runs = [RunBrief(f"{kind}@7", kind, "", "", "done", 5, 3, 3, 2, 1, 0, "") for kind in ("ping", "http")]
        return RunPage(runs, "" if question.after else "5-http@7")

    async def _results_in(self, question: ResultsIn) -> ResultsPage:
        self._note(question)
        kept = Kept("shop", 7, "c1", "CN_1_2_3", "ping", "t", True, 1.5, "", 9, b'{"ms":1.5}')
        return ResultsPage([kept], question.after is None)

    async def _minutes_of(self, question: MinutesOf) -> MinutesPage:
        self._note(question)
        return MinutesPage([MinuteRow("shop", 7, "", "ping", "t", 3, 1, 0, 1.5, 2.5, None)], question.after is None)

    async def _hour(self, _: Hour) -> WheelShown:
        names = [f"task-{number}" for number in range(10_000)]
        slots = [Slot(minute, 9, 8, {"major": names, "ordinary": ["one"]}, 1) for minute in range(120)]
        return WheelShown(59, slots, 1.5, 2.5)

    def _watch(self, question: Watch) -> AsyncIterator[Event]:
        async def events() -> AsyncIterator[Event]:
            yield Event("ended", question.run, wanted=0)

        return events()


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    made = Scheduler()
    await made.server.start("127.0.0.1", made.port)
    yield made
    await made.server.stop()


@pytest.fixture
async def beside(scheduler: Scheduler, make: Make, tmp_path: Path) -> AsyncIterator[Beside]:
    """A face that asks this scheduler."""
    secret = tmp_path / "cluster.secret"
    secret.write_text(SECRET.hex())
    made = await make()
    await made.server.stop()
    made.settings = dataclasses.replace(made.settings, nodes=scheduler.nodes, cluster_secret_file=str(secret))
    made.begin()
    await made.server.start()
    yield made
    await made.server.stop()


@pytest.mark.parametrize("name", ["a/b", "a:b@7", "100%", "%41", "ü", "a b", "a+b"])
async def test_a_name_in_a_path_is_decoded_once(beside: Beside, scheduler: Scheduler, name: str) -> None:
    client = beside.client("measure:*", "tasks:*")
    encoded = quote(name, safe="")
    assert (await client.get(f"/api/v1/fleet/runs/{encoded}")).status_code == 200
    assert (await client.put(f"/api/v1/fleet/tasks/{encoded}", json={"kind": "ping"})).status_code == 200
    assert (await client.delete(f"/api/v1/fleet/tasks/{encoded}")).status_code == 200
    explained, put, dropped = scheduler.asked
    assert (explained.run, put.task.name, dropped.name) == (name, name, name)


async def test_a_scope_is_held_against_the_decoded_name(beside: Beside, scheduler: Scheduler) -> None:
    client = beside.client("tasks:a/*")
    assert (await client.delete("/api/v1/fleet/tasks/a%2Fb")).status_code == 200
    assert (await client.delete("/api/v1/fleet/tasks/a%252Fb")).status_code == 403


async def test_a_task_needs_the_right_to_measure_its_kind(beside: Beside, scheduler: Scheduler) -> None:
    client = beside.client("tasks:*", "measure:ping")
    assert (await client.put("/api/v1/fleet/tasks/shop", json={"kind": "ping"})).status_code == 200
    said = await client.put("/api/v1/fleet/tasks/shop", json={"kind": "exec"})
    assert (said.status_code, said.json()["code"]) == (403, "not_allowed")
    assert "measure:exec" in said.json()["detail"]
    assert len(scheduler.asked) == 1


async def test_results_and_roll_ups_come_in_pages_of_kinds_that_the_key_may_measure(
    beside: Beside, scheduler: Scheduler
) -> None:
    client = beside.client("tasks:shop", "measure:ping")
    for route, name in (("results", "client"), ("minutes", "mark")):
        said = (await client.get(f"/api/v1/fleet/tasks/shop/{route}", params={"first": 5, "last": 9})).json()
        assert said[route][0]["minute"] == 7
        more = {"after": said["next"], "first": 5, "last": 9, "limit": 2}
        again = (await client.get(f"/api/v1/fleet/tasks/shop/{route}", params=more)).json()
        assert again["next"] is None
        question = scheduler.asked[-1]
        assert (question.task, question.first, question.last, question.limit) == ("shop", 5, 9, 2)
        assert question.after == (7, said[route][0][name])
    assert (await client.get("/api/v1/fleet/tasks/shop/results")).json()["results"][0]["value"] == {"ms": 1.5}
    asked = scheduler.asked[-1]
    assert asked.last - asked.first == 59
    await client.get("/api/v1/fleet/tasks/shop/minutes", params={"mark": ""})
    assert scheduler.asked[-1].mark == ""
    count = len(scheduler.asked)
    for wrong in ({"first": 9, "last": 5}, {"first": -1}, {"limit": 0}, {"last": 1 << 60}, {"first": "x"}):
        answer = await client.get("/api/v1/fleet/tasks/shop/results", params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), wrong
    for scopes, path in ((("tasks:other", "measure:*"), "shop"), (("tasks:*", "measure:http"), "shop")):
        for route in ("results", "minutes"):
            answer = await beside.client(*scopes).get(f"/api/v1/fleet/tasks/{path}/{route}")
            assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
    assert len(scheduler.asked) == count + 2, "only the kind is seen in the answer"


@pytest.mark.parametrize("scopes", [("change:*",), ("send:*",)])
async def test_a_recurring_message_needs_the_rights_to_change_and_to_send(make: Make, scopes: tuple[str, ...]) -> None:
    client = (await make()).client(*scopes)
    said = await client.put("/api/v1/topics/orders/recurring/nightly", json={"cron": "0 3 * * *", "data": 1})
    assert (said.status_code, said.json()["code"]) == (403, "not_allowed")


@pytest.mark.parametrize("name", ["%FF", "%zz", "100%"])
async def test_a_name_that_cannot_be_decoded_is_refused(beside: Beside, scheduler: Scheduler, name: str) -> None:
    answer = await beside.client("measure:*").get(f"/api/v1/fleet/runs/{name}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert not scheduler.asked


async def test_a_number_beyond_64_bits_in_options_is_refused(beside: Beside, scheduler: Scheduler) -> None:
    client = beside.client("measure:*", "tasks:*")
    said = {"kind": "ping", "options": {"n": 1 << 70}}
    for answer in (
        await client.put("/api/v1/fleet/tasks/shop", json=said),
        await client.post("/api/v1/fleet/runs", json=said | {"pick": 1}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_body")
    assert not scheduler.asked


@pytest.mark.parametrize(
    "wrong",
    [
        {"pick": 1 << 31},
        {"pick": 0},
        {"pick": -1},
        {"kind": "k" * 65},
        {"target": "t" * 1_025},
        {"target": "a\0"},
        {"where": "(("},
    ],
)
async def test_a_run_that_is_refused_costs_nothing(beside: Beside, scheduler: Scheduler, wrong: dict[str, Any]) -> None:
    client = beside.client("measure:*")
    said = {"kind": "ping", "pick": 20_000}
    answer = await client.post("/api/v1/fleet/runs", json=said | wrong)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert not scheduler.asked
    assert (await client.post("/api/v1/fleet/runs", json=said)).status_code == 202


async def test_a_run_that_the_scheduler_refuses_costs_nothing(beside: Beside, scheduler: Scheduler) -> None:
    client = beside.client("measure:*")
    said = {"kind": "ping", "pick": 1 << 20}
    scheduler.refuses = CallError("busy", "too many watched runs")
    for _ in range(3):
        assert (await client.post("/api/v1/fleet/runs", json=said)).json()["code"] == "busy"
    scheduler.refuses = None
    assert (await client.post("/api/v1/fleet/runs", json=said)).status_code == 202


async def test_a_scheduler_that_gets_ready_while_a_request_waits_is_found(beside: Beside, scheduler: Scheduler) -> None:
    scheduler.looks, scheduler.ready_at = 0, 2
    answer = await beside.client("measure:*").post("/api/v1/fleet/runs", json={"kind": "ping", "pick": 1})
    assert (answer.status_code, scheduler.looks) == (202, 2), answer.text


async def test_the_largest_run_costs_one_full_bucket(beside: Beside, scheduler: Scheduler) -> None:
    client = beside.client("measure:*")
    said = {"kind": "ping", "pick": 1 << 20}
    assert (await client.post("/api/v1/fleet/runs", json=said)).status_code == 202
    refused = await client.post("/api/v1/fleet/runs", json=said)
    assert refused.json()["code"] == "rate_limited"
    assert float(refused.json()["retry_after"]) <= 2


STORE = "postgresql://s3cretuser@10.9.8.7:5432/s3cretbase"
SECRETS = ("s3cretuser", "10.9.8.7", "5432", "s3cretbase", "/srv/s3cret", "://")


async def test_no_answer_log_or_metric_tells_where_the_store_is(
    beside: Beside, scheduler: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    client = beside.client("measure:*", "tasks:*", "clients:*")
    scheduler.refuses = CallError("store", f'{STORE}: password authentication failed for user "s3cretuser"')
    for method, path, body in (
        ("POST", "runs", {"kind": "ping", "pick": 1}),
        ("GET", "runs/a@1", None),
        ("GET", "runs/a@1/events", None),
        ("GET", "runs/a@1/draws", None),
        ("PUT", "tasks/a", {"kind": "ping"}),
        ("DELETE", "tasks/a", None),
    ):
        answer = await client.request(method, f"/api/v1/fleet/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
        assert "password authentication failed" in answer.json()["detail"]
        assert not [word for word in SECRETS if word in answer.text], answer.text
    said = "".join(capsys.readouterr()) + str(beside.server.counts.counters())
    assert not [word for word in SECRETS if word in said.replace(beside.server.url, "")]


ROUTES = [
    ("GET", "/api/v1/likes/share/1"),
    ("POST", "/api/v1/presence"),
    ("GET", "/api/v1/presence/changes?users=7"),
    ("POST", "/api/v1/topics/orders/messages"),
    ("GET", "/api/v1/topics"),
    ("GET", "/api/v1/fleet/tasks"),
    ("GET", "/api/v1/rooms"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nodes_that_cannot_be_looked_up_hide_the_registry(make: Make, method: str, path: str) -> None:
    async def nowhere() -> Sequence[Process]:
        raise UserError("zk://s3cretuser@10.9.8.7:5432/s3cretbase does not answer; see /srv/s3cret/instance.json")

    made = await make()
    made.server._base.nodes = nowhere
    made.server._base.cluster_secret_file = "/srv/s3cret/cluster"
    scopes = ("likes:*", "presence:*", "send:*", "show:*", "tasks:*", "rooms:*")
    body = {"users": ["7"]} if "presence" in path else {"data": 1}
    answer = await made.client(*scopes).request(method, path, json=body if method == "POST" else None)
    if "rooms" not in path:
        assert answer.status_code == 503, answer.text
    assert not [word for word in SECRETS if word in answer.text], answer.text


async def test_an_event_source_on_a_run_that_has_ended_stops(beside: Beside) -> None:
    client = beside.client("measure:*")
    path = "/api/v1/fleet/runs/a@1/events"
    async with stream(beside.server.address, path, beside.key("measure:*")) as reader:
        ended = await reader.message()
    assert (ended.name, ended.id) == ("ended", "a@1/ended")
    again = await client.get(path, headers={"last-event-id": ended.id})
    assert (again.status_code, again.content) == (204, b""), "which ends an EventSource"
    other = await client.head(path, headers={"last-event-id": "a@0/ended"})
    assert other.status_code == 200, "it knows another run of this task"


async def test_the_history_has_the_kinds_that_a_key_may_measure(beside: Beside, scheduler: Scheduler) -> None:
    page = (await beside.client("measure:http").get("/api/v1/fleet/runs", params={"limit": 2})).json()
    assert ([run["run"] for run in page["runs"]], page["next"]) == (["http@7"], "5-http@7")
    rest = (await beside.client("measure:*").get("/api/v1/fleet/runs", params={"after": page["next"]})).json()
    assert ([run["run"] for run in rest["runs"]], rest["next"]) == (["ping@7", "http@7"], None)
    assert [(each.limit, each.after) for each in scheduler.asked] == [(2, ""), (50, "5-http@7")]
    assert (await beside.client("tasks:*").get("/api/v1/fleet/runs")).status_code == 403


async def test_the_wheel_names_few_tasks_and_counts_all(beside: Beside) -> None:
    answer = await beside.client("tasks:*").get("/api/v1/fleet/wheel")
    assert len(answer.content) < 64 << 10
    first = answer.json()["minutes"][0]
    assert (first["tasks"], len(first["names"]), first["missed"]) == ({"major": 10_000, "ordinary": 1}, 6, 1)
    assert (await beside.client("tasks:one").get("/api/v1/fleet/wheel")).status_code == 403
