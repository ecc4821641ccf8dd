"""A client of a fleet: it connects to the MQTT broker, takes orders, and answers each once.

    agent = Agent("mqtt://HOST:1883", "probe-7", "its password", {"country": ["CN"], "carrier": ["1"]})

    @agent.task("ping")
    async def ping(target: str, options: dict) -> dict:
        return {"ms": 12.5}

    asyncio.run(agent.run())

`import muster.fleet` loads it; it needs nothing beside this library. The messages are those of `docs/fleet.md`.
"""

import asyncio
import contextlib
import json
import random
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from muster._mqtt import Connection, MqttError, connect_packet, resolved
from muster.brokers import brokers
from muster.errors import MusterError

from .clock import now_ms

__all__ = ["Agent", "ClientRefused", "MqttError", "Superseded"]

VERSION: Final = 1
KEEPALIVE_S: Final = 60
CONNECT_S: Final = 10.0
BEAT_MS: Final = 30_000
"""Until the plane says another time."""
HELLO_BEATS: Final = 10
"""In place of each tenth beat it says hello, so that a node that missed one learns it."""
RESULTS_MAX: Final = 256
"""Answers that are kept for an order that comes again."""
RESULT_S: Final = 30.0
"""So long a result is waited for, until an order says another time."""
RUNNING_MAX: Final = 64
"""Orders at once; a further one has no receipt, and another client is asked."""
ERROR_CHARS_MAX: Final = 1_000
Do = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Does a task: `(target, options)`, and gives any JSON. What it raises is a result that is not `ok`."""


class Superseded(MusterError):
    """Another process has this client's name, with a later epoch."""


class ClientRefused(MusterError):
    """The plane refuses this client; its text says why."""


class Agent:
    """One client. `run` ends when it is cancelled, superseded or refused; a lost broker is connected again, or another."""

    def __init__(
        self,
        url: str,
        name: str,
        password: str,
        attributes: Mapping[str, Sequence[str]],
        *,
        epoch: int = 0,
        spread_s: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: see `muster.brokers`; of several hosts, and of several addresses of a name, it takes any, and another one
        after a loss. `epoch` grows strictly with each start [ms since 1970]. After a loss it waits a random part of
        `spread_s`, then longer: a broker that comes back is not overrun. `tls` may have the client's certificate; an
        empty password is for brokers that go by that. Raises `ValueError` for a bad URL."""
        found = brokers(url)
        self.name, self.epoch = name, epoch or now_ms()
        self.connected = False
        self.done = 0
        """Results given so far."""
        self._places = random.sample(found.places, len(found.places))
        """In the order in which this client tries them."""
        self._tls = (tls or ssl.create_default_context()) if found.tls else None
        self._attributes = {key: list(values) for key, values in attributes.items()}
        self._version = 1
        self._password, self._spread_s = password, spread_s
        self._tasks: dict[str, Do] = {}
        self._results: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        """By run: when it was made, and the message."""
        self._result_s = RESULT_S
        self._running: dict[str, asyncio.Task[None]] = {}
        self._connection: Connection | None = None
        self._lost: asyncio.Event | None = None
        self._end: BaseException | None = None
        self._beat_ms = BEAT_MS
        self._beating: asyncio.TimerHandle | None = None
        self._kept_at = 0.0
        self._beats = 0

    def task(self, kind: str) -> Callable[[Do], Do]:
        """Have orders of this kind done by the function that follows; `*` stands for all other kinds."""

        def add(do: Do) -> Do:
            self._tasks[kind] = do
            return do

        return add

    def change(self, attributes: Mapping[str, Sequence[str]]) -> None:
        """Have other attributes from now on."""
        self._attributes = {key: list(values) for key, values in attributes.items()}
        self._version += 1
        self._hello()

    async def run(self) -> None:
        """Serve until cancelled. Raises `Superseded`, `ClientRefused`, and `MqttError` for a wrong password."""
        losses = 0
        try:
            while True:
                began = time.monotonic()
                with contextlib.suppress(OSError, TimeoutError):
                    await self._serve()
                if self._end is not None:
                    raise self._end
                losses = 0 if time.monotonic() - began > 60 else losses + 1
                self._places.append(self._places.pop(0))
                rounds = max(0, losses - 1) // len(self._places)
                await asyncio.sleep(random.uniform(0, self._spread_s * min(12, 2**rounds)))
        finally:
            if self._beating is not None:
                self._beating.cancel()
            for task in list(self._running.values()):
                task.cancel()
            if self._connection is not None:
                self._send("bye", {"epoch": self.epoch}, 1)
                self._connection.close()

    async def _serve(self) -> None:
        """One connection, from its beginning to its loss."""
        lost = self._lost = asyncio.Event()
        will = f"fleet/{VERSION}/{self.name}/up/bye", _json({"epoch": self.epoch})
        hello = connect_packet(self.name, self.name, self._password, KEEPALIVE_S, will)
        loop = asyncio.get_running_loop()
        host, port = self._places[0]
        async with asyncio.timeout(CONNECT_S):
            _, made = await loop.create_connection(
                lambda: Connection(hello, self._heard, lost.set),
                random.choice(await resolved(host, port)),
                port,
                ssl=self._tls,
                server_hostname=host if self._tls else None,
            )
            try:
                await made.opened
            except BaseException as error:  # refused, ended, or no answer in time
                made.abort()
                if not isinstance(error, MqttError):
                    raise
                if "refuses" in str(error) and "unavailable" not in str(error):
                    self._end = error
                return
        self._connection, self.connected = made, True
        try:
            made.subscribe(f"fleet/{VERSION}/{self.name}/down/+")
            self._hello()
            still = time.monotonic() - self._result_s  # older ones are waited for no more
            for run in [run for run, (at, _) in self._results.items() if at >= still]:
                self._send_result(run)  # perhaps the broker did not get it; a second one counts for nothing
            self._beat_soon(random.random())
            await lost.wait()
        finally:
            self.connected = False
            if lost.is_set():
                self._connection = None

    def _hello(self) -> None:
        self._send("hello", {"epoch": self.epoch, "version": self._version, "attributes": self._attributes}, 1)

    def _beat_soon(self, part: float = 1.0) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._beating = asyncio.get_running_loop().call_later(part * self._beat_ms / 1000, self._beat)

    def _beat(self) -> None:
        """A beat is a sign of life for the broker too; between long ones it is pinged."""
        if self._connection is not None:
            self._beats += 1
            if self._beats % HELLO_BEATS:
                self._send("beat", {"epoch": self.epoch}, 0)
            else:
                self._hello()
            if time.monotonic() - self._kept_at >= KEEPALIVE_S / 2:
                self._kept_at = time.monotonic()
                self._connection.ping()
        self._beat_soon()

    def _heard(self, topic: str, payload: bytes) -> None:
        """A message of the plane. One that is malformed is passed over."""
        try:
            said = json.loads(payload)
            if topic.endswith("/task"):
                self._result_s = int(said.get("result_ms", 1000 * RESULT_S)) / 1000
                self._order(str(said["run"]), str(said["kind"]), str(said["target"]), dict(said.get("options", {})))
            elif topic.endswith("/notice") and said["epoch"] == self.epoch:
                self._notice(str(said["what"]), str(said.get("text", "")), int(said.get("beat_ms", 0)))
        except (ValueError, KeyError, TypeError):
            return

    def _notice(self, what: str, text: str, beat_ms: int) -> None:
        if what == "beat" and beat_ms > 0 and beat_ms != self._beat_ms:
            self._beat_ms = beat_ms
            self._beat_soon(random.random())
        elif what == "unknown":
            self._hello()
        elif what in {"superseded", "refused"}:
            self._end = (
                Superseded(f"client {self.name} runs elsewhere too" + (f": {text}" if text else ""))
                if what == "superseded"
                else ClientRefused(text)
            )
            if self._connection is not None:
                self._connection.close()

    def _order(self, run: str, kind: str, target: str, options: dict[str, Any]) -> None:
        """The same run again is the same order: it is done once."""
        do = self._tasks.get(kind) or self._tasks.get("*")
        known = run in self._results or run in self._running
        if not known and len(self._running) >= RUNNING_MAX:
            return
        self._send("receipt", {"run": run, "epoch": self.epoch}, 1)
        if run in self._results:
            self._send_result(run)
        elif not known:
            self._running[run] = asyncio.get_running_loop().create_task(self._do(run, do, kind, target, options))

    async def _do(self, run: str, do: Do | None, kind: str, target: str, options: dict[str, Any]) -> None:
        said: dict[str, Any] = {"run": run, "epoch": self.epoch, "ok": False}
        try:
            if do is None:
                raise LookupError(f"this client does no {kind!r}")
            value = await do(target, options)
            payload = _json(said | {"ok": True, "value": value})
        except Exception as error:  # whatever a task raises is its result
            payload = _json(said | {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]})
        finally:
            self._running.pop(run, None)
        self._results[run] = time.monotonic(), payload
        while len(self._results) > RESULTS_MAX:
            self._results.popitem(last=False)
        self.done += 1
        self._send_result(run)

    def _send_result(self, run: str) -> None:
        self._publish("result", self._results[run][1], 1)

    def _send(self, kind: str, said: dict[str, Any], quality: int) -> None:
        self._publish(kind, _json(said), quality)

    def _publish(self, kind: str, payload: bytes, quality: int) -> None:
        """What is lost with a connection comes again: a hello with the next one, a result as well."""
        if self._connection is not None:
            with contextlib.suppress(MqttError):
                self._connection.publish(f"fleet/{VERSION}/{self.name}/up/{kind}", payload, quality)


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def _json(said: Any) -> bytes:
    return _encode(said).encode()
