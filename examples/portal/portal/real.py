"""`python -m portal --real`: the portal as on several hosts, all of them on this machine.

    browser ─▶ 127.0.0.1 ─▶ client c ─▶ 192.0.2.100: nginx on host a or b ─▶ two web servers and the edge on host s
                                        (keepalived moves the address)       MariaDB with a replica, Redis with sentinels

The hosts are network namespaces, so nothing of it is seen outside, and two portals do not meet. `outside` makes the hosts
and enters host s, where `ground` starts the stores and the front.
"""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from .hosts import ADDRESS, FRONTS, NEEDS, Hosts, keepalived, left_over, missing, nginx, refused
from .processes import Children, Failed, Missing, Program, path
from .start import START_S, Ground, Plan, answers, listener

OWNER: Final = "portal"
"""First part of the hosts' names."""
PROGRAMS: Final = NEEDS | {
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "redis-server": "redis-server",
}
SERVERS: Final = ("192.0.2.11", "192.0.2.12")
EDGE: Final = "192.0.2.21"
CLIENTS: Final = {"127.0.0.1": "192.0.2.201", "127.0.0.2": "192.0.2.202"}
"""The addresses of two clients in the net, by those that browsers open. Their servers are different ones."""
DATABASES: Final = (3306, 3307)
"""Ports of the primary and of the replica."""
REDISES, SENTINELS = (6379, 6380), (26379, 26380, 26381)
QUORUM: Final = 2
DOWN_MS: Final = 1_000
BACK_S: Final = 5.0
"""Pause before a Redis is started again: long enough for the sentinels to choose the other one."""
HOST, PID, FDS = "PORTAL_HOST", "PORTAL_PID", "PORTAL_FDS"


def outside(plan: Plan, words: Sequence[str]) -> int:
    """Make the hosts, run the portal on one of them with the same words, and return its exit code. Raises `Failed`."""
    if lacking := missing(PROGRAMS):
        raise Missing(
            f"programs are missing; install them: apt-get install --no-install-recommends {' '.join(lacking)}"
        )
    if why := refused():
        raise Missing(why)
    left_over(OWNER)
    hosts = Hosts(OWNER)
    sockets: list[socket.socket] = []
    try:
        port = plan.port
        for address in CLIENTS:
            sockets.append(listener(address, port))
            port = sockets[-1].getsockname()[1]
        hosts.bridge()
        for host, address in FRONTS.items():
            hosts.add(host, address)
        hosts.add("s", *SERVERS, EDGE)
        hosts.add("c", *CLIENTS.values())
        return _inside(hosts, sockets, words)
    except OSError as error:
        raise Failed(str(error)) from None
    finally:
        for each in sockets:
            each.close()
        hosts.close()


def _inside(hosts: Hosts, sockets: list[socket.socket], words: Sequence[str]) -> int:
    """Run the portal on host s. Its end is asked for once: Ctrl-C reaches this process alone."""
    fds = [each.fileno() for each in sockets]
    environment = os.environ | {"PATH": path(), HOST: "s", PID: str(os.getpid()), FDS: ",".join(map(str, fds))}
    with subprocess.Popen(
        ["setpriv", "--pdeathsig=TERM", "--", *hosts.words("s", sys.executable, "-m", "portal", *words)],
        env=environment,
        pass_fds=fds,
        start_new_session=True,
    ) as process:
        for number in signal.SIGINT, signal.SIGTERM:
            signal.signal(number, lambda *_: process.terminate())
        return process.wait()


def is_inside() -> bool:
    """Return whether this process is on host s already."""
    return os.environ.get(HOST) == "s"


async def ground(plan: Plan, children: Children, stack: AsyncExitStack) -> Ground:
    """The stores, and the front once the web servers answer. Raises `Failed`."""
    listeners = [stack.enter_context(listener(address, 8000)) for address in SERVERS]
    clients = [socket.socket(fileno=int(fd)) for fd in os.environ[FDS].split(",")]
    for each in clients:
        stack.enter_context(each)
    hosts = Hosts(OWNER, int(os.environ[PID]))
    origins = tuple(f"http://{address}:{each.getsockname()[1]}" for address, each in zip(CLIENTS, clients, strict=True))
    password, _ = await asyncio.gather(_databases(children, stack), _redises(children, stack))
    sentinels = ",".join(f"127.0.0.1:{port}" for port in SENTINELS)
    urls = [f"mysql+asyncmy://portal:{password}@127.0.0.1:{port}" for port in DATABASES]

    async def front() -> None:
        programs = []
        for host in FRONTS:
            place = plan.folder / f"front-{host}"
            both = nginx(place, edges=1), keepalived(place, host)
            programs += [Program(f"{words[0]}-{host}", hosts.words(host, *words)) for words in both]
        pairs = [f"{each.fileno()}={address}" for each, address in zip(clients, CLIENTS.values(), strict=True)]
        words = hosts.words("c", sys.executable, "-m", "portal.entry", *pairs)
        programs.append(Program("entry", words, tuple(each.fileno() for each in clients)))
        await stack.enter_async_context(children.keeping(*programs))
        await answers(f"http://{ADDRESS}", host=origins[0].removeprefix("http://"))

    return Ground(
        listeners=listeners,
        origins=origins,
        redis_url=f"redis+sentinel://{sentinels}/main",
        database_url=f"{urls[0]}/portal",
        ledger_url=f"{urls[0]}/ledger",
        replica_urls=(f"{urls[1]}/portal",),
        fronts=tuple(FRONTS.values()),
        edge_bind=f"{EDGE}:7450",
        edge_url="/connection/websocket",
        front=front,
        lines=tuple(
            f"{'open' if not index else 'and as another client'} {origin}/" for index, origin in enumerate(origins)
        ),
    )


# --- MariaDB ---------------------------------------------------------------------------------------------------------


async def _databases(children: Children, stack: AsyncExitStack) -> str:
    """A primary with its replica. Returns the password of the user `portal`, a new one at each start."""
    folders = [children.folder / f"mariadb-{number}" for number in (1, 2)]
    is_new = not folders[1].exists()
    if is_new:
        await _install(children, folders[0])
        await asyncio.to_thread(shutil.copytree, folders[0], folders[1])
    programs = []
    for number, (folder, port) in enumerate(zip(folders, DATABASES, strict=True), 1):
        more = ("--log-bin=log", "--binlog-format=ROW") if number == 1 else ("--read-only=ON",)
        options = [
            *("--no-defaults", "--user=root", "--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve"),
            *(f"--datadir={folder}", "--socket=socket", "--pid-file=pid", f"--server-id={number}", *more),
            *("--gtid-strict-mode=ON", "--performance-schema=OFF", "--key-buffer-size=1M"),
            *("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M"),
        ]
        programs.append(Program(folder.name, ("mariadbd", *options)))
    await stack.enter_async_context(children.keeping(*programs))
    password, word = secrets.token_hex(16), secrets.token_hex(16)
    primary, replica = (f"mysql+asyncmy://root@127.0.0.1:{port}/mysql" for port in DATABASES)
    exact = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    await _ask(
        primary,
        *(f"CREATE DATABASE IF NOT EXISTS {name} {exact}" for name in ("portal", "ledger")),
        f"CREATE OR REPLACE USER replica@'127.0.0.1' IDENTIFIED BY '{word}'",
        "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'",
    )
    where = f"MASTER_HOST='127.0.0.1', MASTER_PORT={DATABASES[0]}, MASTER_USER='replica', MASTER_PASSWORD='{word}'"
    how = "MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
    stop = () if is_new else ("STOP SLAVE",)
    await _ask(replica, *stop, f"CHANGE MASTER TO {where}, {how}", "START SLAVE")
    await _ask(
        primary,
        f"CREATE OR REPLACE USER portal@'127.0.0.1' IDENTIFIED BY '{password}'",
        *(f"GRANT ALL ON {name}.* TO portal@'127.0.0.1'" for name in ("portal", "ledger")),
    )
    await _ask(f"mysql+asyncmy://portal:{password}@127.0.0.1:{DATABASES[1]}/portal", "SELECT 1")  # the replica has it
    return password


async def _install(children: Children, folder: Path) -> None:
    """Make the files of a server that never ran. Raises `Failed`."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        *("--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"),
        *("--skip-name-resolve", "--innodb-log-file-size=16M", f"--datadir={folder}"),
    ]
    await children.output("mariadb-install-db", *words)


async def _ask(url: str, *statements: str) -> None:
    """Run statements one by one, as soon as the server takes them. Raises `Failed`."""
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    why = ""
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    async with engine.connect() as connection:
                        for statement in statements:
                            await connection.execute(text(statement))
                        return
                except (SQLAlchemyError, OSError) as error:
                    why = str(error).partition("\n")[0]
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Failed(f"MariaDB did not start: {why:.200}") from None
    finally:
        await engine.dispose()


# --- Redis -----------------------------------------------------------------------------------------------------------


async def _redises(children: Children, stack: AsyncExitStack) -> None:
    """A primary with its replica, and sentinels that choose another primary when it dies."""
    folder = children.folder / "redis"
    shutil.rmtree(folder, ignore_errors=True)  # a cache keeps nothing
    folder.mkdir()
    common = f'bind 127.0.0.1\ndir {folder}\nsave ""\nappendonly no\nmaxmemory 64mb\nmaxmemory-policy allkeys-lfu\n'
    files = {}
    for number, port in enumerate(REDISES, 1):
        of = f"replicaof 127.0.0.1 {REDISES[0]}\nrepl-diskless-sync-delay 0\n" if number > 1 else ""
        files[f"redis-{number}"] = f"{common}port {port}\n{of}"
    watched = (
        f"sentinel monitor main 127.0.0.1 {REDISES[0]} {QUORUM}\n"
        f"sentinel down-after-milliseconds main {DOWN_MS}\nsentinel failover-timeout main 3000\n"
    )
    for number, port in enumerate(SENTINELS, 1):
        files[f"sentinel-{number}"] = f"bind 127.0.0.1\nport {port}\ndir {folder}\n{watched}"
    programs = []
    for name, lines in files.items():
        file = folder / f"{name}.conf"  # a sentinel writes into it
        file.write_text(lines)
        more = ("--sentinel",) if name.startswith("sentinel") else ()
        programs.append(Program(name, ("redis-server", str(file), *more), again_s=BACK_S))
    await stack.enter_async_context(children.keeping(*programs))
