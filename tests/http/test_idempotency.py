"""Every route that changes something by POST or PATCH takes an `Idempotency-Key`: the same request is carried out once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import pytest

from muster_server.plane.systems import actions
from muster_server.systems.fleet.http.routes import FleetFace
from muster_server.systems.fleet.questions import Refreshed
from muster_server.systems.http.problems import Problem
from muster_server.systems.inbox.http.routes import InboxFace
from muster_server.systems.inbox.shapes import Count, Counts, Done, Noted, Notify, Numbered
from muster_server.systems.likes.http.routes import LikesFace
from muster_server.systems.messages.http.routes import MessagesFace
from muster_server.systems.messages.shapes import Changed, Leased, LeaseSaid, LettersChanged, Sent, TagChanged
from muster_server.systems.messages.topics import Topic
from muster_server.systems.presence.http.send import Sender
from muster_server.systems.presence.http.sent import NewMessage, User
from muster_server.systems.presence.http.sent import Sent as SentToUsers
from tests.http.conftest import Beside, Make

ALL = [f"{action}:*" for action in actions()]
NAMED: Final = {
    "/api/v1/presence": "it reads",
    "/api/v1/likes/feed": "it reads",
    "/api/": "Centrifugo's own API: idempotency_key in the body of publish and broadcast",
}
"""Routes of POST without the header, by the begin of their path."""
ROOMS: Final = {f"/api/v1/rooms/{{room}}/{word}" for word in ("messages", "commands", "request")}
"""Tested with a real room in `test_routes.py`."""
IMPORTS: Final = "/api/v1/likes/imports"
RUNS: Final = {"/api/v1/fleet/runs"}
"""Tested with a scheduler in `test_fleet_routes.py` and `tests/faults/test_fleet.py`."""
REQUESTS: Final[dict[str, tuple[str, Any, Any]]] = {
    "/api/v1/fleet/refresh": ("/api/v1/fleet/refresh", None, None),
    "/api/v1/topics/{topic}": ("/api/v1/topics/orders", {"workers": 3}, {"workers": 4}),
    "/api/v1/topics/{topic}/messages": ("/api/v1/topics/orders/messages", {"data": 1}, {"data": 2}),
    "/api/v1/topics/{topic}/messages/{id}/{verb}": (
        "/api/v1/topics/orders/messages/a/postpone",
        {"by_ms": 1_000},
        {"by_ms": 2_000},
    ),
    "/api/v1/topics/{topic}/dead/{id}/replay": ("/api/v1/topics/orders/dead/a/replay", None, None),
    "/api/v1/topics/{topic}/dead/{id}/drop": ("/api/v1/topics/orders/dead/a/drop", None, None),
    "/api/v1/topics/{topic}/dead/replay": ("/api/v1/topics/orders/dead/replay", None, None),
    "/api/v1/topics/{topic}/dead/drop": ("/api/v1/topics/orders/dead/drop", None, None),
    "/api/v1/topics/{topic}/tags/{tag}/{verb}": (
        "/api/v1/topics/orders/tags/summer/move",
        {"to": 1_900_000_000_000},
        {"to": 1_900_000_000_001},
    ),
    "/api/v1/topics/{topic}/lease": ("/api/v1/topics/orders/lease", {"most": 1}, {"most": 2}),
    "/api/v1/topics/{topic}/leases": ("/api/v1/topics/orders/leases", {}, {"done": []}),
    "/api/v1/likes/batch": ("/api/v1/likes/batch", [{"item": "a:1", "user": "7"}], [{"item": "a:1", "user": "8"}]),
    "/api/v1/leaderboards/{leaderboard}": (
        "/api/v1/leaderboards/game:7",
        {"scores": [{"member": "alice", "score": 1}]},
        {"scores": [{"member": "alice", "score": 2}]},
    ),
    "/api/v1/leaderboards/{leaderboard}/members/{member}/raise": (
        "/api/v1/leaderboards/game:7/members/alice/raise",
        {"by": 1},
        {"by": 2},
    ),
    "/api/v1/users/{user}/likes/erase": ("/api/v1/users/7/likes/erase", None, None),
    "/api/v1/send": ("/api/v1/send", {"users": ["7"], "data": "x"}, {"users": ["7"], "data": "y"}),
    "/api/v1/presence/end": ("/api/v1/presence/end", {"users": ["7"]}, {"users": ["8"]}),
    "/api/v1/inbox": (
        "/api/v1/inbox",
        {"users": ["7"], "kind": "news", "data": 1},
        {"users": ["7"], "kind": "news", "data": 2},
    ),
    "/api/v1/inbox/{verb}": ("/api/v1/inbox/read?user=7", {"to": "5-1"}, {"to": "6-1"}),
    "/api/v1/broadcasts": (
        "/api/v1/broadcasts",
        {"audience": "all", "kind": "news", "data": 1},
        {"audience": "all", "kind": "news", "data": 2},
    ),
}
"""For each route a path, a body and another body; None: it takes none."""


class Receives:
    """Takes a message, a change, or what is said of leases; has none to lease."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def send(self, topic: str, sends: Any) -> list[Sent]:
        return [Sent(id="m", due_at=self._count)]

    async def change(self, topic: str, changes: Any) -> list[Changed]:
        return [Changed(id="a", outcome="done", state=None, due_at=self._count)]

    async def lease(self, asked: Any) -> list[Leased]:
        return []

    async def end_leases(self, topic: str, ends: Any) -> list[LeaseSaid]:
        return []


class Nodes:
    """All nodes behind the routes: each request is counted and well answered, or refused with a problem."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.refuses: Problem | None = None
        patch.setattr(MessagesFace, "ask", self.messages)
        patch.setattr(MessagesFace, "need", self.nothing)
        patch.setattr(MessagesFace, "receive", self.receive)
        patch.setattr(InboxFace, "ask", self.inbox)
        patch.setattr(InboxFace, "lookout", self.nothing)
        patch.setattr(FleetFace, "ask", self.fleet)
        patch.setattr(LikesFace, "node", self.likes)
        patch.setattr(Sender, "send", self.send)
        patch.setattr(Sender, "each", self.each)

    def count(self) -> int:
        self.asked += 1
        if self.refuses is not None:
            raise self.refuses
        return self.asked

    async def nothing(self, *_: Any) -> None:
        """A node is known."""

    async def messages(self, question: str, asked: Any, kind: Any, timeout_s: float = 0) -> Any:
        count = self.count()
        match question:
            case "topic-change":
                return Topic(number=1, name="orders", callback="pull:", secrets=("whsec_a",), workers=count)
            case "replay-page" | "drop-page":
                return LettersChanged([], count, "")
            case "tag-page":
                return TagChanged(1, 1, count, 0, count, "")
            case "replay" | "drop":
                return [Changed(id="a", outcome="done", state=None, due_at=count)]
            case _:
                return []

    async def receive(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(Receives(self.count()))

    async def inbox(self, question: Any, answer: Any) -> Any:
        if isinstance(question, Count):
            return Counts({}, {})
        count = self.count()
        if isinstance(question, Notify):
            return [Noted(count, "new")]
        return Numbered(count, "new") if answer is Numbered else Done(count)

    async def fleet(self, question: Any, answer: Any) -> Refreshed:
        return Refreshed(self.count(), {})

    @asynccontextmanager
    async def likes(self) -> AsyncIterator["Nodes"]:
        yield self

    async def put_all(self, changes: list[Any]) -> list[bool]:
        return [self.count() > 1 for _ in changes]

    @property
    def leaderboards(self) -> "Nodes":
        return self

    @property
    def erasures(self) -> "Nodes":
        return self

    async def begin(self, user: int) -> int:
        return self.count()

    async def put(self, name: bytes, scores: Any, only: str) -> int:
        return self.count()

    async def add(self, name: bytes, member: bytes, by: float) -> float:
        return float(self.count())

    async def send(self, asked: NewMessage, users: Any, data: bytes) -> SentToUsers:
        return SentToUsers([User(str(self.count()))])

    async def each(self, users: Any, names: Any, ask: Any) -> SentToUsers:
        return SentToUsers([User(str(self.count()))])


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


@pytest.fixture
async def client(make: Make, nodes: Nodes) -> httpx2.AsyncClient:
    beside: Beside = await make(requests_rate=100_000, messages_rate=100_000)
    return beside.client(*ALL)


async def test_every_route_that_changes_something_takes_the_header(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    taken: set[str] = set()
    for path, item in document["paths"].items():
        for method in item.keys() & {"post", "patch"}:
            if any(path == named or (named == "/api/" and not path.startswith("/api/v1/")) for named in NAMED):
                continue
            parameters = {each["name"] for each in item[method].get("parameters", [])}
            assert "Idempotency-Key" in parameters, (method, path)
            assert {"409", "422"} <= item[method]["responses"].keys(), (method, path)
            taken.add(path)
    assert taken == REQUESTS.keys() | ROOMS | RUNS | {IMPORTS}


async def test_a_repeated_import_is_begun_once(client: httpx2.AsyncClient) -> None:
    said = {"url": "redis://127.0.0.1:1/0", "pattern": "share:*"}
    answers = [
        await client.post(IMPORTS, json=said | more, headers={"idempotency-key": "one"})
        for more in ({}, {}, {"pattern": "other:*"})
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 422], [answer.text for answer in answers]
    assert answers[0].content == answers[1].content
    assert len((await client.get(IMPORTS)).json()["imports"]) == 1


async def ask(client: httpx2.AsyncClient, route: str, key: str, other: bool = False) -> httpx2.Response:
    path, body, another = REQUESTS[route]
    content = another if other else body
    method = "PATCH" if route == "/api/v1/topics/{topic}" else "POST"
    options: dict[str, Any] = {} if content is None else {"json": content}
    return await client.request(method, path, headers={"idempotency-key": key}, **options)


async def test_a_repeated_request_gets_the_same_answer_and_does_nothing(
    client: httpx2.AsyncClient, nodes: Nodes
) -> None:
    for route, (_, body, _) in REQUESTS.items():
        nodes.asked = 0
        first = await ask(client, route, f"key of {route}")
        count = nodes.asked
        again = await ask(client, route, f"key of {route}")
        assert (first.status_code, "idempotency-replayed" in first.headers) == (200, False), (route, first.text)
        assert (again.status_code, again.content) == (200, first.content), route
        assert again.headers["idempotency-replayed"] == "true", route
        assert nodes.asked == count <= 1, route
        if body is not None:
            wrong = await ask(client, route, f"key of {route}", other=True)
            assert (wrong.status_code, wrong.json()["code"]) == (422, "idempotency_mismatch"), (route, wrong.text)
            assert nodes.asked == count, route


async def test_an_empty_key_is_refused_before_anything_is_done(client: httpx2.AsyncClient, nodes: Nodes) -> None:
    for route in REQUESTS:
        answer = await ask(client, route, "")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), (route, answer.text)
        assert "Idempotency-Key" in answer.json()["detail"]
    assert nodes.asked == 0


async def test_a_repeat_is_carried_out_after_a_refusal_without_an_effect(
    client: httpx2.AsyncClient, nodes: Nodes
) -> None:
    """Entries, broadcasts, messages and raised scores may have been taken by a node that then did not answer, so their
    answers stay."""
    kept = {
        "/api/v1/broadcasts",
        "/api/v1/inbox",
        "/api/v1/leaderboards/{leaderboard}/members/{member}/raise",
        "/api/v1/send",
        "/api/v1/topics/{topic}/messages",
        "/api/v1/topics/{topic}/messages/{id}/{verb}",
    }
    for route in REQUESTS:
        nodes.asked, nodes.refuses = 0, Problem("unavailable", "no node answers")
        if (await ask(client, route, f"key of {route}")).status_code == 200:
            assert route == "/api/v1/topics/{topic}/leases", "it has nothing to ask"
            continue
        nodes.refuses = None
        again = await ask(client, route, f"key of {route}")
        assert again.status_code == (503 if route in kept else 200), (route, again.text)


async def test_an_answer_that_nobody_knows_is_kept(client: httpx2.AsyncClient, nodes: Nodes) -> None:
    for route in REQUESTS.keys() - {"/api/v1/topics/{topic}/leases"}:
        nodes.refuses = Problem("timeout")
        assert (await ask(client, route, f"key of {route}")).status_code == 504, route
        nodes.refuses = None
        assert (await ask(client, route, f"key of {route}")).status_code == 504, route
