"""Nodes that share a process: each looks to its `Child` like a process of its own.

Owns the process: started with the first of its nodes, and again after its end. `control/node/shared.py` is its other
end.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import structlog

from muster_server.control.cluster.child import LINE_BYTES_MAX
from muster_server.control.cluster.template import Node
from muster_server.control.errors import FAILURE
from muster_server.control.node.shared import Order

END_S: Final = 2.0
"""A process without nodes is killed if it has not ended after this many seconds."""


class Tenant:
    """A node in a shared process, in the form of `asyncio.subprocess.Process`."""

    def __init__(self, name: str, host: Node) -> None:
        loop = asyncio.get_running_loop()
        self.pid = host.pid
        self.returncode: int | None = None
        self.stdout = asyncio.StreamReader(LINE_BYTES_MAX, loop)
        self._name, self._host = name, host
        self._over: asyncio.Future[int] = loop.create_future()

    def send_signal(self, number: int) -> None:
        """SIGTERM and SIGHUP go to this node only. Raises `ProcessLookupError` if it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        orders = {signal.SIGTERM: "end", signal.SIGHUP: "reload"}
        self.order(orders[signal.Signals(number)])

    def order(self, word: Any, spec: str = "") -> None:
        """Write one order to the process."""
        self._host.write(msgspec.json.encode(Order(self._name, word, spec)) + b"\n")

    def terminate(self) -> None:
        """End in order: drain first."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole process: a node that does not end blocks the loop of the others, which start again."""
        self._host.kill()

    async def wait(self) -> int:
        """Wait for its end. Returns the exit code, or the negative signal."""
        return await asyncio.shield(self._over)

    def ended(self, code: int) -> None:
        """Called when the node or its process has ended."""
        if self.returncode is None:
            self.returncode = code
            self.stdout.feed_eof()
            self._over.set_result(code)


class SharedProcess:
    """The process of several nodes. `start` forks it, given the file of the spec of one of them."""

    def __init__(self, start: Callable[[str], Awaitable[Node]], log: structlog.typing.FilteringBoundLogger) -> None:
        self._start, self._log = start, log
        self._host: Node | None = None
        self._tenants: dict[str, Tenant] = {}
        """The nodes of the current process; an ended node stays listed until it starts again."""
        self._hearing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def start(self, name: str, spec: str) -> Tenant:
        """Start a node in the process. Raises `UserError` and `OSError`."""
        async with self._turn:
            if self._host is None or self._host.returncode is not None:
                if self._hearing is not None:
                    await self._hearing  # until each node of the previous process has got its exit code
                self._host, self._tenants = await self._start(spec), {}
                self._hearing = asyncio.create_task(self._hear(self._host), name="reads the shared process")
            tenant = self._tenants[name] = Tenant(name, self._host)
            tenant.order("start", spec)
            return tenant

    async def close(self) -> None:
        """End the process, once all its nodes have ended."""
        if self._host is None or self._hearing is None:
            return
        self._host.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._hearing), END_S)
        except TimeoutError:
            self._log.warning("did not end in time, killed", seconds=END_S)
            with contextlib.suppress(ProcessLookupError):
                self._host.kill()
            await self._hearing

    async def _hear(self, host: Node) -> None:
        """Read reports until the process has ended; its nodes have ended then as well."""
        async for line in host.stdout:
            try:
                said = msgspec.json.decode(line, type=dict[str, Any])
                tenant = self._tenants[said.pop("name")]
            except (msgspec.MsgspecError, KeyError):
                self._log.warning("reported an invalid state of a node", line=line[:200].decode(errors="replace"))
                continue
            if "ended" in said:
                tenant.ended(said["ended"])
            else:
                tenant.stdout.feed_data(msgspec.json.encode(said) + b"\n")
        code = await host.wait()
        for tenant in self._tenants.values():
            tenant.ended(code or FAILURE)
