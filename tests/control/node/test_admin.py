"""Administration answers over real HTTP beside the running engine."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import structlog
from prometheus_client import generate_latest

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.control.node import admin, metrics, pace
from muster_server.control.terminal import common
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.plane.spec import AdminAccess
from tests.certificates import certificates
from tests.control.nodes import processes
from tests.fakes.engine import FakeEngine
from tests.waiting import PATIENT_S

LOG = structlog.get_logger()


class Site:
    """A running admin port with its server."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(server.run(self._stop, 1.0))

    async def end(self) -> None:
        """The engine's end; administration goes on."""
        self._stop.set()
        await self._running

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def json(self, path: str) -> Any:
        return json.loads((await self.get(path))[1])


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    server = Server(Role(FakeEngine(link_bind=("127.0.0.1", 0))), LOG)
    http = admin.http(admin.Admin(server, {"role": "gateway", "node": 3, "name": "muster-gateway", "version": "0.0.0"}))
    listener = admin.listen(("127.0.0.1", 0))
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    made = Site(server, listener.getsockname()[1])
    yield made
    http.end()
    await serving
    await made.end()


@contextlib.asynccontextmanager
async def entered(access: AdminAccess, token: bytes) -> AsyncIterator[Process]:
    """A router's admin port, as a command with the same configuration knows it."""
    engine = FakeEngine(link_bind=("127.0.0.1", 0))
    about = {"role": "router", "node": 1, "name": "router", "version": "0"}
    server = Server(Role(engine), LOG)
    server.ready = True
    http = admin.http(admin.Admin(server, about, token=token), access)
    listener = admin.listen(("127.0.0.1", 0))
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        yield msgspec.structs.replace(processes()[0], name="router", admin=listener.getsockname()[:2], access=access)
    finally:
        http.end()
        await serving
        engine.close()


async def test_health_is_told_apart_from_readiness(site: Site) -> None:
    assert await site.get("/healthz") == (200, '{"status":"ok"}\n')
    assert (await site.get("/readyz"))[0] == 200
    site.server.ready = False
    assert (await site.get("/readyz"))[0] == 503
    assert (await site.get("/healthz"))[0] == 200


@pytest.mark.parametrize("path", ["/readyz", "/metrics", "/api/v1/status", "/api/v1/rooms", "/api/v1/rooms/room-0"])
async def test_where_the_engine_has_ended_it_is_asked_nothing(site: Site, path: str) -> None:
    assert (await site.get(path))[0] == 200
    await site.end()
    site.server.draining = False  # as after a failure of the engine
    assert (await site.get(path))[0] == 503
    assert (await site.get("/healthz"))[0] == 200


async def test_metrics_carry_the_engines_counters_by_reason(site: Site) -> None:
    status, body = await site.get("/metrics")
    lines = body.splitlines()
    assert status == 200
    assert 'muster_datagrams_received_total{name="muster-gateway",node="3",role="gateway"} 7.0' in lines
    assert 'muster_datagrams_dropped_total{name="muster-gateway",node="3",reason="unknown",role="gateway"} 3.0' in lines
    assert 'muster_rooms{name="muster-gateway",node="3",role="gateway"} 2.0' in lines
    assert any(line.startswith("muster_process_resident_memory_bytes ") for line in lines)
    assert any(line.startswith("muster_loop_lag_seconds{") for line in lines)


async def test_a_scrape_asks_the_engine_for_its_status_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = site.server.engine, list[str]()
    status = engine.status
    monkeypatch.setattr(engine, "status", lambda: asked.append("status") or status())  # type: ignore[func-returns-value]
    await site.get("/metrics")
    assert asked == ["status"]


async def test_who_asks_for_metrics_more_than_once_a_second_gets_the_last_page_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, asked = site.server.engine, list[str]()
    status = engine.status
    monkeypatch.setattr(engine, "status", lambda: asked.append("status") or status())  # type: ignore[func-returns-value]
    monkeypatch.setattr(admin, "RENDERS_S", 60.0)
    pages = [await site.get("/metrics") for _ in range(admin.RENDERS_SAVED + 5)]
    assert len(asked) == admin.RENDERS_SAVED
    assert len(set(pages[admin.RENDERS_SAVED - 1 :])) == 1


async def test_notes_of_a_companion_stand_where_muster_status_prints_them(site: Site) -> None:
    class Relay:
        name = "presence"

        def counters(self) -> list[tuple[str, str, float]]:
            return []

        gauges = counters

        def status(self) -> dict[str, Any]:
            return {"relay": "away", "notes": ["84 changes wait for the log: away"]}

    about = {"role": "online-writer", "node": 3, "name": "muster-online-writer", "version": "0.0.0"}
    _, _, body = admin.Admin(site.server, about, companion=Relay()).answer("/api/v1/status", "")
    assert isinstance(body, bytes)
    said = json.loads(body)
    assert (said["notes"], said["presence"]) == (["84 changes wait for the log: away"], {"relay": "away"})


async def test_a_page_of_metrics_is_rendered_in_slices_and_is_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SLICE", 4)
    app = admin.Admin(site.server, {"role": "gateway", "node": 3, "name": "muster-gateway", "version": "0.0.0"})
    read, turns = metrics.read(app._metrics), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    page = await metrics.text(read)
    counting.cancel()
    assert page == generate_latest(metrics._Some(read))
    assert turns >= len(read) // metrics.SLICE > 2


async def test_a_token_opens_every_page_but_those_of_probes() -> None:
    async with entered(AdminAccess(), b"canary-token") as process:
        for path in ("/healthz", "/readyz"):
            assert (await asyncio.to_thread(common.get, process, path))[0] == 200
        with pytest.raises(UserError, match=r"router requires another token; see admin\.token_file"):
            await asyncio.to_thread(common.fetch, process, "/metrics")


async def test_commands_show_the_token_and_trust_the_certificate_at_any_address(tmp_path: Path) -> None:
    certificates(tmp_path, "admin")
    (tmp_path / "token").write_text("canary-token\n")
    access = AdminAccess(
        token_file=str(tmp_path / "token"), cert_file=str(tmp_path / "ca.pem"), key_file=str(tmp_path / "ca.key")
    )
    async with entered(access, b"canary-token") as process:
        assert process.admin_url == f"https://127.0.0.1:{process.admin[1]}"
        assert (await asyncio.to_thread(common.get, process, "/api/v1/status"))[1]["role"] == "router"
        others = {
            "another token": msgspec.structs.replace(access, token_file=str(tmp_path / "san")),
            "another certificate": msgspec.structs.replace(access, cert_file=str(tmp_path / "admin.pem")),
            "no TLS": msgspec.structs.replace(access, cert_file=""),
        }
        for other in others.values():
            with pytest.raises(UserError):
                await asyncio.to_thread(common.get, msgspec.structs.replace(process, access=other), "/api/v1/status")


def test_the_token_of_admin_ports_goes_to_no_other_host_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("canary-token\n")
    access = AdminAccess(token_file=str(tmp_path / "token"))
    there = msgspec.structs.replace(processes()[0], admin=("192.0.2.1", 7_490), access=access)
    assert common._shown(there) == {}
    assert common._shown(msgspec.structs.replace(there, admin=("127.0.0.1", 7_490))) == {
        "Authorization": "Bearer canary-token"
    }
    by_tls = msgspec.structs.replace(there, access=msgspec.structs.replace(access, cert_file="admin.pem"))
    assert common._shown(by_tls) == {"Authorization": "Bearer canary-token"}


async def test_status_says_who_answers_and_what_the_engine_says(site: Site) -> None:
    status = await site.json("/api/v1/status")
    assert (status["role"], status["node"], status["state"]) == ("gateway", 3, "ready")
    assert status["receive_buffers"] == [{"asked": 4 << 20, "effective": 212_992}]
    assert status["sessions"] == 1


async def test_rooms_come_in_pages_and_one_by_one(site: Site) -> None:
    first = await site.json("/api/v1/rooms?limit=1")
    page = await site.json(f"/api/v1/rooms?after={first['next']}&limit=2")
    assert [room["name"] for each in (first, page) for room in each["rooms"]] == ["room-0", "room-1", "room-2"]
    assert page["next"] is None
    assert (await site.json("/api/v1/rooms/room-2"))["members"] == 2
    assert (await site.get("/api/v1/rooms/absent"))[0] == 404


async def test_interest_is_gateways_with_room_ids_in_hex_in_pages(site: Site) -> None:
    first = await site.json("/api/v1/interest")
    assert first == {"interest": [[3, "000000000000feed"]], "next": "3-8000000000000000"}
    last = await site.json(f"/api/v1/interest?after={first['next']}")
    assert last == {"interest": [[4, "000000000000beef"]], "next": None}


@pytest.mark.parametrize("what", ["rooms", "interest"])
@pytest.mark.parametrize(
    "query",
    [
        *("limit=many", "limit=0", "limit=1001", "limit=%D9%A1", "limit=00001999999", f"limit=00001{'0' * 5_000}"),
        *("after=x", f"after={1 << 64}", "after=4294967296-"),
    ],
)
async def test_a_page_that_cannot_be_is_400(site: Site, what: str, query: str) -> None:
    query += "0" * 16 if query.endswith("-") else ""
    assert (await site.get(f"/api/v1/{what}?{query}"))[0] == 400


@pytest.mark.parametrize(
    "request_",
    [b"\x16\x03\x01 is no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"],
)
async def test_what_anybody_may_send_is_no_line_in_the_log(
    site: Site, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(request_)
    assert (await reader.readline()).split()[1] in {b"400", b"404"}
    writer.close()
    assert caplog.messages == []


async def test_who_asks_nothing_keeps_nobody_out(site: Site) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(admin.CONNECTIONS_MAX + 5)]
    assert (await site.get("/healthz"))[0] == 200
    async with asyncio.timeout(PATIENT_S):
        for reader, _ in idle[:6]:  # those that waited longest
            assert await ended(reader) == b""
    assert not any(reader.at_eof() for reader, _ in idle[6:])
    for _, writer in idle:
        await left(writer)


@pytest.mark.parametrize(
    "said", [b"", b"GET /healthz HTTP/1.1\r\nHost:", b"POST /healthz HTTP/1.1\r\nContent-Length: 9"]
)
async def test_who_asks_nothing_is_waited_for_so_long_only(
    site: Site, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(admin, "WAIT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(said)
    async with asyncio.timeout(PATIENT_S):
        assert await ended(reader) == b""
    await left(writer)


async def test_who_asks_again_in_time_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "WAIT_S", 0.4)
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        pauses = [time.monotonic()]
        try:
            for _ in range(8):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" in await reader.readuntil(b'{"status":"ok"}\n')
                await asyncio.sleep(0.1)
                pauses.append(time.monotonic())
        except (asyncio.IncompleteReadError, ConnectionError):
            pauses.append(time.monotonic())
            assert any(later - sooner > 0.3 for sooner, later in itertools.pairwise(pauses)), "it was sent away"
            writer.close()
            continue  # the machine stalled for longer than the limit
        await left(writer)
        return


@pytest.mark.parametrize("how", [b"close", b"keep-alive"])
@pytest.mark.parametrize("reads", [False, True])
async def test_an_answer_waits_for_who_reads_it_if_slowly(
    site: Site, monkeypatch: pytest.MonkeyPatch, how: bytes, reads: bool
) -> None:
    size = 24 << 20
    monkeypatch.setattr(admin, "WAIT_S", 0.5)
    monkeypatch.setattr(admin.Admin, "answer", lambda *_: (200, "text/plain", b"x" * size))
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: " + how + b"\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    read = 0
    if not reads:
        await asyncio.sleep(2.5)
    async with asyncio.timeout(PATIENT_S):
        while piece := await ended(reader, 1 << 20):
            read += len(piece)
            await asyncio.sleep(0.01)
    assert (read == size) is reads
    await left(writer)


async def left(writer: asyncio.StreamWriter) -> None:
    """Close it, however the other end went."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def ended(reader: asyncio.StreamReader, most: int = 1) -> bytes:
    """The next bytes; none if the other end is gone."""
    try:
        return await reader.read(most)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:7490", True), ("[::1]:7490", True), ("::1", True), ("localhost:7490", True), ("gateway", True),
        ("", True),
        ("gateway.muster.svc.cluster.local:7490", True), ("gateway.muster.svc", True), ("10.0.0.7", True),
        ("attacker.example", False), ("127.0.0.1.attacker.example:80", False), ("rebind.attacker.example.", False),
        ("localhost.attacker.example", False),
    ],
)  # fmt: skip
async def test_a_page_of_another_site_reads_nothing_by_a_name_of_its_own(site: Site, host: str, ours: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head = (await reader.read()).partition(b"\r\n")[0]
    writer.close()
    assert int(head.split()[1]) == (200 if ours else 421)


async def test_answers_take_a_small_share_of_the_loop_and_probes_do_not_wait_for_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found: eight connections that asked for metrics took a gateway from 0.7 to 13.8 ms."""
    now, slept = 100.0, 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now, raising=False)
    monkeypatch.setattr("muster_server.control.node.pace.asyncio.sleep", sleep)
    monkeypatch.setattr("muster_server.control.node.pace.time.thread_time", lambda: now)
    pages = pace.Pace(100.0)
    worked, began = 0.0, now
    for _ in range(200):  # each takes 10 ms
        async with pages.turn():
            now, worked = now + 0.01, worked + 0.01
    assert worked / (now - began) < 1.2 * pace.SHARE
    began, slept = now, 0.0
    now += 60
    for _ in range(150):  # and these nothing
        async with pages.turn():
            pass
    assert slept == 0, "after a pause they come at once"
    for _ in range(1_000):
        async with pages.turn():
            pass
    assert slept > 9


async def test_what_is_not_there_is_404_and_nothing_can_be_written(site: Site) -> None:
    assert (await site.get("/elsewhere"))[0] == 404
    assert (await site.get("/api/v1/status", "POST"))[0] == 405
