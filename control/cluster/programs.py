"""Third-party programs that systems need, as children of `muster up`: prepared, watched, restarted, stopped.

Owns their processes, folders and addresses. It must not know any of them: each is a `Program` of its system.
A program starts before the nodes and ends after them. It dies with this process, even after a crash. One that cannot start
(it is not installed, its port is taken) is tried again; nodes of its system wait for it.
"""

import asyncio
import contextlib
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog
from msgspec import UNSET

from muster_server.control.cluster.child import Backoff
from muster_server.control.cluster.instance import Beside, Folder
from muster_server.control.config.options import Config
from muster_server.control.errors import UNAVAILABLE, UserError
from muster_server.control.host.addresses import split_address
from muster_server.control.host.ports import Ports
from muster_server.plane import systems
from muster_server.plane.kind import Launch, Program, named

STARTS_S: Final = 10.0
STOPS_S: Final = 5.0
LOOK_S: Final = 0.02
AGAIN_S: Final = 15.0
"""A program that cannot start is tried again after this."""
FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Folders of system programs, which an ordinary user's PATH may lack."""


class Programs:
    """The programs that the configuration needs. `changed` is called when one of them starts or ends."""

    def __init__(
        self,
        config: Config,
        place: Folder,
        log: structlog.typing.FilteringBoundLogger,
        changed: Callable[[], None],
    ) -> None:
        self._config, self._place, self._log, self._changed = config, place, log, changed
        self._running: list[Running] = []
        self._systems: dict[str, list[Running]] = {}

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """The address of each program, by name."""
        return {each.program.name: each.address for each in self._running}

    def told(self) -> list[Beside]:
        """All programs, for the record of the instance."""
        return [each.told() for each in self._running]

    def missing(self, system: str) -> str:
        """Why a program of this system has not started yet; empty if all have."""
        return next((each.why for each in self._systems.get(system, ()) if each.why), "")

    async def start(self) -> None:
        """Start all and wait until each accepts connections, or cannot start."""
        section = self._config.section
        with Ports() as ports:
            for system in systems.named().values():
                for program in system.programs if self._config.runs(system.name) else ():
                    if program.wanted(section):
                        made = self._made(ports, program)
                        self._running.append(made)
                        self._systems.setdefault(system.name, []).append(made)
        for each in self._running:
            await each.start()

    def _made(self, ports: Ports, program: Program) -> "Running":
        section = self._config.section
        asked = split_address(program.bind(section))
        try:
            address, why = ports.tcp(f"{program.name}'s address", *asked), ""
        except UserError as error:
            address, why = asked, str(error)
        folder = self._place.program(program.name)
        folder.mkdir(mode=0o700, exist_ok=True)
        return Running(program, Launch(folder, *address, section), self._log, self._changed, why)

    async def stop(self) -> None:
        """Stop all, and kill those that do not end."""
        await asyncio.gather(*(each.stop() for each in self._running))


class Running:
    """One running program."""

    def __init__(
        self,
        program: Program,
        launch: Launch,
        log: structlog.typing.FilteringBoundLogger,
        changed: Callable[[], None],
        taken: str = "",
    ) -> None:
        """`taken`: why its address cannot be had now; empty if it can."""
        self.program, self.address = program, (launch.host, launch.port)
        self.why = taken
        """Why it has not started yet; empty once it has."""
        self.restarts = 0
        self.prepare: Callable[[Launch], list[str]] = named(program.prepare)
        self._launch, self._changed, self._taken = launch, changed, bool(taken)
        self._log = log.bind(program=program.name)
        self._process: asyncio.subprocess.Process | None = None
        self._ready = self._told = False
        self._backoff = Backoff(random.Random())
        self._watching: asyncio.Task[None] | None = None

    def told(self) -> Beside:
        """For the record of the instance."""
        process = self._process
        pid = 0 if process is None or process.returncode is not None else process.pid
        return Beside(
            name=self.program.name,
            pid=pid,
            restarts=self.restarts,
            ready=self._ready,
            bind=self.address,
            waits=self.why or UNSET,
        )

    async def start(self) -> None:
        """Wait until it accepts connections, or cannot start: then it is tried again."""
        first = await self._tried()
        self._watching = asyncio.create_task(self._run(first), name=f"runs {self.program.name}")

    async def _run(self, process: asyncio.subprocess.Process | None) -> None:
        while process is None:
            await asyncio.sleep(AGAIN_S)
            process = await self._tried()
        await self._watch(process)

    async def _tried(self) -> asyncio.subprocess.Process | None:
        """A first start; None if that is not possible now."""
        before = self.why
        try:
            if self._taken:  # by a program of others, which answers there
                with Ports(marks=False) as ports:
                    ports.tcp(f"{self.program.name}'s address", *self.address)
                self._taken = False
            process = await self._begin()
        except (UserError, OSError) as error:
            self.why = str(error)
            if self.why != before or not self._told:
                self._log.error("cannot start; it is tried again", error=self.why, every_s=AGAIN_S)
            self._told = True
            self._changed()
            return None
        self.why = ""
        self._changed()
        return process

    async def _begin(self) -> asyncio.subprocess.Process:
        """Start the program once. Raises `UserError`."""
        binary = _found(self.program)
        arguments = self.prepare(self._launch)
        tied = (sys.executable, "-m", "muster_server.control.cluster.tied", str(os.getpid()))
        with (self._launch.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *tied,
                binary,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process = process
        try:
            async with asyncio.timeout(STARTS_S):
                while not await _accepts(*self.address):
                    if process.returncode is not None:
                        raise UserError(self._failed(f"ended with {process.returncode}"), UNAVAILABLE)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            await self._end(process)
            raise UserError(self._failed(f"did not listen within {STARTS_S:g} s"), UNAVAILABLE) from None
        except BaseException:
            await self._end(process)
            raise
        self._ready = True
        return process

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Restart the program whenever it ends."""
        began = time.monotonic()
        while True:
            code = await process.wait()
            self._ready = False
            self._changed()
            while True:
                delay = self._backoff.delay(time.monotonic() - began)
                self._log.warning("ended by itself", code=code, restart_in_s=round(delay, 3))
                await asyncio.sleep(delay)
                self.restarts, began = self.restarts + 1, time.monotonic()
                try:
                    process = await self._begin()
                    break
                except (UserError, OSError) as error:
                    self._log.error("cannot start", error=str(error))
            self._changed()

    async def stop(self) -> None:
        """Stop the program."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._process is not None:
            await self._end(self._process)
        self._ready = False

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        for end in (process.terminate, process.kill):
            if process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOPS_S)

    def _failed(self, how: str) -> str:
        lines = _text(self._launch.folder / "log").strip().splitlines()
        return f"{self.program.name} {how}: {lines[-1][:200] if lines else 'it printed nothing'}"


def _found(program: Program) -> str:
    """The path of the executable. Raises `UserError`."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    found = shutil.which(program.binary, path=path)
    if found is None:
        raise UserError(f"{program.name} is not installed, and {program.about}; {program.mend}", UNAVAILABLE)
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
