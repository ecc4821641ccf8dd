"""Starts nodes by forks of one process that has loaded their modules (`control/node/template.py`).

Owns that process: started with the first node, and again after its end. A node is nevertheless a child of this process:
the end of the template ends no node, and the end of this process ends all.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import IO, Final

import msgspec

from muster_server.control.cluster.child import LINE_BYTES_MAX
from muster_server.control.errors import FAILURE, UserError
from muster_server.control.node.template import OPTION, Start

PR_SET_CHILD_SUBREAPER: Final = 36
ANSWER_S: Final = 30.0
"""A template that has not answered after this many seconds is replaced; on an idle machine it loads in a second."""
ANSWER_MAX: Final = 32
STDERR: Final = 2
BURY_S: Final = 0.002
"""Seconds between polls of a node that has closed its streams and so is about to end."""


class Node:
    """A forked process, in the form of `asyncio.subprocess.Process`. Its standard input and output are one socket."""

    def __init__(self, pid: int) -> None:
        loop = asyncio.get_running_loop()
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = asyncio.StreamReader(LINE_BYTES_MAX, loop)
        self._over = loop.create_future()
        self._transport: asyncio.Transport | None = None

    async def tie(self, ours: socket.socket) -> None:
        """Read its output from our end of the socket; closing that end stops the node."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: _Tie(self.stdout, self._bury), sock=ours)
        if self.returncode is not None:  # it has ended already
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Write to its standard input; does nothing if it has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close its standard input; does nothing if it has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def send_signal(self, number: int) -> None:
        """Raises `ProcessLookupError` if it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end. Returns the exit code, or the negative signal."""
        code: int = await asyncio.shield(self._over)
        return code

    def _bury(self) -> None:
        """Collect its exit code; it closes its streams a moment before it ends."""
        if self.returncode is not None:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            asyncio.get_running_loop().call_later(BURY_S, self._bury)
            return
        self.returncode = os.waitstatus_to_exitcode(status)
        if not self._over.done():
            self._over.set_result(self.returncode)
        if self._transport is not None:
            self._transport.close()


class _Tie(asyncio.StreamReaderProtocol):
    def __init__(self, reader: asyncio.StreamReader, ended: Callable[[], None]) -> None:
        super().__init__(reader)
        self._ended_with = ended

    def eof_received(self) -> bool:
        super().eof_received()
        self._ended_with()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        # a process that ends with unread input resets the connection, which is an end as well
        super().connection_lost(None)
        self._ended_with()


class Template:
    """The process from which nodes are forked. `command` is its command line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def start(self, name: str, words: Sequence[str], stderr: IO[bytes] | None = None) -> Node:
        """Fork a node with these arguments, which `ps` shows by this name. Raises `UserError` and `OSError`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                streams = theirs.fileno(), STDERR if stderr is None else stderr.fileno()
                async with self._turn:
                    node = Node(await self._forked(msgspec.json.encode(Start(name, list(words))), streams))
            await node.tie(ours)
        except BaseException:
            ours.close()
            raise
        return node

    async def close(self) -> None:
        """End the template; nodes continue."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def _forked(self, request: bytes, streams: Sequence[int]) -> int:
        """The process id of a new node. A template that has ended since its last use is started again."""
        before = self._socket
        answer = b"" if before is None else await self._answer(before, request, streams)
        if not answer:
            await self.close()
            answer = await self._answer(await self._begin(), request, streams)
        if not answer:
            code = None if self._process is None else await self._process.wait()
            await self.close()
            raise UserError(f"the template process that starts nodes ended with code {code}", FAILURE)
        return int(answer)

    async def _answer(self, asked: socket.socket, request: bytes, streams: Sequence[int]) -> bytes:
        """The template's answer; empty if it has ended."""
        try:
            async with asyncio.timeout(ANSWER_S):
                _adopts(True)
                socket.send_fds(asked, [request], streams)
                return await asyncio.get_running_loop().sock_recv(asked, ANSWER_MAX)
        except ConnectionError:
            return b""
        except BaseException:  # its answer would be taken for the answer to the next request
            await self.close()
            raise
        finally:
            _adopts(False)

    async def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(*self._command, OPTION, "--parent", str(os.getpid())),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        return ours


def _adopts(orphans: bool) -> None:
    """Set whether this process adopts the orphans among its descendants. Raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
