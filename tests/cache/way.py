"""A TCP way to a server that a test cuts, silently or with an end, and heals."""

import asyncio
from typing import Self


class Way:
    """From `port` on the loopback to a port there."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def opened(self) -> Self:
        self._server = await asyncio.start_server(self._met, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """Nothing passes any more, and no end is told."""
        self._open.clear()

    def heal(self) -> None:
        """What waited passes."""
        self._open.set()

    def end_all(self) -> None:
        """The connections end; new ones are served."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.end_all()
        self.heal()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self._open.wait()
        if writer.transport.is_closing():
            return
        there, onward = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers.add(onward)
        for pair in ((reader, onward), (there, writer)):
            task = asyncio.create_task(self._pass(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
