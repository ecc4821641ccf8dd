"""Starts all processes of a portal on one machine, and ends them in the order in which they depend on each other.

Owns its children, by their pids: a web server or a worker that ends is started again, and the end of any other one
ends the portal. A real installation has a service manager for this.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from . import samples, settings
from .services import create
from .settings import Settings

SYSTEMS: Final = "edge,http,inbox,likes,messages,presence"
SERVERS: Final = 2
DRAIN_S: Final = 30.0
START_S: Final = 180.0
AGAIN_S: Final = 1.0
SCOPES: Final = (
    *("send:*", "work:*", "change:*", "show:*", "like:*", "likes:*"),
    *("presence:*", "unicast:*", "notify:*", "inbox:*", "broadcast:*"),
)
PULLED: Final = (
    *("mail", "text", "unread", "publish", "followed", "replied", "liked", "wrote"),
    *("ordered", "returned", "withdrawn", "report"),
)
"""Topics whose messages workers lease."""


class Failed(Exception):
    """The portal cannot start, or a process that it needs has ended."""


@dataclass(frozen=True)
class Plan:
    """Parse the command line."""

    folder: Path
    """Absolute; it is there."""
    port: int
    mail_wait_s: int


async def run(plan: Plan) -> None:
    """Run the portal until SIGINT or SIGTERM. Raises `Failed`."""
    stop = asyncio.Event()
    for number in signal.SIGINT, signal.SIGTERM:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        ended = asyncio.create_task(stop.wait())
        running = asyncio.create_task(_run(plan, stack))
        try:
            await asyncio.wait([ended, running], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                print("portal: draining", file=sys.stderr)
        finally:
            ended.cancel()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _run(plan: Plan, stack: AsyncExitStack) -> None:
    for program in "redis-server", "muster", "setpriv":
        if not shutil.which(program, path=_path()):
            how = "apt-get install redis-server util-linux, pip install muster-server"
            raise Failed(f"{program} is missing; install it ({how})")
    folder = plan.folder
    listeners = [stack.enter_context(_listener(plan.port and plan.port + index)) for index in range(SERVERS)]
    origins = tuple(f"http://127.0.0.1:{each.getsockname()[1]}" for each in listeners)
    for log in folder.glob("*.log"):
        log.unlink()
    (folder / "muster.toml").write_text(_configuration(origins, plan.mail_wait_s))
    environment = os.environ | {
        "MUSTER_CONFIG": str(folder / "muster.toml"),
        "MUSTER_INSTANCE__DIR": str(folder / "instance"),
        settings.VARIABLE: str(folder / "settings.json"),
        "PATH": _path(),
    }
    redis_port = _free_port()
    watched = [
        await stack.enter_async_context(_child(folder, "redis", environment, *_redis(redis_port))),
        await stack.enter_async_context(_child(folder, "muster", environment, "muster", "up", "--with", SYSTEMS)),
    ]
    status = await _until_ready(folder, environment, watched)
    made = await _prepared(folder, environment, status, origins, redis_port)
    settings.save(made, folder / "settings.json")
    await create(made)
    people = await samples.fill(made)
    async with asyncio.TaskGroup() as group:
        for each in watched:
            group.create_task(_until_end(each))
        for index, listener in enumerate(listeners):
            fd = listener.fileno()
            group.create_task(
                _kept(folder, f"web-{index + 1}", environment, sys.executable, "-m", "portal.web", str(fd), fd=fd)
            )
        words = ("-m", "muster.work", "portal.jobs:tasks", "--at-once", "8")
        group.create_task(_kept(folder, "worker", environment, sys.executable, *words))
        for origin in origins:
            await _answers(origin)
        for index, origin in enumerate(origins):
            print(f"portal: server {index + 1} at {origin}/", flush=True)
        for contact, password in people:
            print(f"portal: log in as {contact} with {password}", flush=True)
        print(f"portal: mails are in {made.mail_folder}; Ctrl-C stops it", flush=True)


def _path() -> str:
    """Where programs are: also beside this Python, and where Debian has servers."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])


def _listener(port: int) -> socket.socket:
    """The socket of a web server, which outlives the server. Raises `Failed`."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
    except OSError as error:
        made.close()
        raise Failed(
            f"port {port} of 127.0.0.1 cannot be used: {error.strerror}; choose another one by --port"
        ) from None
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


def _configuration(origins: tuple[str, ...], mail_wait_s: float) -> str:
    quoted = json.dumps(list(origins))
    return f"""\
[edge]
origins = {quoted}
[presence]
sites = 1
[inbox]
required = "account,login"
mail_topic = "unread"
mail_wait_s = {mail_wait_s}
[database]
url = "none"
"""


@asynccontextmanager
async def _child(
    folder: Path, name: str, environment: dict[str, str], *words: str, fd: int = -1
) -> AsyncIterator[Process]:
    """A process in a session of its own, so that Ctrl-C reaches only this program, which ends it after the block. Linux
    ends it if this program is killed."""
    with (folder / f"{name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig=TERM", "--", *words),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=(fd,) if fd >= 0 else (),
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(DRAIN_S):
                    await process.wait()
            except TimeoutError:
                print(f"portal: {name} did not end within {DRAIN_S:g} s and was killed", file=sys.stderr)
                process.kill()
                await process.wait()


async def _kept(folder: Path, name: str, environment: dict[str, str], *words: str, fd: int = -1) -> None:
    """Run a process, and start it again whenever it ends."""
    while True:
        async with _child(folder, name, environment, *words, fd=fd) as process:
            code = await process.wait()
        print(f"portal: {name} ended with {code} and starts again; its log is {folder / name}.log", file=sys.stderr)
        await asyncio.sleep(AGAIN_S)


async def _until_end(process: Process) -> None:
    raise Failed(f"a process that the portal needs ended with {await process.wait()}; the logs in its folder say why")


async def _until_ready(folder: Path, environment: dict[str, str], needed: list[Process]) -> dict[str, Any]:
    """The status of the instance once all its nodes are ready. Raises `Failed`."""
    log = folder / "muster.log"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while all(each.returncode is None for each in needed):
                if "Ctrl-C stops it" in log.read_text():
                    found: dict[str, Any] = json.loads(await _said(environment, "status", "--json"))
                    return found
                await asyncio.sleep(0.2)
    last = (log.read_text().strip().splitlines() or ["nothing"])[-1]
    raise Failed(f"muster up or redis-server did not start; {log} ends with: {last:.300}")


async def _said(environment: dict[str, str], *words: str) -> str:
    """Run a short command of Muster and return its output. Raises `Failed`."""
    process = await asyncio.create_subprocess_exec("muster", *words, stdout=PIPE, stderr=PIPE, env=environment)
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Failed(f"muster {' '.join(words[:3])} failed: {err.decode(errors='replace').strip():.500}")
    return out.decode()


async def _prepared(
    folder: Path,
    environment: dict[str, str],
    status: dict[str, Any],
    origins: tuple[str, ...],
    redis_port: int,
) -> Settings:
    """The settings of all processes. The key, the topics and the secrets are made once."""
    kept = folder / "settings.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    check_secret = before.get("check_secret") or _secret()
    checks = ("--retries", "1s,10s,1m,5m,50m,6h", "--callback", f"{origins[0]}/muster/checks")
    wanted: list[tuple[str, ...]]
    wanted = [("topic", "create", *PULLED, "--callback", "pull:", "--retries", "1s,10s,1m,10m")]
    verb, given = ("change", ()) if before else ("create", ("--secret", check_secret))
    wanted.append(("topic", verb, "portal-checks", *checks, *given))
    if not before:
        scopes = [word for scope in SCOPES for word in ("--scope", scope)]
        wanted.append(("key", "create", "portal", *scopes, "--json"))
    said = await asyncio.gather(*(_said(environment, *words) for words in wanted))
    return Settings(
        folder=str(folder),
        instance=str(folder / "instance"),
        origins=origins,
        http_url=status["systems"]["http"]["url"],
        edge_url=status["systems"]["edge"]["url"],
        redis_url=f"redis://127.0.0.1:{redis_port}/0",
        key=before.get("key") or json.loads(said[-1])["key"],
        check_secret=check_secret,
        form_secret=before.get("form_secret") or secrets.token_hex(32),
    )


def _secret() -> str:
    """A secret as topics have it."""
    return "whsec_" + b64encode(secrets.token_bytes(32)).decode()


async def _answers(origin: str) -> None:
    """Return once a web server answers."""
    async with httpx2.AsyncClient(base_url=origin, trust_env=False, timeout=START_S) as client:
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                if (await client.get("/healthz")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
