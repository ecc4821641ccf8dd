"""Calls of clients that other systems answer: each is answered once, whatever its system does."""

import asyncio
from typing import Any, cast

import pytest

from muster_server._engines import Grant
from muster_server.plane import ways
from muster_server.plane.calls import CallError
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.plane.users import EMBEDDED_USER
from muster_server.systems.edge import calls
from muster_server.systems.edge.calls import Calls
from muster_server.systems.presence.asking import Readers
from muster_server.systems.presence.calls import StatusCalls
from muster_server.systems.presence.status import NewStatus, Status
from tests.waiting import PATIENT_S

MADE = f"{__name__}:made"
ALL = Grant([("*", ["read", "publish"])])


class Echo:
    """Answers with the user and the data, or as the data say."""

    outcomes = ("echoed",)

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.closed = False

    async def answer(self, user: int, grant: Grant, data: bytes) -> tuple[str, bytes]:
        """As `ways.Calls`."""
        if data == b"hold":
            await self.held.wait()
        if data == b"refuse":
            raise ways.CallRefused("not_allowed")
        return "echoed", b"%d:%s" % (user, data)

    async def close(self) -> None:
        """As `ways.Calls`."""
        self.closed = True


class Engine:
    """Takes answers."""

    def __init__(self) -> None:
        self.answers: dict[int, bytes | str] = {}
        self._told = asyncio.Event()

    def answer_call(self, question_id: int, data: bytes | None, failure: str = "internal") -> None:
        """As `EdgeEngine.answer_call`."""
        assert question_id not in self.answers, "it was answered before"
        self.answers[question_id] = failure if data is None else data
        self._told.set()

    async def answered(self, count: int) -> None:
        """Return once this many calls are answered."""
        async with asyncio.timeout(PATIENT_S):
            while len(self.answers) < count:
                self._told.clear()
                await self._told.wait()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Echo:
    """The answers to the method `test.echo`."""
    echo = Echo()
    monkeypatch.setattr(calls, "named", lambda path: lambda spec, context: echo)
    return echo


async def test_each_call_is_answered_once_and_too_many_are_refused(made: Echo) -> None:
    engine = Engine()
    answering = Calls(cast(Any, engine), {"test.echo": MADE}, cast(Spec, None))
    answering.call(1, 7, ALL, "test.echo", b"early")
    assert engine.answers == {1: "internal"}, "it is not open"
    async with answering.opened(Context(cast(Any, None), lambda: None, lambda: None)):
        answering.call(2, 7, ALL, "test.echo", b"{}")
        answering.call(3, 7, ALL, "test.echo", b"refuse")
        answering.call(4, 7, ALL, "test.other", b"{}")
        for question in range(10, 10 + calls.CALLS_MAX - 2):
            answering.call(question, 8, ALL, "test.echo", b"hold")
        answering.call(5, 8, ALL, "test.echo", b"{}")
        await engine.answered(5)
        assert engine.answers == {1: "internal", 2: b"7:{}", 3: "not_allowed", 4: "internal", 5: "too_many_requests"}
        made.held.set()
        await engine.answered(5 + calls.CALLS_MAX - 2)
        made.held.clear()
        answering.call(6, 8, ALL, "test.echo", b"hold")
    assert made.closed
    assert 6 not in engine.answers, "the edge ends"
    assert {name: count for name, _, count in answering.counters()} == {
        'calls{method="test.echo",outcome="bad_request"}': 0,
        'calls{method="test.echo",outcome="echoed"}': calls.CALLS_MAX - 1,
        'calls{method="test.echo",outcome="internal"}': 1,
        'calls{method="test.echo",outcome="not_allowed"}': 1,
        'calls{method="test.echo",outcome="not_available"}': 0,
        'calls{method="test.echo",outcome="too_many_requests"}': 1,
    }, "a method that no system has is none of the names"


class FakeReaders:
    """Takes statuses."""

    def __init__(self) -> None:
        self.set: list[tuple[int, NewStatus]] = []
        self.error: CallError | None = None

    async def set_status(self, user: int, status: NewStatus) -> Status | None:
        """As `Readers.set_status`."""
        if self.error is not None:
            raise self.error
        self.set.append((user, status))
        return Status(mode=status.mode, text=status.text, at=1, until=None)


async def test_a_client_sets_the_status_of_its_own_user() -> None:
    readers = FakeReaders()
    answers = StatusCalls(cast(Readers, readers))
    outcome, said = await answers.answer(7, ALL, b'{"mode": "dnd", "text": "in a meeting", "expires": 60}')
    assert outcome == "answered"
    assert said == b'{"status":{"mode":"dnd","text":"in a meeting","at":1,"until":null}}'
    assert readers.set == [(7, NewStatus(mode="dnd", text="in a meeting", end_ms=60_000))]
    await answers.answer(7, ALL, b"")
    assert readers.set[1:] == [(7, NewStatus())]
    wrong = (b'{"mode": "asleep"}', b'{"text": "two\\nlines"}', b"[" * 10_000, b"\xff", b'{"user": 8}')
    for user, data, failure in ((EMBEDDED_USER, b"{}", "not_allowed"), *((7, data, "bad_request") for data in wrong)):
        with pytest.raises(ways.CallRefused) as refused:
            await answers.answer(user, ALL, data)
        assert refused.value.failure == failure
    for code, failure in (
        ("store", "internal"),
        ("away", "internal"),
        ("full", "internal"),
        ("question", "not_available"),
    ):
        readers.error = CallError(code, "x")
        with pytest.raises(ways.CallRefused) as refused:
            await answers.answer(7, ALL, b"{}")
        assert refused.value.failure == failure
    assert len(readers.set) == 2
