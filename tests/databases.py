"""Real databases that tests own: a file, and MariaDB and PostgreSQL as processes on loopback, killed and started again.

Each server's folder is made once for the whole run; each test has a database of its own there.
"""

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from muster_server.plane.database.url import location
from tests import strikes
from tests.ports import free_ports
from tests.waiting import PATIENT_S

PASSWORD: Final = "s3cret:/@pass"  # with everything that a URL must escape
QUOTED: Final = "s3cret%3A%2F%40pass"
_NAMES: Final = itertools.count(1)


class Database(Protocol):
    """A database for one test, and its server."""

    url: str

    def start(self) -> None:
        """Serve, with the earlier content."""

    def kill(self) -> None:
        """Serve nobody, as after kill -9."""

    def stand_still(self) -> None:
        """Answer nobody, until it goes on."""

    def go_on(self) -> None:
        """Answer again."""


class File:
    """SQLite: no server, so nothing to kill."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "muster.db"
        self.url = f"sqlite:///{self.file}"

    def start(self) -> None:
        """It is there."""

    def kill(self) -> None:
        """It stays there."""

    def stand_still(self) -> None:
        """Nobody can stop it."""

    def go_on(self) -> None:
        """It does."""


class Server(Protocol):
    """A process that serves many databases."""

    port: int

    def start(self) -> None:
        """Serve, if it does not."""

    def kill(self) -> None:
        """kill -9, if it runs."""

    def stand_still(self) -> None:
        """SIGSTOP, if it runs."""

    def go_on(self) -> None:
        """SIGCONT."""

    def url(self, name: str) -> str:
        """A database there, as its owner reaches it."""

    async def make(self, name: str) -> None:
        """An empty database."""

    async def grant(self, name: str, user: str, rights: str) -> None:
        """A user with only these rights on the tables there."""

    def close(self) -> None:
        """Kill it and delete all its data."""


class Served:
    """A database of a server."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name, self.url = server, name, server.url(name)

    def start(self) -> None:
        self.server.start()

    def kill(self) -> None:
        self.server.kill()

    def stand_still(self) -> None:
        self.server.stand_still()

    def go_on(self) -> None:
        self.server.go_on()

    async def grant(self, user: str, rights: str) -> None:
        """A user with the same password and only these rights on the existing tables."""
        await self.server.grant(self.name, user, rights)


class _Process:
    """The common part of both servers: a folder of their own, a port, one process."""

    packages: str
    programs: Sequence[str]

    def __init__(self) -> None:
        for program in self.programs:
            if not found(program):
                _missing(f"needs {program}; to get it: apt-get install --no-install-recommends {self.packages}")
        # Sockets have short paths, and another user must be able to enter.
        self.folder = Path(tempfile.mkdtemp(prefix="muster-"))
        (self.port,) = free_ports(1)
        self.user: list[str] = []
        """Arguments for setpriv, if the server may not be root."""
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str]) -> None:
        """To its end."""
        command = ["setpriv", *self.user, "--", *command]
        done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-2000:]

    def serve(self, command: Sequence[str]) -> None:
        """In the background, unless it runs."""
        if self._process is not None:
            return
        # The process becomes the server itself, so signals reach it; it does not outlive the tests.
        command = ["setpriv", "--pdeathsig=KILL", *self.user, "--", *command]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def stand_still(self) -> None:
        """SIGSTOP of it and of those that work for it, each of which has a session of its own."""
        pid, *others = self._pids()
        strikes.stop(pid)
        _tell(others, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT of these."""
        _tell(self._pids(), signal.SIGCONT)

    def kill(self) -> None:
        """All of it. Who is left of an earlier life keeps the next one from its files, so wait for their end."""
        pid, *others = self._pids()
        strikes.kill(pid)
        _tell(others, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + PATIENT_S
        while any(map(strikes.runs, others)):
            assert time.monotonic() < deadline, f"{others} do not end"
            time.sleep(0.005)

    def _pids(self) -> list[int]:
        assert self._process is not None, "it does not run"
        pid = self._process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class MariaDb(_Process):
    """MariaDB."""

    packages = "mariadb-server"
    programs = ("mariadbd", "mariadb-install-db")

    def __init__(self, *more: str, like: "MariaDb | None" = None) -> None:
        """`more`: further options of the server. `like`: begin with the files of this one, which was never started."""
        super().__init__()
        self._more = more
        self._user = pwd.getpwuid(os.getuid()).pw_name
        if like is not None:
            shutil.copytree(like.folder / "data", self.folder / "data")
            return
        install = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        install += ["--innodb-log-file-size=8M", f"--datadir={self.folder / 'data'}", f"--user={self._user}"]
        install += [f"--tmpdir={self.folder}"]  # two that are made at once use the same names there
        self.run([found("mariadb-install-db"), "--no-defaults", *install])

    def start(self) -> None:
        options = ["--bind-address=127.0.0.1", "--skip-name-resolve", "--performance-schema=OFF"]
        options += ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--key-buffer-size=1M"]
        options += [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}", f"--socket={self.folder / 's'}"]
        options += [f"--pid-file={self.folder / 'pid'}", f"--port={self.port}", f"--user={self._user}"]
        self.serve([found("mariadbd"), "--no-defaults", *options, *self._more])

    def url(self, name: str) -> str:
        return f"mysql://{name}:{QUOTED}@127.0.0.1:{self.port}/{name}"

    async def make(self, name: str) -> None:
        root = f"mysql+asyncmy://root@127.0.0.1:{self.port}/mysql"
        user = f"'{name}'@'%' IDENTIFIED BY '{PASSWORD}'"
        await ask(root, f"CREATE DATABASE {name}", f"CREATE USER {user}", f"GRANT ALL ON {name}.* TO '{name}'@'%'")

    async def grant(self, name: str, user: str, rights: str) -> None:
        root = f"mysql+asyncmy://root@127.0.0.1:{self.port}/mysql"
        who = f"'{user}'@'%'"
        await ask(root, f"CREATE USER {who} IDENTIFIED BY '{PASSWORD}'", f"GRANT {rights} ON {name}.* TO {who}")


class PostgreSql(_Process):
    """PostgreSQL, which does not run as root."""

    packages = "postgresql"
    programs = ("initdb", "postgres")

    def __init__(self, *more: str, of: "PostgreSql | None" = None) -> None:
        """`more`: further settings of the server. `of`: it is a replica of this one, which serves."""
        super().__init__()
        self._more = more
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
            self.user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data = str(self.folder / "data")
        if of is not None:
            options = ["-h", "127.0.0.1", "-p", str(of.port), "-U", "owner", "--write-recovery-conf", "--no-sync"]
            self.run([found("pg_basebackup"), "-D", data, "--checkpoint=fast", *options])
            return
        options = ["-U", "owner", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        self.run([found("initdb"), "-D", data, *options])
        rules = "host all owner 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        rules += "host replication owner 127.0.0.1/32 trust\n"
        (self.folder / "data" / "pg_hba.conf").write_text(rules)

    def start(self) -> None:
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "shared_buffers=32MB"]
        settings += ["max_connections=50", "max_wal_size=64MB", "log_min_messages=warning", "jit=off", *self._more]
        options = [part for setting in settings for part in ("-c", setting)]
        self.serve([found("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *options])

    def url(self, name: str) -> str:
        return f"postgresql://{name}:{QUOTED}@127.0.0.1:{self.port}/{name}"

    async def make(self, name: str) -> None:
        owner = f"postgresql+asyncpg://owner@127.0.0.1:{self.port}/postgres"
        await ask(owner, f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'", f"CREATE DATABASE {name} OWNER {name}")

    async def grant(self, name: str, user: str, rights: str) -> None:
        owner = f"postgresql+asyncpg://owner@127.0.0.1:{self.port}/{name}"
        tables = f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {user}"
        await ask(owner, f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'", tables)


async def ask(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements one by one, as soon as the server answers; return the rows of the last."""
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                async with engine.connect() as connection:
                    rows: list[tuple[object, ...]] = []
                    for statement in statements:
                        result = await connection.execute(text(statement))
                        rows = [tuple(row) for row in result] if result.returns_rows else []
                    return rows
            except (OSError, SQLAlchemyError) as error:
                if not _not_yet(error):
                    raise
                await asyncio.sleep(0.02)


async def plain(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements at the configured URL."""
    return await ask(location(url).url.render_as_string(hide_password=False), *statements)


async def made(server: Server) -> Served:
    """A new database of a server, which serves."""
    server.start()
    name = f"muster_{next(_NAMES)}"
    await server.make(name)
    return Served(server, name)


def found(program: str) -> str:
    """The path of a program, also in Debian's hidden folders."""
    hidden = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    path = ":".join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *map(str, reversed(hidden))])
    return shutil.which(program, path=path) or ""


def _not_yet(error: Exception) -> bool:
    code = getattr(getattr(error, "orig", error), "args", [None])[0]
    return (
        isinstance(error, OSError)
        or code in {2002, 2003, 2006, 2013}
        or any(text in str(error) for text in ("starting up", "not yet accepting"))
    )


def _missing(mend: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(mend)
    pytest.skip(mend)


def _tell(pids: Sequence[int], number: signal.Signals) -> None:
    """Those of a server that work for one client end with that."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
