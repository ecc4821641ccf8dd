"""The tour of `muster up --demo --tour`: each system runs a few commands, which are shown with their output.

Owns the shell that runs them, in which `muster` is this program. It knows no system: the lines come from `System.tour`.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from muster_server.control.terminal.words import say
from muster_server.plane import systems
from muster_server.plane.kind import System

LINE_S: Final = 60.0
"""Limit of a command, in seconds; beyond it the command and the tour of its system end."""
END_S: Final = 5.0
"""Time for the output of a shell that was killed."""


async def shown(enabled: Sequence[str], folder: Path) -> None:
    """Run the tours of the enabled systems one after another, and print each command with its output."""
    for name in enabled:
        tour = systems.named()[name].tour
        if tour:
            await run(systems.named()[name], _environment(folder))


async def run(system: System, environment: Mapping[str, str]) -> None:
    """Run one tour in one shell, whose background commands end with it."""
    program = shlex.join([sys.executable, "-m", "muster_server"])
    shell = await asyncio.create_subprocess_exec(
        "sh", stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=dict(environment), start_new_session=True
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        shell.stdin.write(f'muster() {{ {program} "$@" </dev/null; }}\n'.encode())
        for line in system.tour:
            say(f"  $ {line}")
            shell.stdin.write(f"{line}\nprintf '\\0'\n".encode())
            async with asyncio.timeout(LINE_S):
                said = await shell.stdout.readuntil(b"\0")
            for each in said[:-1].decode(errors="replace").splitlines():
                say(f"    {each}")
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        say(f"  the tour of {system.name} stopped: {str(error) or type(error).__name__}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # a command that left the group may hold the pipe
            async with asyncio.timeout(END_S):
                await shell.communicate()  # closes the pipes, which wait() leaves to the loop
        await shell.wait()


def _environment(folder: Path) -> dict[str, str]:
    """The environment of the commands: this instance, and no colour."""
    return {**os.environ, "MUSTER_INSTANCE__DIR": str(folder), "NO_COLOR": "1", "COLUMNS": "100"}
