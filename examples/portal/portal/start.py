"""Starts all processes of a portal, and ends them in the order in which they depend on each other.

Owns what every portal has: Muster, two web servers and a worker, which are started again when they end; the end of Muster or
of the embedded Redis ends the portal. A real installation has a service manager for this. It must not know hosts.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from . import samples, settings
from .processes import Children, Failed, Program, until_end
from .services import create
from .settings import Settings, driven

SYSTEMS: Final = "edge,http,inbox,likes,messages,presence"
SERVERS: Final = 2
START_S: Final = 180.0
SCOPES: Final = (
    *("send:*", "work:*", "change:*", "show:*", "like:*", "likes:*"),
    *("presence:*", "unicast:*", "notify:*", "inbox:*", "broadcast:*"),
)
PULLED: Final = (
    *("mail", "text", "unread", "publish", "followed", "replied", "liked", "wrote"),
    *("ordered", "returned", "withdrawn", "report"),
)
"""Topics whose messages workers lease."""
DATABASE, LEDGER, REPLICAS = "PORTAL_DATABASE", "PORTAL_LEDGER", "PORTAL_REPLICAS"
"""Variables with the URLs of databases; they may have passwords, so no command line has them."""


@dataclass(frozen=True)
class Plan:
    """Parse the command line."""

    folder: Path
    """Absolute; it is there."""
    port: int
    mail_wait_s: int


@dataclass(frozen=True)
class Ground:
    """The services and addresses on which a portal runs."""

    listeners: list[socket.socket]
    """Sockets of the web servers, which they outlive."""
    origins: tuple[str, ...]
    """As browsers see the portal."""
    redis_url: str
    database_url: str
    ledger_url: str
    replica_urls: tuple[str, ...] = ()
    fronts: tuple[str, ...] = ()
    edge_bind: str = "127.0.0.1:0"
    edge_url: str = ""
    """Empty: the edge's own."""
    front: Callable[[], Awaitable[None]] | None = None
    """Starts what stands before the web servers, once they answer."""
    lines: tuple[str, ...] = ()
    """Words about its addresses."""
    needed: list[Process] = field(default_factory=list)
    """Processes whose end ends the portal."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of the web servers."""
        names = (each.getsockname() for each in self.listeners)
        return tuple(f"http://{host}:{port}" for host, port in names)


Grounds = Callable[[Plan, Children, AsyncExitStack], Awaitable[Ground]]


async def run(plan: Plan, ground: Grounds) -> None:
    """Run the portal until SIGINT or SIGTERM. Raises `Failed`."""
    stop = asyncio.Event()
    for number in signal.SIGINT, signal.SIGTERM:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        ended = asyncio.create_task(stop.wait())
        running = asyncio.create_task(_run(plan, ground, stack))
        try:
            await asyncio.wait([ended, running], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                print("portal: draining", file=sys.stderr)
        finally:
            ended.cancel()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _run(plan: Plan, ground: Grounds, stack: AsyncExitStack) -> None:
    folder = plan.folder
    for log in folder.glob("*.log"):
        log.unlink()
    environment = os.environ | {
        "MUSTER_CONFIG": str(folder / "muster.toml"),
        "MUSTER_INSTANCE__DIR": str(folder / "instance"),
        settings.VARIABLE: str(folder / "settings.json"),
    }
    children = Children(folder, environment)
    on = await ground(plan, children, stack)
    (folder / "muster.toml").write_text(_configuration(on, plan.mail_wait_s))
    muster = await stack.enter_async_context(children.child("muster", "muster", "up", "--with", SYSTEMS))
    needed = [*on.needed, muster]
    status = await _until_ready(children, needed)
    made = await _prepared(children, status, on)
    settings.save(made, folder / "settings.json")
    await create(made)
    people = await samples.fill(made)
    await stack.enter_async_context(children.keeping(*_programs(on)))
    for server in on.servers:
        await answers(server)
    if on.front is not None:
        await on.front()
    for line in on.lines:
        print(f"portal: {line}", flush=True)
    for contact, password in people:
        print(f"portal: log in as {contact} with {password}", flush=True)
    print(f"portal: mails are in {made.mail_folder}; Ctrl-C stops it", flush=True)
    await until_end(needed)


def _programs(on: Ground) -> list[Program]:
    """The web servers and the worker."""
    found = []
    for number, each in enumerate(on.listeners, 1):
        fd = each.fileno()
        found.append(Program(f"web-{number}", (sys.executable, "-m", "portal.web", str(fd)), (fd,)))
    words = (sys.executable, "-m", "muster.work", "portal.jobs:tasks", "--at-once", "8")
    return [*found, Program("worker", words)]


async def embedded(plan: Plan, children: Children, stack: AsyncExitStack) -> Ground:
    """A Redis of its own for the cache, and SQLite, or the databases that the environment names. Raises `Failed`."""
    listeners = [stack.enter_context(listener("127.0.0.1", plan.port and plan.port + at)) for at in range(SERVERS)]
    port = _free_port()
    redis = await stack.enter_async_context(children.child("redis", *_redis(port)))
    database = os.environ.get(DATABASE) or f"sqlite:///{plan.folder}/portal.db"
    ledger = os.environ.get(LEDGER) or f"sqlite:///{plan.folder}/ledger.db"
    try:
        urls = [driven(url) for url in (database, ledger, *os.environ.get(REPLICAS, "").split())]
    except ValueError as error:
        raise Failed(f"{DATABASE}, {LEDGER} or {REPLICAS}: {error}") from None
    servers = tuple(f"http://127.0.0.1:{each.getsockname()[1]}" for each in listeners)
    return Ground(
        listeners=listeners,
        origins=servers,
        redis_url=f"redis://127.0.0.1:{port}/0",
        database_url=urls[0],
        ledger_url=urls[1],
        replica_urls=tuple(urls[2:]),
        lines=tuple(f"server {number} at {server}/" for number, server in enumerate(servers, 1)),
        needed=[redis],
    )


def listener(host: str, port: int) -> socket.socket:
    """The socket of a web server, which outlives the server. Raises `Failed`."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise Failed(f"port {port} of {host} cannot be used: {error.strerror}; choose another one by --port") from None
    made.listen(256)
    made.set_inheritable(True)
    return made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _redis(port: int) -> list[str]:
    """The Redis of the cache: it keeps nothing, and lets go what is used least. Presence has one of its own."""
    words = f"--bind 127.0.0.1 --port {port} --maxmemory 64mb --maxmemory-policy allkeys-lfu --appendonly no"
    return ["redis-server", *words.split(), "--save", ""]


def _configuration(on: Ground, mail_wait_s: float) -> str:
    return f"""\
[edge]
bind = "{on.edge_bind}"
origins = {json.dumps(list(on.origins))}
[presence]
sites = 1
[inbox]
required = "account,login"
mail_topic = "unread"
mail_wait_s = {mail_wait_s}
[database]
url = "none"
"""


async def _until_ready(children: Children, needed: list[Process]) -> dict[str, Any]:
    """The status of the instance once all its nodes are ready. Raises `Failed`."""
    log = children.folder / "muster.log"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while all(each.returncode is None for each in needed):
                if "Ctrl-C stops it" in log.read_text():
                    found: dict[str, Any] = json.loads(await children.output("muster", "status", "--json"))
                    return found
                await asyncio.sleep(0.2)
    last = (log.read_text().strip().splitlines() or ["nothing"])[-1]
    raise Failed(f"muster up or redis-server did not start; {log} ends with: {last:.300}")


async def _prepared(children: Children, status: dict[str, Any], on: Ground) -> Settings:
    """The settings of all processes. The key, the topics and the secrets are made once."""
    kept = children.folder / "settings.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    check_secret = before.get("check_secret") or _secret()
    checks = ("--retries", "1s,10s,1m,5m,50m,6h", "--callback", f"{on.servers[0]}/muster/checks")
    wanted: list[tuple[str, ...]]
    wanted = [("topic", "create", *PULLED, "--callback", "pull:", "--retries", "1s,10s,1m,10m")]
    verb, given = ("change", ()) if before else ("create", ("--secret", check_secret))
    wanted.append(("topic", verb, "portal-checks", *checks, *given))
    if not before:
        scopes = [word for scope in SCOPES for word in ("--scope", scope)]
        wanted.append(("key", "create", "portal", *scopes, "--json"))
    said = await asyncio.gather(*(children.output("muster", *words) for words in wanted))
    return Settings(
        folder=str(children.folder),
        instance=str(children.folder / "instance"),
        origins=on.origins,
        servers=on.servers,
        http_url=status["systems"]["http"]["url"],
        edge_url=on.edge_url or status["systems"]["edge"]["url"],
        redis_url=on.redis_url,
        key=before.get("key") or json.loads(said[-1])["key"],
        check_secret=check_secret,
        form_secret=before.get("form_secret") or secrets.token_hex(32),
        database_url=on.database_url,
        ledger_url=on.ledger_url,
        replica_urls=on.replica_urls,
        fronts=on.fronts,
    )


def _secret() -> str:
    """A secret as topics have it."""
    return "whsec_" + b64encode(secrets.token_bytes(32)).decode()


async def answers(server: str, host: str = "") -> None:
    """Return once a web server answers, asked as this host. Raises `Failed`."""
    headers = {"host": host} if host else None
    deadline = time.monotonic() + START_S
    async with httpx2.AsyncClient(base_url=server, trust_env=False, timeout=5, headers=headers) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.HTTPError):
                if (await client.get("/healthz")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise Failed(f"{server} does not answer; the logs in the folder say why")
