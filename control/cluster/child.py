"""One supervised process: started, watched, restarted with back-off, stopped.

Knows nothing of roles. The process reports its state on stdout, one line of JSON each; its stdin closes with the
parent.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, Protocol

import msgspec
import structlog

from muster_server.control.errors import BAD_CONFIG, ConfigError, UserError

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
HEALTHY_S: Final = 10.0
LINE_BYTES_MAX: Final = 1 << 16

State = Literal["starting", "waiting", "registered", "ready", "not_ready", "failed", "ended"]
"""`registered`: it serves, but does not know all nodes that start with it yet."""


class Backoff:
    """The pause before a restart: none before the first, then 50 ms doubling to 5 s, random by half."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._failures = 0

    def delay(self, healthy_s: float) -> float:
        """Return the pause in seconds. `healthy_s`: how long the process was ready; a long time resets the back-off."""
        if healthy_s >= HEALTHY_S:
            self._failures = 0
        self._failures += 1
        if self._failures == 1:
            return 0.0
        longest = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(self._failures - 2, 16))
        return self._random.uniform(longest / 2, longest)


class Process(Protocol):
    """A started process."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """None while it runs, then its exit code, or the negative signal."""

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """The stream of its reports, one per line."""

    def send_signal(self, signal: int) -> None:
        """Raises `ProcessLookupError` if it has ended."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""

    async def wait(self) -> int:
        """Wait for its end."""


class Child:
    """A process under supervision. `start` is called for each start; it may raise `OSError` and `UserError`."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Process]],
        changed: Callable[[], None],
        log: structlog.typing.FilteringBoundLogger,
        backoff: Backoff,
        *,
        again_s: float | None = None,
    ) -> None:
        """`again_s`: a process that refuses to start is retried after this many seconds; None: it is not."""
        self.name, self._again_s = name, again_s
        self.state: State = "starting"
        self.error: str | None = None
        self.why = ""
        """The reason of its last end before it was ready; cleared when it is ready."""
        self.epoch = 0
        """The epoch that the process reported; 0 if it has none."""
        self.restarts = 0
        self.served = False
        """It was ready once, in this process or an earlier one."""
        self._told: str | None = None
        """The last logged reason of a refusal to start, so that each is logged once."""
        self._spoke = False
        """The process has reported since its start. Before that, a signal could end it."""
        self.begun = asyncio.Event()
        """Set when its first start is over: it serves, waits for something, or has ended."""
        self._start, self._changed, self._backoff = start, changed, backoff
        self._log = log.bind(child=name)
        self._process: Process | None = None
        self._ready_at: float | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id; 0 between two processes."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    async def run(self) -> None:
        """Keep the process running until `stop`, or until it reports that a restart would be wrong."""
        while not self._stopping.is_set():
            code = None
            try:
                code = await self._once()
            except ConfigError as error:  # what it needs is not there
                code, self.error = BAD_CONFIG, str(error)
            except (OSError, UserError) as error:  # a full disk or too many processes: the cause may pass
                self.error = str(error)
                self._set("failed")
            if code == BAD_CONFIG:
                self.begun.set()
                await self._refused()
            if self._stopping.is_set():
                break
            healthy = 0.0 if self._ready_at is None else time.monotonic() - self._ready_at
            if self._ready_at is None:
                self.why = self.error or self.why or f"it ended with code {code}; see its log"
            refused = code == BAD_CONFIG
            delay = 0.0 if refused else self._backoff.delay(healthy)
            self.begun.set()
            if not refused:
                self._log.warning("ended by itself", code=code, error=self.error, restart_in_s=round(delay, 3))
            if self.state != "failed":
                self._set("starting")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            self.restarts += 1
        self._set("ended")

    async def _refused(self) -> None:
        """Wait after a refusal to start, until `stop` or the next try."""
        self._set("failed")
        if self._again_s is None:
            self._log.error("ended permanently", error=self.error)
        elif self.error != self._told:
            self._log.error("cannot start; will be retried", error=self.error, every_s=self._again_s)
        self._told = self.error
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._again_s)

    async def stop(self, deadline_s: float) -> None:
        """Tell the process to end, and kill it after `deadline_s` seconds."""
        self._stopping.set()
        self.begun.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), deadline_s)
        except TimeoutError:
            self._log.warning("did not end in time, killed", seconds=deadline_s)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def hang_up(self) -> None:
        """Send SIGHUP, because there is a new spec. A process that has not reported yet will read the new one anyway."""
        if self._spoke and self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)

    async def _once(self) -> int:
        self._ready_at, self._spoke = None, False
        self._process = process = await self._start()
        self._changed()
        if self._stopping.is_set():  # stop was called during the start
            process.terminate()
        assert process.stdout is not None
        async for line in process.stdout:
            self._heard(line)
        return await process.wait()

    def _heard(self, line: bytes) -> None:
        try:
            said: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            state = msgspec.convert(said.get("state"), State)
        except msgspec.MsgspecError:
            self._log.warning("reported an unknown state", line=line[:200].decode(errors="replace"))
            return
        self._spoke = True
        if state == "ready" and self._ready_at is None:
            self._ready_at, self.served = time.monotonic(), True
        self.error = said.get("error")
        self.why = "" if state == "ready" else self.error or self.why
        self.epoch = said.get("epoch", self.epoch)
        self._set(state)

    def _set(self, state: State) -> None:
        self.state = state
        if state != "starting":
            self.begun.set()
        self._changed()
