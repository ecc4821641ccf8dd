"""stdin and stdout, which may block or lose their other end, without blocking the loop or the end of the program.

Each wait has a daemon thread. A stopped reader of stdout, or a terminal without input, blocks nothing else.
"""

import asyncio
import contextlib
import os
import queue
import select
import threading
from collections.abc import AsyncIterator, Callable
from typing import Final

from muster_server.control.errors import UserError

CHUNK_BYTES: Final = 1 << 16
AHEAD: Final = 8
"""Number of chunks that are read ahead: 512 KiB."""


async def lines(descriptor: int, longest: int) -> AsyncIterator[list[bytes]]:
    """The lines of a descriptor without their line feeds, in batches of those that are available. The last line may
    lack its line feed.

    Raises `UserError` for a line of more than `longest` bytes.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    free = threading.Semaphore(AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"more"
        while chunk and isinstance(chunk, bytes):
            free.acquire()
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: no code reads any more
                return

    threading.Thread(target=read, daemon=True, name="stdin").start()
    rest, count = b"", 0
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        free.release()
        *whole, rest = (rest + chunk).split(b"\n")
        count += len(whole)
        if whole:
            yield whole
        if len(rest) > longest:
            raise UserError(f"line {count + 1} is too long for a message (limit {longest} bytes)")
    if rest:
        yield [rest]


def when_unread(descriptor: int, call: Callable[[], object]) -> None:
    """Call this on the loop, once, when the other end of a pipe or socket was closed. A file has no other end."""
    loop = asyncio.get_running_loop()
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLERR and POLLHUP are always reported

    def wait() -> None:
        poll.poll()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command has ended
            loop.call_soon_threadsafe(call)

    threading.Thread(target=wait, daemon=True, name="unread").start()


class Writer:
    """Writes to a descriptor, one chunk after the other."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pieces: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="stdout").start()

    async def write(self, piece: bytes) -> None:
        """Return once it is written. Raises `BrokenPipeError` when the reader has closed it."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._pieces.put((piece, done))
        await done

    def _work(self) -> None:
        while True:
            piece, done = self._pieces.get()
            error = self._put(memoryview(piece))
            try:
                self._loop.call_soon_threadsafe(_finish, done, error)
            except RuntimeError:
                return

    def _put(self, piece: memoryview) -> OSError | None:
        try:
            while piece:
                piece = piece[os.write(self._descriptor, piece) :]
        except OSError as error:
            return error
        return None


def _finish(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
