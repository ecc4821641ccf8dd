"""Requests at real processes, with every role killed: each has a reply of one responder, or ends in its time."""

import asyncio
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import pytest

import muster
from tests.documents import ROOT, fenced
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S

NODES: Final = {"gateways": 2, "brokers": "1x2", "routers": "1x2", "proxies": 2}
CLIENTS: Final = 4
RESPONDERS: Final = 3
ROOM: Final = "prices"
REQUEST_S: Final = 5.0


class Handled:
    """What the responders have answered."""

    def __init__(self) -> None:
        self.of: Counter[bytes] = Counter()

    async def answer(self, request: muster.Request) -> bytes:
        """Answers with the request."""
        self.of[request.data] += 1
        return request.data


@contextlib.asynccontextmanager
async def responding(instance: Instance, handled: Handled) -> AsyncIterator[None]:
    """Responders, each with a client of its own."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(RESPONDERS):
            client = await stack.enter_async_context(muster.connect(instance.folder.path))
            await stack.enter_async_context(client.respond(ROOM, handled.answer))
        yield


async def asking(instance: Instance, number: int, outcomes: dict[bytes, str], over: asyncio.Event) -> None:
    """Ask until it is over, at least once."""
    async with muster.connect(instance.folder.path) as client:
        for at in range(1_000_000):
            data = b"%d of %d" % (at, number)
            try:
                reply = await client.request(ROOM, data, timeout=REQUEST_S)
            except (muster.TimedOut, muster.NoResponders) as error:
                outcomes[data] = error.code
                await asyncio.sleep(0.05)
            else:
                assert reply.data == data
                outcomes[data] = "replied"
            if over.is_set() and outcomes[data] == "replied":
                return


async def run(instance: Instance, kills: tuple[str, ...]) -> tuple[Handled, dict[bytes, str]]:
    """All clients and responders, and the kills one after the other meanwhile. Each client ends with a reply."""
    handled, outcomes, over = Handled(), dict[bytes, str](), asyncio.Event()
    async with responding(instance, handled), asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(asking(instance, number, outcomes, over))
        for name in kills:
            await asyncio.sleep(0.5)
            await instance.renew(name)
        await asyncio.sleep(0.5)
        over.set()
    return handled, outcomes


async def test_on_lossy_links_each_request_has_one_reply(make: Make, figures: Callable[..., None]) -> None:
    instance = make(up=NODES, faults={"loss": 0.05, "burst": 3, "duplicate": 0.01})
    with instance.running():
        handled, outcomes = await run(instance, ())
    figures(outcomes=Counter(outcomes.values()))
    assert set(handled.of.values()) == {1}
    assert Counter(outcomes.values())["no_responders"] == 0
    assert {data for data, outcome in outcomes.items() if outcome == "replied"} <= set(handled.of)


async def test_with_every_role_killed_none_is_handled_twice_and_all_clients_go_on(
    make: Make, figures: Callable[..., None]
) -> None:
    instance = make(up=NODES | APART)
    with instance.running():
        kills = [name for role in ("gateway", "broker", "router", "proxy") for name in instance.names(role)]
        handled, outcomes = await run(instance, tuple(kills))
    figures(outcomes=Counter(outcomes.values()))
    assert set(handled.of.values()) == {1}
    assert {data for data, outcome in outcomes.items() if outcome == "replied"} <= set(handled.of)


# --- as the page says -----------------------------------------------------------------------------------------------

PAGE: Final = (ROOT / "docs" / "requests.md").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One instance for all tests that kill nothing."""
    instance = Instance(tmp_path_factory.mktemp("requests"), "[probes]\nevery_ms = 0\n")
    with instance.running():
        yield instance


async def test_the_example_of_the_page_runs(shared: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(shared.folder.path))
    (text,) = [each for each in fenced(PAGE, "python") if "def serve" in each]
    names: dict[str, Any] = {}
    exec(compile(text, "docs/requests.md", "exec"), names)
    assert await names["ask"]() is None, "nobody answers yet"
    serving = asyncio.create_task(names["serve"]())
    try:
        async with asyncio.timeout(PATIENT_S):
            while (price := await names["ask"]()) is None:  # noqa: ASYNC110 - the responder joins meanwhile
                await asyncio.sleep(0.05)
        assert price == pytest.approx(9.2)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_the_commands_of_the_page_run(shared: Instance) -> None:
    def ran(*words: str) -> tuple[int, str]:
        done = shared.ran("rooms", "request", *words, seconds=PATIENT_S)
        return done.returncode, done.stdout.decode().strip()

    assert await asyncio.to_thread(ran, "nobody", "EUR") == (3, "the room has no responder")
    words = (sys.executable, "-m", "muster_server.control.cli.main", "rooms", "respond", "prices", "1.09", "--json")
    responder = await asyncio.create_subprocess_exec(
        *words, env=shared.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert responder.stdout is not None
    try:
        async with asyncio.timeout(PATIENT_S):
            ask = ("prices", "EUR", "--timeout", "60")
            while (said := await asyncio.to_thread(ran, *ask))[0] == 3:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
            assert said == (0, "1.09")
            assert json.loads(await responder.stdout.readline()) == {"room": "prices", "sender": 1, "data": "EUR"}
        code, text = await asyncio.to_thread(ran, "prices", "USD", "--json", "--timeout", "60")
        assert (code, json.loads(text)["data"]) == (0, "1.09")
    finally:
        responder.terminate()
        await responder.wait()
    assert responder.returncode == 0, "SIGTERM is its end"


def test_the_page_names_the_limits() -> None:
    from muster import requests, responder
    from muster.sizes import REQUEST_BYTES_MAX
    from muster_server.systems.edge.calls import CALLS_MAX
    from muster_server.systems.rooms.calls import REQUEST_S_MAX

    text = re.sub(r"(?<=\d),(?=\d{3})", "", PAGE)
    for limit in (
        f"{REQUEST_BYTES_MAX} bytes",
        f"{requests.REQUEST_S_MAX:g} s; {REQUEST_S_MAX:g} s by",
        f"| {requests.UNDER_WAY_MAX} |",
        f"| {CALLS_MAX} |",
        f"{responder.WAITING_MAX}, beside `at_once` ({responder.AT_ONCE}, at most {responder.AT_ONCE_MAX})",
        f"| {requests.RESPONDERS_MAX} |",
        f"| {requests.ROOMS_MAX} |",
        f"{160 - len(requests.SUFFIX)} bytes behind the namespace",
        f"within {requests.SILENCE_S * 1_000:g} ms",
        f"every {requests.REFRESH_S:g} s",
    ):
        assert limit in text, limit
