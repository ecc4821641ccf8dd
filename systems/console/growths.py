"""Growths of layers that the console began: each is a `muster cluster grow` beside it, and the lines that it prints.

The command coordinates; if the console ends, another one continues it. Must not know a page.
"""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from muster_server.plane.kinds import partitioned
from muster_server.systems.http.problems import Problem

LINES_MAX: Final = 100
"""Limit of lines that are kept of a growth; the first ones go."""
LINE_CHARS_MAX: Final = 400
END_S: Final = 5.0


class Line(msgspec.Struct, frozen=True):
    """One line of the command, and when it came, in seconds since 1970."""

    at: float
    text: str


class Growing(msgspec.Struct, kw_only=True):
    """A growth that the console began. `code`: the exit code of the command; None while it runs."""

    layer: str
    began: float
    code: int | None = None
    lines: list[Line] = msgspec.field(default_factory=list[Line])


class Growths:
    """The last growth of each layer, one at a time in each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[str, Growing] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def last(self, layer: str) -> Growing | None:
        """The last growth of a layer that began here."""
        return self._last.get(layer)

    async def begin(self, layer: str, to: int) -> Growing:
        """Begin the growth of a layer to this number of partitions. Raises `Problem`."""
        if layer not in partitioned():
            raise Problem("bad_request", f"no layer {layer!r:.40} has partitions")
        known = self._last.get(layer)
        if known is not None and known.code is None:
            raise Problem("conflict", f"a growth of {layer} is in progress; wait until it has ended")
        words = ("cluster", "grow", layer, "--to", str(to))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        environment |= {"MUSTER_INSTANCE__DIR": str(self._folder), "NO_COLOR": "1"}
        growing = self._last[layer] = Growing(layer=layer, began=time.time())
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "muster_server", *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            growing.code = 1
            raise Problem("unavailable", f"the command cannot be started: {error.strerror}") from None
        self._tasks[layer] = asyncio.create_task(self._follow(process, growing))
        return growing

    async def stop(self) -> None:
        """End the commands; the growths continue with the next `muster cluster grow --resume`."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, process: asyncio.subprocess.Process, growing: Growing) -> None:
        """Keep what the command prints until it has ended."""
        assert process.stderr is not None
        try:
            while line := await process.stderr.readline():
                text = line.decode(errors="replace").strip()[:LINE_CHARS_MAX]
                growing.lines.append(Line(time.time(), text.removeprefix("muster: ")))
                del growing.lines[:-LINES_MAX]
            growing.code = await process.wait()
        except (ValueError, asyncio.CancelledError):  # a line without an end, or the console ends
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_S)
            growing.code = process.returncode if process.returncode is not None else 1
