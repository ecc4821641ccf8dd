"""The process of several nodes: `systems/node.py` with `--shared`, run by the supervisor.

Each node has all that it has in a process of its own (`process.py`): spec, number, administration, registration, end.
They share the loop, and machines send each other datagrams through memory (`plane/together.py`). The supervisor writes
orders to stdin and reads reports from stdout, a line of JSON each, always with the node's name. The process ends when
stdin does.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog

from muster_server.control.errors import FAILURE, UserError
from muster_server.control.node import logs
from muster_server.control.node.life import Life
from muster_server.control.node.live import Live
from muster_server.control.node.process import FileOwner, live, names_of
from muster_server.plane.spec import SpecError
from muster_server.plane.together import Together

ORDER_MAX: Final = 1 << 14
"""Limit of an order in bytes: a node's name and a file name."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The supervisor's order for a node."""

    name: str
    order: Literal["start", "end", "reload"]
    spec: str = ""
    """For a start: the file of the node's spec."""


class Ended(msgspec.Struct, frozen=True):
    """The end of a node: its exit code, as that of a process of its own."""

    name: str
    ended: int


class Tenant(FileOwner):
    """One node and its life."""

    def __init__(self, name: str, file: Path, report: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(file)
        self._name, self._report = name, report
        self.life = Life()

    def tell(self, state: str, **more: Any) -> None:
        """Write one line."""
        self._report({"name": self._name, "state": state, **more})

    def watch(self, end: asyncio.Event, stop: asyncio.Event, attach: Callable[[Live], None]) -> None:
        """An earlier order to end counts too."""
        self._attach(attach)
        self.life.watch(end, stop)


class Shared:
    """The nodes of this process, as the supervisor orders."""

    def __init__(self) -> None:
        self._together = Together()
        self._tenants: dict[str, Tenant] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()
        self._leaving = False
        """True: the process ends once its nodes have ended, so its end is theirs."""
        self._read = b""
        self._log: structlog.typing.FilteringBoundLogger | None = None

    async def run(self) -> None:
        """Carry out orders until stdin ends, then end all nodes."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal's Ctrl-C goes to the supervisor
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_reader(0, self._hear)
        await self._over.wait()
        await asyncio.gather(*self._tasks.values())

    def _end(self) -> None:
        """End all nodes in order, then the process: the supervisor starts the nodes that it still needs in another
        process."""
        self._leaving = True
        for tenant in self._tenants.values():
            tenant.life.end()
        if not self._tasks:
            self._over.set()

    def _reload(self) -> None:
        for tenant in self._tenants.values():
            tenant.reload()

    def _hear(self) -> None:
        heard = os.read(0, ORDER_MAX)
        if not heard:
            asyncio.get_running_loop().remove_reader(0)
            for tenant in self._tenants.values():
                tenant.life.stop()
            self._over.set()
            return
        *lines, self._read = (self._read + heard).split(b"\n")
        for line in lines:
            self._take(msgspec.json.decode(line, type=Order))

    def _take(self, order: Order) -> None:
        tenant = self._tenants.get(order.name)
        if order.order == "start":
            if self._leaving:
                return
            tenant = self._tenants[order.name] = Tenant(order.name, Path(order.spec), _report)
            self._tasks[order.name] = asyncio.create_task(self._live(order.name, tenant), name=order.name)
        elif tenant is not None and order.order == "end":
            tenant.life.end()
        elif tenant is not None:
            tenant.reload()

    async def _live(self, name: str, tenant: Tenant) -> None:
        code = 0
        try:
            spec = tenant.spec()
            if self._log is None:
                self._log = logs.configure(spec.log_level, spec.log_format, instance=spec.instance)
            await tenant.life.run(live(tenant, spec, self._log.bind(**names_of(spec)), self._together))
        except (SpecError, OSError, UserError) as error:
            tenant.tell("failed", error=str(error))
            code = error.exit_code if isinstance(error, UserError) else FAILURE
        except Exception:  # an internal error: that node starts again, and the others continue
            code = FAILURE
            assert self._log is not None  # the errors before this point are all named above
            self._log.exception("ended by an internal error", name=name)
        del self._tenants[name], self._tasks[name]
        if not self._leaving:
            _report(msgspec.to_builtins(Ended(name, code)))
        elif not self._tasks:
            self._over.set()


def _report(said: dict[str, Any]) -> None:
    """Write a report. The loss of the supervisor is detected elsewhere."""
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(said) + b"\n")
