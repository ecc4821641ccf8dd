"""The server turns its engine, hands out events, drains in time and never swallows a failure."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.plane.auth import TokenAuthenticator, answering
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.plane.users import Texts
from tests.fakes.engine import FakeEngine
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()


def fake() -> FakeEngine:
    return FakeEngine(link_bind=("127.0.0.1", 0))


def order(engine: FakeEngine, text: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), engine.addresses()[-1])


@asynccontextmanager
async def running(server: Server, drain_s: float = 1.0) -> AsyncIterator[asyncio.Event]:
    stop = asyncio.Event()
    task = asyncio.create_task(server.run(stop, drain_s))
    try:
        yield stop
    finally:
        stop.set()
        await task


async def test_the_first_turn_needs_no_datagram() -> None:
    server = Server(Role(fake()), LOG)
    heard: list[bool] = []
    server.on_ready = heard.append
    async with running(server):
        await until(lambda: server.ready)
    assert heard == [True]


async def test_while_work_waits_turns_follow_and_others_get_their_time() -> None:
    engine = fake()
    engine.more = 50
    server = Server(Role(engine), LOG)
    others = 0
    async with running(server):
        while engine.turns < 50:
            await asyncio.sleep(0)
            others += 1
            assert others < 500
        assert others >= 20
        still = engine.turns
        await asyncio.sleep(0.05)
        assert engine.turns == still, "an idle engine is not turned"


async def test_a_question_is_answered_by_the_authenticator() -> None:
    engine = fake()
    server = Server(
        Role(engine, {"authenticate": answering(engine, TokenAuthenticator(b"token", "read"), Texts())}), LOG
    )
    async with running(server):
        order(engine, "authenticate token")
        await until(lambda: len(engine.answers) == 1)
        order(engine, "authenticate wrong")
        await until(lambda: len(engine.answers) == 2)
    assert engine.answers == [(0, 1), (1, None)]


def test_a_lost_link_is_a_warning_that_names_the_peer_and_an_orderly_end_is_none() -> None:
    with capture_logs() as told:
        server = Server(Role(fake()), structlog.get_logger())
        server.name_of = lambda node: {2: "muster-broker"}.get(node, "")
        for event in (
            ("link_up", 2, "broker", "connected"),
            ("link_down", 2, "broker", "silent"),
            ("link_down", 9, "broker", "closed"),
            ("link_refused", 9, "broker", ""),
            ("link_differs", 9, "broker", (2, 3)),
        ):
            server._dispatch(event)
        server.draining = True
        server._dispatch(("link_down", 2, "broker", "silent"))
        server.engine.close()
    assert [(line["log_level"], line["event"], line["peer"], line.get("peer_name")) for line in told] == [
        ("info", "link_up", 2, "muster-broker"),
        ("warning", "link_down", 2, "muster-broker"),
        ("info", "link_down", 9, None),
        ("warning", told[3]["event"], 9, None),
        ("warning", told[4]["event"], 9, None),
        ("info", "link_down", 2, "muster-broker"),
    ]
    assert "no version of the protocol in common" in told[4]["event"]
    assert told[4]["theirs"] == [2, 3]


async def test_not_ready_is_heard() -> None:
    engine = fake()
    server = Server(Role(engine), LOG)
    async with running(server):
        await until(lambda: server.ready)
        order(engine, "not_ready loading")
        await until(lambda: not server.ready)


async def test_an_engine_that_raises_ends_the_server() -> None:
    engine = fake()
    server = Server(Role(engine), LOG)
    task = asyncio.create_task(server.run(asyncio.Event(), 1.0))
    await until(lambda: server.ready)
    order(engine, "raise")
    with pytest.raises(RuntimeError, match="asked to"):
        await asyncio.wait_for(task, PATIENT_S)
    assert engine.closed


async def test_an_engine_that_never_drains_is_closed_at_the_deadline() -> None:
    engine = fake()
    engine.stuck = True
    server = Server(Role(engine), LOG)
    async with asyncio.timeout(PATIENT_S):
        async with running(server, drain_s=0.05):
            await until(lambda: server.ready)
    assert engine.draining
    assert engine.closed


async def test_an_engine_that_raises_while_it_drains_ends_the_server_with_that() -> None:
    engine = fake()
    engine.stuck = True
    server, stop = Server(Role(engine), LOG), asyncio.Event()
    task = asyncio.create_task(server.run(stop, 60))
    await until(lambda: server.ready)
    stop.set()
    await until(lambda: server.draining)
    order(engine, "raise")
    with pytest.raises(RuntimeError, match="asked to"):
        await asyncio.wait_for(task, PATIENT_S)
    assert engine.closed


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ValueError, match="admit every client"):
        TokenAuthenticator(b"", "read")
