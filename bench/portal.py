"""The portal of `examples/portal`: what its cache saves, what open pages hear, and how old a page may be.

`python -m portal` runs whole. Two more web servers of the same portal, one of them without a cache, get the same open loop:
95 % reads by a Zipf over 10,000 shares, each read once before, and 5 % edits and replies. Then thousands of open pages of
one share wait for replies, by the WebSocket of the edge. At last readers look for pages older than the last answered edit,
while web servers are killed. The whole portal shares the machine with the driver. Owns the loads and their goals.
"""

import asyncio
import itertools
import json
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx2
import jwt
import numpy as np
import uvloop

from bench import cpu, pin
from bench.child import Child, ChildFailedError, free_port, listens, private_directory, python_environment
from bench.edge_sessions import Session
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave
from muster_server.systems.edge import wire

PORTAL: Final = Path(__file__).parents[1] / "examples" / "portal"
GOAL: Final = "SITE-1"
TIMES, READS_PERCENT, TOLD_P99_MS, OLDER = 5.0, 3.0, 200.0, 0.0
SHARES: Final = 10_000
FIRST: Final = 1_000_000
"""Ids of shares begin here."""
ZIPF: Final = 0.9
WRITES: Final = 0.05
RATES: Final = {"cached": 100.0, "plain": 25.0}
"""Requests a second: less than a third of what either form bears on one core."""
LOOP_S, LOOP_S_QUICK = 20.0, 3.0
STREAMS, STREAMS_QUICK = 10_000, 200
TOLD, TOLD_QUICK = 10, 3
LOOKS, LOOKS_QUICK = 20_000, 600
"""Requests of a round: 100,000 in the five rounds of a whole run."""
KILLS, KILLS_QUICK = 4, 1
HOT: Final = 20
AT_ONCE: Final = 8
START_S: Final = 180.0
ANSWER_S: Final = 30.0
PASSWORD: Final = "correct horse battery"
VERSION: Final = re.compile(r"version (\d+)<")
TOKEN: Final = re.compile(r'name="csrf" value="(\w+)"')


class Portal:
    """A running portal with its shares."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        environment = python_environment()
        environment["PYTHONPATH"] = f"{PORTAL}{os.pathsep}{environment['PYTHONPATH']}"
        environment["MUSTER_PROBES__EVERY_MS"] = "0"
        self._environment = environment
        words = [sys.executable, "-m", "portal", "--folder", str(folder), "--port", "0"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        stack.callback(self._end)
        deadline = time.monotonic() + START_S
        while "Ctrl-C" not in (folder / "log").read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                lines = (folder / "log").read_text().strip().splitlines() or ["it said nothing"]
                raise ChildFailedError(f"the portal did not start: {lines[-1]}")
            time.sleep(0.1)
        self.settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.origins: list[str] = self.settings["origins"]
        self.host = urlsplit(self.origins[0]).netloc
        self.ann, self.bo = self._fill()
        self.versions = dict.fromkeys(range(FIRST, FIRST + SHARES), 0)
        """The last answered edit of each share."""
        self.ports: dict[str, int] = {}
        self.children: dict[str, Child] = {}
        for form in RATES:
            port = self.ports[form] = free_port()
            argv = [sys.executable, "-m", "bench.portal_server", str(port), form]
            more = environment | {"PORTAL_SETTINGS": str(folder / "settings.json")}
            child = Child(form, argv, core=pin.SERVER_CORE, directory=folder, environment=more)
            stack.callback(child.stop)
            child.wait_until(partial(listens, port), seconds=START_S)
            self.children[form] = child
        self.cookies = {form: uvloop.run(self._logged_in(self.ports[form])) for form in ("cached",)}

    def _end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait()

    def _fill(self) -> tuple[int, int]:
        """The shares, each with a reply, in the database. Returns the accounts of Ann and Bo."""
        with sqlite3.connect(self.folder / "portal.db", timeout=30) as database:
            names = dict(database.execute("SELECT name, id FROM accounts"))
            now, text = time.time(), "version 0\n\n" + "what we tried over two summers, and what held. " * 20
            shares = ((id, names["Ann"], "seeds", f"Share {id}", text, "public", 0, now, "") for id in ids())
            columns = "id, author, field, title, text, state, fee, public_at, message"
            database.executemany(f"INSERT INTO shares ({columns}) VALUES (?,?,?,?,?,?,?,?,?)", shares)
            replies = ((id, id, names["Bo"], "And in clay?", now) for id in ids())
            database.executemany("INSERT INTO replies (id, share, author, text, at) VALUES (?,?,?,?,?)", replies)
        return names["Ann"], names["Bo"]

    async def _logged_in(self, port: int) -> tuple[str, str]:
        """The cookies of Ann, and the token of her forms."""
        async with self.client(port) as client:
            found = TOKEN.search((await client.get("/login")).text)
            assert found is not None
            fields = {"csrf": found[1], "contact": "ann@example.org", "password": PASSWORD}
            answer = await client.post("/login", data=fields)
            assert answer.status_code == 303, answer.text
            found = TOKEN.search((await client.get("/")).text)
            assert found is not None
            return "; ".join(f"{name}={value}" for name, value in client.cookies.items()), found[1]

    def client(self, port: int) -> httpx2.AsyncClient:
        """A client that asks as a browser does which opened the portal's first address."""
        return httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"host": self.host}, timeout=ANSWER_S, trust_env=False
        )

    async def warmed(self, shares: set[int]) -> None:
        """Read these once at the server with the cache: a site that runs has its pages there."""
        reader = Connections(self, self.ports["cached"], AT_ONCE)
        await asyncio.gather(*(reader.get(f"/shares/{id}") for id in shares))
        reader.close()

    def web_pids(self) -> list[int]:
        """The web servers that `python -m portal` has started."""
        found = []
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with suppress(OSError):
                if b"portal.web" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
        return found

    def fields(self, **fields: str) -> str:
        """The body of a form of Ann's."""
        fields["csrf"] = self.cookies["cached"][1]
        return "&".join(f"{name}={quote(value)}" for name, value in fields.items())


def ids() -> Iterator[int]:
    """The ids of all shares."""
    return iter(range(FIRST, FIRST + SHARES))


class Connections:
    """Bare connections to a web server, so that the driver stays cheap. A request waits for a free one."""

    def __init__(self, portal: Portal, port: int, most: int) -> None:
        self._host, self._port, self._cookie = portal.host, port, portal.cookies["cached"][0] if port else ""
        self._places = asyncio.Semaphore(most)
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str) -> tuple[int, str]:
        """The status and the text of a page. Raises `OSError`, `EOFError`, `TimeoutError`."""
        return await self._asked(f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\n\r\n")

    async def post(self, path: str, body: str) -> tuple[int, str]:
        """The answer to a form of Ann's. Raises the same."""
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncookie: {self._cookie}\r\n"
        head += f"content-type: application/x-www-form-urlencoded\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self._asked(head + body)

    async def _asked(self, request: str) -> tuple[int, str]:
        async with self._places, asyncio.timeout(ANSWER_S):
            reader, writer = await self._connection()
            try:
                writer.write(request.encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                text = (await reader.readexactly(length)).decode()
            except BaseException:
                writer.transport.abort()
                raise
            self._free.append((reader, writer))
            return int(head.split(" ", 2)[1]), text

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()  # the server closes what is idle for some seconds
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        """Close all."""
        for _, writer in self._free:
            writer.close()


def run(*, rounds: int, quick: bool, progress: Progress = silent) -> tuple[Case, ...]:
    """All of it. Raises `ChildFailedError`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(private_directory("portal")))
        portal = Portal(folder, stack)
        seconds = LOOP_S_QUICK if quick else LOOP_S
        uvloop.run(portal.warmed(set(_chosen(round(seconds * RATES["cached"]))[0].tolist())))
        entries = [Entry(form, partial(_loop, portal, form, rate, seconds)) for form, rate in RATES.items()]
        streams, told = (STREAMS_QUICK, TOLD_QUICK) if quick else (STREAMS, TOLD)
        entries.append(Entry("streams", partial(_streams, portal, streams, told)))
        looks, kills = (LOOKS_QUICK, KILLS_QUICK) if quick else (LOOKS, KILLS)
        entries.append(Entry("kills", partial(_kills, portal, looks, kills)))
        results = interleave(entries, rounds, progress)
    return tuple(_cases(results, quick=quick))


# --- the open loop ---------------------------------------------------------------------------------------------------


def _loop(portal: Portal, form: str, rate: float, seconds: float) -> Sample:
    """Requests at their times, whether earlier ones are answered or not. CPU is the web server's."""
    count = round(rate * seconds)
    chosen, writes = _chosen(count)

    async def measured() -> dict[str, float]:
        server = Connections(portal, portal.ports[form], 64)
        late: list[float] = []
        began = time.perf_counter() + 0.1

        async def ask(index: int) -> None:
            due = began + index / rate
            await asyncio.sleep(due - time.perf_counter())
            id = int(chosen[index])
            if writes[index]:
                await _written(portal, server, id, index)
                return
            path = f"/shares/{id}" if index % 10 else "/"
            status, _ = await server.get(path)
            assert status == 200, (status, path)
            late.append((time.perf_counter() - due) * 1_000)

        async with portal.client(portal.ports[form]) as client:
            before, spent = (await client.get("/bench")).json(), cpu.process_ns(portal.children[form].pid)
            await asyncio.gather(*map(ask, range(count)))
            spent = cpu.process_ns(portal.children[form].pid) - spent
            after = (await client.get("/bench")).json()
        server.close()
        pages = after["pages"] - before["pages"]
        reads = after["database reads"] - before["database reads"]
        return {
            "requests a CPU second": count / (spent / 1e9),
            "database reads, % of pages": 100 * reads / pages,
            "page, p50 ms": float(np.percentile(late, 50)),
            "page, p99 ms": float(np.percentile(late, 99)),
        }

    return Sample(uvloop.run(measured()))


def _chosen(count: int) -> tuple[Any, Any]:
    """The share of each request, and whether it is a write. The hot shares are left to the kills."""
    rng = np.random.default_rng(7)
    weights = 1.0 / np.arange(1, SHARES - HOT + 1) ** ZIPF
    shares = FIRST + HOT + rng.choice(SHARES - HOT, count, p=weights / weights.sum())
    return shares, rng.random(count) < WRITES


async def _written(portal: Portal, server: Connections, id: int, index: int) -> None:
    """An edit, or a reply."""
    if index % 2:
        status, text = await server.post(f"/shares/{id}/replies", portal.fields(text=f"reply {index}"))
    else:
        status, text = await server.post(f"/shares/{id}/edit", portal.fields(text=f"version 0\n\nedit {index}"))
    assert status == 303, (status, text)


# --- open pages ------------------------------------------------------------------------------------------------------


class _Page(Session):
    """An open page of a share, which notes when a text came."""

    wanted = b"\xff"
    arrived = 0.0

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol`."""
        if self._waiting is not None:
            super().data_received(data)
        elif self.wanted in data:
            self.arrived = time.perf_counter()
            self.heard.set()

    async def enter(self, token: str, room: str) -> None:
        """Connect as a page does, with a token, and subscribe."""
        await self.ask(wire.upgrade(self._host, "json"), b"\r\n\r\n")
        await self.ask(wire.connect("json", 1, token), b'"connect"')
        await self.ask(wire.subscribe("json", 2, room), b'"subscribe"')


def _streams(portal: Portal, wanted: int, told: int) -> Sample:
    """From the form with a reply to each open page of its share."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(wanted, most - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, most))

    async def measured() -> dict[str, float]:
        loop, edge = asyncio.get_running_loop(), urlsplit(portal.settings["edge_url"])
        server = Connections(portal, portal.ports["cached"], AT_ONCE)
        secret = Path(portal.settings["instance"], "jwt.secret").read_text().split()[0]  # noqa: ASYNC240 - nothing else runs
        pages: list[_Page] = []
        room = f"share:{FIRST}"

        async def opened(number: int) -> _Page:
            claims = {
                "sub": f"visitor:{number}",
                "exp": int(time.time()) + 300,
                "cap": {"share:*": ["read", "history"]},
            }
            _, page = await loop.create_connection(partial(_Page, "json", edge.netloc), edge.hostname, edge.port)
            await page.enter(jwt.encode(claims, secret, algorithm="HS256"), room)
            return page

        for begin in range(0, count, 100):
            pages += await asyncio.gather(*map(opened, range(begin, min(begin + 100, count))))
        late: list[float] = []
        try:
            for number in range(-1, told):
                mark = f"told {number} {time.monotonic_ns()}"
                for page in pages:
                    page.wanted, page.arrived = mark.encode(), 0.0
                    page.heard.clear()
                began = time.perf_counter()
                status, text = await server.post(f"/shares/{FIRST}/replies", portal.fields(text=mark))
                assert status == 303, (status, text)
                async with asyncio.timeout(ANSWER_S):
                    for page in pages:
                        await page.heard.wait()
                if number >= 0:  # the first one warms up
                    late += [(page.arrived - began) * 1_000 for page in pages]
        finally:
            for page in pages:
                page.transport.abort()
            server.close()
        p50, p99 = np.percentile(late, (50, 99))
        return {"reply at all pages, p50 ms": float(p50), "p99 ms": float(p99), "open pages": float(count)}

    return Sample(uvloop.run(measured()))


# --- kills -----------------------------------------------------------------------------------------------------------


def _kills(portal: Portal, looks: int, kills: int) -> Sample:
    """Readers at both web servers of the portal, while an author edits and servers are killed with SIGKILL. An edit counts
    from its answer on; a request that a kill ended is asked again."""

    async def measured() -> dict[str, float]:
        servers = [Connections(portal, urlsplit(origin).port or 80, AT_ONCE) for origin in portal.origins]
        figures = {"pages older than the last edit": 0.0, "edits": 0.0, "kills": 0.0, "requests ended by kills": 0.0}
        left, dice = itertools.count(), random.Random(7)
        over = asyncio.Event()

        async def read() -> None:
            while next(left) < looks:
                id = FIRST + dice.randrange(HOT)
                while True:
                    floor = portal.versions[id]
                    with suppress(OSError, EOFError, TimeoutError):
                        status, text = await dice.choice(servers).get(f"/shares/{id}")
                        found = VERSION.search(text)
                        if status == 200 and found is not None:
                            figures["pages older than the last edit"] += int(found[1]) < floor
                            break
                    figures["requests ended by kills"] += 1
                    await asyncio.sleep(0.05)

        async def write() -> None:
            for version in itertools.count(1 + max(portal.versions.values())):
                id = FIRST + dice.randrange(HOT)
                with suppress(OSError, EOFError, TimeoutError):
                    body = portal.fields(text=f"version {version}")
                    status, _ = await dice.choice(servers).post(f"/shares/{id}/edit", body)
                    if status == 303:
                        portal.versions[id] = version
                        figures["edits"] += 1
                if over.is_set():
                    return
                await asyncio.sleep(0.01)

        async def kill() -> None:
            while figures["kills"] < kills:
                pids = portal.web_pids()
                if len(pids) == len(servers):
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    figures["kills"] += 1
                await asyncio.sleep(1.0)

        author = asyncio.create_task(write())
        await asyncio.gather(kill(), *(read() for _ in range(AT_ONCE)))
        over.set()
        await author
        for server in servers:
            server.close()
        return figures

    return Sample(uvloop.run(measured()))


def _cases(results: Results, *, quick: bool) -> Iterator[Case]:
    goals = {
        "cached": {"database reads, % of pages": Goal(GOAL, "<=", READS_PERCENT)},
        "plain": {},
        "streams": {"p99 ms": Goal(GOAL, "<=", TOLD_P99_MS)},
        "kills": {"pages older than the last edit": Goal(GOAL, "<=", OLDER)},
    }
    for entry, of in goals.items():
        yield from Case.judged(results, entry, entry, of, quick=quick)
    figure = "requests a CPU second"
    name = f"{figure}, times those without the cache"
    cached, plain = results.series("cached", figure), results.series("plain", figure)
    yield Case.compared(name, cached, plain, Goal(GOAL, ">=", TIMES), quick=quick)
