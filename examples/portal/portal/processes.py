"""Children of the portal: processes that are ended after a block, or started again whenever they end.

Owns their pids and logs. It must not know what they do.
"""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DRAIN_S: Final = 30.0
"""How long a process may take to end."""
AGAIN_S: Final = 1.0


class Failed(Exception):
    """The portal cannot start, or a process that it needs has ended."""

    code = 1


class Missing(Failed):
    """This machine lacks programs or rights."""

    code = 69


def path() -> str:
    """Where programs are: also beside this Python, and where Debian has servers."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@dataclass(frozen=True)
class Program:
    """A process that must always run."""

    name: str
    words: Sequence[str]
    fds: tuple[int, ...] = ()
    """Descriptors that it inherits."""
    again_s: float = AGAIN_S
    """Pause before it is started again."""


class Children:
    """Starts processes with their logs in one folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, dict(environment) | {"PATH": path()}

    @asynccontextmanager
    async def child(self, name: str, *words: str, fds: tuple[int, ...] = ()) -> AsyncIterator[Process]:
        """A process in a session of its own, so that Ctrl-C reaches only this program, which ends it after the block.
        Linux ends it if this program is killed."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig=TERM", "--", *words),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                pass_fds=fds,
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

    @asynccontextmanager
    async def keeping(self, *programs: Program) -> AsyncIterator[None]:
        """Processes that are started again whenever they end within the block. They are ended together."""

        async def kept(program: Program) -> None:
            while True:
                async with self.child(program.name, *program.words, fds=program.fds) as process:
                    code = await process.wait()
                log = self.folder / f"{program.name}.log"
                print(f"portal: {program.name} ended with {code} and starts again; its log is {log}", file=sys.stderr)
                await asyncio.sleep(program.again_s)

        running = [asyncio.create_task(kept(each)) for each in programs]
        try:
            yield
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def output(self, *words: str) -> str:
        """Run a short command and return its output. Raises `Failed`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=self.environment
            )
        except OSError as error:
            raise Failed(f"{words[0]} cannot be run: {error.strerror}") from None
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise Failed(f"{' '.join(words[:4])} failed: {err.decode(errors='replace').strip():.500}")
        return out.decode()


async def until_end(needed: Sequence[Process]) -> None:
    """Wait for the end of a process that must not end. Raises `Failed`."""
    waits = [asyncio.ensure_future(each.wait()) for each in needed]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    raise Failed("a process that the portal needs has ended; the logs in its folder say why")
