"""A client of a fleet: it connects to the MQTT broker, takes orders, and answers each once.

    agent = Agent("mqtt://HOST:1883", "probe-7", "its password", {"country": ["CN"], "carrier": ["1"]})

    @agent.task("ping")
    async def ping(target: str, options: dict) -> dict:
        return {"ms": 12.5}

    asyncio.run(agent.run())

`import muster.fleet` loads it; it needs nothing besides this library. The messages are those of `docs/fleet.md`.
"""

import asyncio
import contextlib
import json
import random
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from muster._mqtt import BrokerRefused, Connection, MqttError, connect_packet, resolved
from muster.brokers import brokers
from muster.errors import MusterError

from .clock import now_ms

__all__ = ["Agent", "BrokerRefused", "ClientRefused", "Failed", "MqttError", "Superseded"]

VERSION: Final = 1
KEEPALIVE_S: Final = 60
CONNECT_S: Final = 10.0
BEAT_MS: Final = 30_000
"""Interval of heartbeats until the plane sets another one, in ms."""
HELLO_BEATS: Final = 10
"""Each tenth heartbeat is a hello, so that a node that missed one learns the client."""
RESULTS_MAX: Final = 256
"""Limit of results that are kept for an order that comes again."""
RESULT_S: Final = 30.0
"""Seconds for which a result is kept, until an order sets another time."""
RESENDS_S: Final = (0.0, 2.0, 6.0, 14.0)
"""Seconds after a connection is back at which results are sent again: the broker drops what comes before the plane is
back as well."""
DOUBTED_S: Final = 5.0
"""Results from this long before the connection ended may be lost with it."""
RUNNING_MAX: Final = 64
"""Limit of concurrent orders; a further one gets no receipt, and the plane asks another client."""
ERROR_CHARS_MAX: Final = 1_000
RESULT_BYTES_MAX: Final = 65_536
"""Limit of a message of a result: the broker ends the connection of a client that sends more."""
DRAIN_LOOK_S: Final = 0.02
Do = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""A task: called with `(target, options)`, returns any JSON. An exception becomes a result with `ok` false, and
`Failed` one that also has a value."""


class Superseded(MusterError):
    """Another process runs with this client's name and a later epoch."""


class ClientRefused(MusterError):
    """The plane refuses this client; the text has the reason."""


class Failed(MusterError):
    """Raised by a task: its result has `ok` false, this text, and a value, any JSON."""

    def __init__(self, text: str, value: Any) -> None:
        super().__init__(text)
        self.value = value


class Agent:
    """One client. `run` ends when it is cancelled, superseded or refused; after a lost connection it connects to any
    broker again."""

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
        at_once: int = RUNNING_MAX,
        per_minute: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """`url`: see `muster.brokers`. The client tries the hosts, and the addresses of each name, in random order.

        `epoch` grows strictly with each start [ms since 1970]. After a loss the client waits a random part of
        `spread_s` seconds, then longer, so that a restarted broker is not overrun. `tls` may hold the client's
        certificate; the password is empty for brokers that authenticate by it.

        At most `at_once` orders run beside each other, and at most `per_minute` begin in any 60 s [0: no limit]; a
        further one gets no receipt, and the plane asks another client. A task that takes longer than `timeout_s` is
        cancelled, and its result is that error. Raises `ValueError` for a bad URL or limit."""
        if at_once < 1 or per_minute < 0 or (timeout_s is not None and timeout_s <= 0):
            raise ValueError(f"invalid limits: at_once {at_once}, per_minute {per_minute}, timeout_s {timeout_s}")
        found = brokers(url)
        self.name, self.epoch = name, epoch or now_ms()
        self.connected = False
        self.done = 0
        """Orders that ended so far, with a result of any kind."""
        self.passed_over = 0
        """Orders above the limits, or during a drain, that got no receipt."""
        self._at_once, self._per_minute, self._timeout_s = at_once, per_minute, timeout_s
        self._begun: deque[float] = deque(maxlen=per_minute)
        self._draining = False
        self._places = random.sample(found.places, len(found.places))
        """The brokers' addresses in the order in which this client tries them."""
        self._tls = (tls or ssl.create_default_context()) if found.tls else None
        self._attributes = {key: list(values) for key, values in attributes.items()}
        self._version = 1
        self._password, self._spread_s = password, spread_s
        self._tasks: dict[str, Do] = {}
        self._results: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        """For each run: the time of its result, and the message."""
        self._result_s = RESULT_S
        self._cut_at = 0.0
        """When the last connection ended, by the steady clock."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._connection: Connection | None = None
        self._lost: asyncio.Event | None = None
        self._end: BaseException | None = None
        self._beat_ms = BEAT_MS
        self._beating: asyncio.TimerHandle | None = None
        self._kept_at = 0.0
        self._beats = 0

    def task(self, kind: str) -> Callable[[Do], Do]:
        """Register the decorated function for orders of this kind; `*` stands for all other kinds."""

        def add(do: Do) -> Do:
            self._tasks[kind] = do
            return do

        return add

    def change(self, attributes: Mapping[str, Sequence[str]]) -> None:
        """Replace the attributes from now on."""
        self._attributes = {key: list(values) for key, values in attributes.items()}
        self._version += 1
        self._hello()

    async def drain(self, seconds: float) -> bool:
        """Take no further order; return once all running ones have ended and the broker has their results, or after
        these seconds. Returns whether all did. `run` goes on until it is cancelled."""
        self._draining = True
        if self._beating is not None:
            self._beating.cancel()
        self._send("bye", {"epoch": self.epoch}, 1)
        until = time.monotonic() + seconds
        while self._running or self._unsent:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(DRAIN_LOOK_S)
        return True

    @property
    def _unsent(self) -> bool:
        """True: the broker may lack a result that the plane still waits for."""
        if self._connection is not None:
            return bool(self._connection.unacked)
        still = time.monotonic() - self._result_s
        return any(at >= still for at, _ in self._results.values())

    async def run(self) -> None:
        """Serve until cancelled. Raises `Superseded`, `ClientRefused`, and `BrokerRefused` for a wrong password."""
        losses, self._end = 0, None
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
        """Serve one connection, from its start to its loss."""
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
                if isinstance(error, BrokerRefused) and error.lasting:
                    self._end = error
                return
        self._connection, self.connected = made, True
        resends: list[asyncio.TimerHandle] = []
        try:
            made.subscribe(f"fleet/{VERSION}/{self.name}/down/+")
            self._hello()
            loop = asyncio.get_running_loop()
            resends = [loop.call_later(wait_s, self._resend, self._cut_at) for wait_s in RESENDS_S]
            self._beat_soon(random.random())
            await lost.wait()
        finally:
            for each in resends:
                each.cancel()
            self.connected, self._cut_at = False, time.monotonic()
            if lost.is_set():
                self._connection = None

    def _resend(self, cut_at: float) -> None:
        """After a connection was lost at this time: send what it may have lost, unless it is too old for the plane,
        which ignores a duplicate."""
        since = max(time.monotonic() - self._result_s, cut_at - DOUBTED_S)
        for run in [run for run, (at, _) in self._results.items() if at >= since]:
            self._send_result(run)

    def _hello(self) -> None:
        if self._draining:
            return
        self._send("hello", {"epoch": self.epoch, "version": self._version, "attributes": self._attributes}, 1)

    def _beat_soon(self, part: float = 1.0) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._draining:
            return
        self._beating = asyncio.get_running_loop().call_later(part * self._beat_ms / 1000, self._beat)

    def _beat(self) -> None:
        """Send a heartbeat, which keeps the broker's connection alive too; between long intervals, ping the broker."""
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
        """Handle a message of the plane. A malformed one is ignored."""
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
                Superseded(f"another process runs as client {self.name}" + (f": {text}" if text else ""))
                if what == "superseded"
                else ClientRefused(text)
            )
            if self._connection is not None:
                self._connection.close()

    def _order(self, run: str, kind: str, target: str, options: dict[str, Any]) -> None:
        """Take an order. An order with the same run is the same order, and is carried out once."""
        do = self._tasks.get(kind) or self._tasks.get("*")
        known = run in self._results or run in self._running
        if not known and not self._takes():
            self.passed_over += 1
            return
        self._send("receipt", {"run": run, "epoch": self.epoch}, 1)
        if run in self._results:
            self._send_result(run)
        elif not known:
            self._running[run] = asyncio.get_running_loop().create_task(self._do(run, do, kind, target, options))

    def _takes(self) -> bool:
        """True: another order may begin now, and it counts."""
        if self._draining or len(self._running) >= self._at_once:
            return False
        now = time.monotonic()
        if self._per_minute:
            if len(self._begun) == self._per_minute and now - self._begun[0] < 60:
                return False
            self._begun.append(now)
        return True

    async def _do(self, run: str, do: Do | None, kind: str, target: str, options: dict[str, Any]) -> None:
        said: dict[str, Any] = {"run": run, "epoch": self.epoch}
        limit: asyncio.Timeout | None = None
        try:
            if do is None:
                raise LookupError(f"this client has no task {kind!r}")
            async with asyncio.timeout(self._timeout_s) as limit:
                value = await do(target, options)
            payload = _result(said, True, "", value)
        except Failed as error:
            payload = _result(said, False, str(error), error.value)
        except Exception as error:  # an exception of a task is its result
            late = isinstance(error, TimeoutError) and limit is not None and limit.expired()
            text = f"no result within {self._timeout_s:g} s" if late else f"{type(error).__name__}: {error}"
            payload = _result(said, False, text, None)
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
        """Publish while connected. A lost message is sent again: a hello with the next connection, a result as well."""
        if self._connection is not None:
            with contextlib.suppress(MqttError):
                self._connection.publish(f"fleet/{VERSION}/{self.name}/up/{kind}", payload, quality)


_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _json(said: Any) -> bytes:
    return _encode(said).encode()


def _result(said: dict[str, Any], ok: bool, error: str, value: Any) -> bytes:
    """The message of a result. A value that JSON lacks, or that is too long, makes it a failure that says so."""
    text = error.encode(errors="replace").decode()[:ERROR_CHARS_MAX]
    try:
        payload = _json(said | {"ok": ok, "value": value} | ({"error": text} if text else {}))
    except (TypeError, ValueError, RecursionError) as wrong:
        text = text or f"the value cannot be written as JSON: {type(wrong).__name__}: {wrong}"[:ERROR_CHARS_MAX]
        return _json(said | {"ok": False, "error": text})
    if len(payload) > RESULT_BYTES_MAX:
        text = text or f"the value is too long: {len(payload):,} bytes with its message (limit {RESULT_BYTES_MAX:,})"
        return _json(said | {"ok": False, "error": text})
    return payload
