"""The console under load that nobody means well: many open pages, slow readers, many rows, large clusters."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from muster_server.systems.console import audit
from muster_server.systems.console.http import streams
from tests.console.conftest import Make
from tests.console.served import Browser, Served
from tests.console.test_sampler import ANSWER_MAX, NODES, Cluster, read, still
from tests.waiting import PATIENT_S, until

ROWS = 100_000
PATHS = ("overview", "history", "nodes?limit=200", "topology", "audit", "keys")


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each stream are open in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def page(served: Served, browser: Browser, *, buffer: int = 64 << 10) -> AsyncIterator[asyncio.StreamReader]:
    """An open page: its event stream after the head of the answer."""
    host, port = served.face.address
    reader, writer = await asyncio.open_connection(host, port, limit=buffer)
    try:
        head = f"GET /api/v1/console/events HTTP/1.1\r\nhost: {host}:{port}\r\ncookie: {browser.cookie}\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(PATIENT_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("pages", [200, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_each_of_many_open_pages_gets_the_newest_summary(
    make: Make, monkeypatch: pytest.MonkeyPatch, many_files: None, pages: int
) -> None:
    served = await make()
    cluster = Cluster(monkeypatch, 3)
    of = still(served, cluster)
    mine = await served.logged_in("bob")
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(page(served, mine)) for _ in range(pages)]
        await until(lambda: served.entry.status()["pages"] == pages)
        await read(of, cluster)
        of.serial += 1
        for wake in tuple(of.on_sample):
            wake()
        async with asyncio.timeout(PATIENT_S):
            for reader in readers:
                await reader.readuntil(b"event: sample")
        answer = await mine.ask("GET", "/api/v1/console/nodes")
        assert answer.json()["total"] == 3, "other requests are answered beside them"
    await until(lambda: not of.on_sample and served.entry.status()["pages"] == 0)


async def test_a_page_that_reads_nothing_is_cut_and_the_others_go_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.5)
    served = await make()
    cluster = Cluster(monkeypatch, 3)
    of = still(served, cluster)
    await read(of, cluster)
    assert of.seen is not None
    alarm = msgspec.structs.replace(of.seen.overview, instance="x" * 200_000)
    of.seen = replace(of.seen, overview=alarm)
    mine = await served.logged_in()

    async def told() -> None:
        """Summaries until the slow page is cut."""
        while served.entry.status()["pages"] == 2:
            of.serial += 1
            for wake in tuple(of.on_sample):
                wake()
            await asyncio.sleep(0)

    async with page(served, mine) as quick, page(served, mine):
        reading = asyncio.create_task(_read_on(quick))
        await until(lambda: served.entry.status()["pages"] == 2)
        async with asyncio.timeout(PATIENT_S):
            await told()
        of.serial += 1
        assert served.entry.status()["pages"] == 1
        assert not reading.done(), "the page that reads has lost nothing"
        reading.cancel()


async def _read_on(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def test_a_log_of_a_hundred_thousand_actions_is_searched_a_page_at_a_time(make: Make) -> None:
    served = await make()
    mine = await served.logged_in()
    with (served.folder / audit.FILE).open("ab") as log:
        for number in range(ROWS):
            entry = audit.Entry(id=f"{number}", at=number, what="begins", user="eve", action=f"POST /{number:06}")
            log.write(msgspec.json.encode(entry) + b"\n")
    first = await mine.ask("GET", "/api/v1/console/audit?limit=200")
    assert len(first.content) <= ANSWER_MAX
    assert first.json()["rows"][0]["action"] == f"POST /{ROWS - 1:06}"
    assert first.json()["more"]
    found = (await mine.ask("GET", "/api/v1/console/audit?search=000042")).json()
    assert [each["action"] for each in found["rows"]] == ["POST /000042"]


@pytest.mark.soak
async def test_the_first_byte_of_each_page_of_a_large_cluster_comes_within_a_second(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await make()
    cluster = Cluster(monkeypatch, NODES)
    await read(still(served, cluster), cluster)
    mine = await served.logged_in()
    for path in (*PATHS, f"nodes/{cluster.processes[7].name}"):
        took = []
        for _ in range(100):
            began = time.monotonic()
            answer = await mine.ask("GET", f"/api/v1/console/{path}")
            took.append(time.monotonic() - began)
            assert answer.status_code == 200, path
            assert len(answer.content) <= ANSWER_MAX, path
        assert sorted(took)[98] <= 1.0, f"{path}: p99 {sorted(took)[98]:.2f} s"
