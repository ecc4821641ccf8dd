"""A real Redis as a child process on loopback: killed, stopped, and started again from what it had, or had before."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from muster.redis.connections import server
from tests import strikes
from tests.ports import free_ports
from tests.waiting import PATIENT_S

MEND: Final = "needs redis-server; to get it: scripts/setup.sh --tests"


def need() -> None:
    """Skips if it is missing, and fails if nothing may be."""
    if shutil.which("redis-server") is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MEND)
        pytest.skip(MEND)


def client_of(port: int, **options: Any) -> Redis:
    """A client that tries nothing twice."""
    return server(port=port, **({"host": "127.0.0.1"} | options))


class RedisServer:
    """One server, in a folder of its own. What it answered is in its file after a kill."""

    def __init__(self, folder: Path, *words: str, appendonly: bool = True) -> None:
        need()
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self._words = [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""),
            *("--appendonly", "yes" if appendonly else "no", "--appendfsync", "no", "--aof-use-rdb-preamble", "no"),
            *words,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """0 where it does not run."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> "RedisServer":
        """Start it, unless it runs, and wait until it answers."""
        if self._process is None:
            command = ["setpriv", "--pdeathsig=KILL", "redis-server", *self._words]
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENT_S
        while self.said("PING") != "PONG":
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2_000:]
            time.sleep(0.01)
        return self

    def said(self, *words: str | bytes) -> Any:
        """The answer to a command; its error, if there is one."""
        import redis

        with contextlib.closing(redis.Redis(port=self.port, decode_responses=True, socket_timeout=PATIENT_S)) as client:
            try:
                said: Any = client.execute_command(*words)  # type: ignore[no-untyped-call]
            except (redis.RedisError, OSError) as error:
                return str(error)
            return "PONG" if said is True and words == ("PING",) else said

    def kill(self) -> None:
        """kill -9."""
        strikes.kill(self.pid)
        self.end()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """SIGSTOP while the block lasts."""
        with strikes.standing_still(self.pid):
            yield

    def keep(self) -> Path:
        """A copy of its file as it is now."""
        copy = self.folder.with_name(f"{self.folder.name}-kept")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "appendonlydir", copy)
        return copy

    def come_back_with(self, kept: Path) -> None:
        """Die, and start from that copy: as a replica that lagged."""
        self.kill()
        shutil.rmtree(self.folder / "appendonlydir")
        shutil.copytree(kept, self.folder / "appendonlydir")
        self.start()

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def away(self) -> None:
        """Kill it; the loop goes on meanwhile."""
        await asyncio.to_thread(self.kill)
