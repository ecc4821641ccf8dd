"""An unchanged client of one room in a process of its own (`programs/python/watch.py`), and what it has seen."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from tests.edge import sdks
from tests.waiting import PATIENT_S

PROGRAM: Final = sdks.PROGRAMS / "python" / "watch.py"


class Watcher:
    """Its events in order."""

    def __init__(self, output: asyncio.StreamReader) -> None:
        self._output = output
        self.events: list[dict[str, Any]] = []

    def all(self, event: str) -> list[dict[str, Any]]:
        """The events of a name."""
        return [each for each in self.events if each["event"] == event]

    @property
    def data(self) -> list[Any]:
        """The data of all publications."""
        return [each["data"] for each in self.all("publication")]

    async def until(self, condition: Callable[[], object]) -> None:
        """Read events until this holds."""
        async with asyncio.timeout(PATIENT_S):
            while not condition():
                line = await self._output.readline()
                assert line, f"the client ended after {self.events}"
                self.events.append(json.loads(line))


@contextlib.asynccontextmanager
async def watching(url: str, token: str, room: str, authority: str = "") -> AsyncIterator[Watcher]:
    """A client that is subscribed. `authority`: the file of certificates that it trusts."""
    sdks.need("python")
    environment = {**os.environ, "PYTHONPATH": str(sdks.SDKS / "python")}
    if authority:
        environment["SSL_CERT_FILE"] = authority
    words = (sys.executable, str(PROGRAM), url, token, room)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        watcher = Watcher(process.stdout)
        await watcher.until(lambda: watcher.all("subscribed"))
        yield watcher
    finally:
        process.kill()
        await process.wait()
