"""Results of the probes, path by path: latency, loss, availability, and which paths fail (ROOM-13, ROOM-21).

A path is a proxy, a broker and a gateway. Each probe is one sample of the paths to all gateways: seen in time, or
failed. Knows no clock and no network; its memory is `window` samples per path and the probes of `timeout_ms`.
"""

import heapq
import math
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from muster_server.systems.probes.hops import HopTimes
from muster_server.systems.probes.system import Probes

GRACE_S: Final = 2.0
"""Seconds for which a new path, or one whose room moved, cannot fail, unless its first probe is seen earlier."""


class Path(NamedTuple):
    """A path, by the numbers of its nodes."""

    proxy: int
    broker: int
    gateway: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a path, for all readers. `loss` and the latencies cover the last samples, `availability` all."""

    sent: int
    seen: int
    loss: float
    availability: float
    last_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    age_s: float | None
    """Seconds since the last sample; None before the first."""
    lasts_s: float | None
    """Seconds for which it has been failing."""
    failures: int
    """Number of times that it began to fail."""


class Figures(Measured, frozen=True, kw_only=True):
    """The account of one path."""

    path: Path
    failing: bool
    """The alarm: raised by `failures` failed probes in a row, cleared by `successes` seen ones in a row."""
    hops: list[HopTimes] = []
    """Recent times of the broker and the gateway for a request, if known."""


class Account:
    """The samples of one path."""

    __slots__ = (
        "_at",
        "_failed_row",
        "_lost",
        "_seen_row",
        "_slowest",
        "_window",
        "failing_since",
        "failures",
        "last",
        "seen",
        "sent",
        "since",
    )

    def __init__(self, began: float, window: int) -> None:
        self.since = began + GRACE_S
        """Unseen probes sent before this moment do not count."""
        self.sent = self.seen = self.failures = 0
        self.last: float | None = None
        self.failing_since: float | None = None
        self._window = array("f", [0.0]) * window  # ms, negative: failed
        self._at = self._failed_row = self._seen_row = 0
        self._lost, self._slowest = 0, 0.0
        """Sums over the window."""

    def keep(self, window: int) -> None:
        """Keep this many samples from now on; older samples stay."""
        had = min(self._at, len(self._window))
        last = [self._window[at % len(self._window)] for at in range(self._at - had, self._at)][-window:]
        self._window = array("f", [*last, *[0.0] * (window - len(last))])
        self._at = len(last)
        self._lost, self._slowest = sum(ms < 0 for ms in last), max(self._window)

    def take(self, now: float, ms: float | None, limits: Probes) -> bool:
        """Take one sample; without `ms` it failed. Returns whether it raised or cleared the alarm."""
        self._keep(-1.0 if ms is None else ms)
        self._at, self.sent, self.last = self._at + 1, self.sent + 1, now
        if ms is None:
            self._failed_row, self._seen_row = self._failed_row + 1, 0
            if self.failing_since is None and self._failed_row >= limits.failures:
                self.failing_since, self.failures = now, self.failures + 1
                return True
        else:
            self.seen += 1
            self._failed_row, self._seen_row = 0, self._seen_row + 1
            if self.failing_since is not None and self._seen_row >= limits.successes:
                self.failing_since = None
                return True
        return False

    def _keep(self, ms: float) -> None:
        at = self._at % len(self._window)
        before, self._window[at] = self._window[at], ms
        self._lost += (ms < 0) - (before < 0)
        if self._window[at] >= self._slowest:
            self._slowest = self._window[at]
        elif before == self._slowest:
            self._slowest = max(self._window)

    @property
    def loss(self) -> float:
        """Over the last samples."""
        return self._lost / min(self._at, len(self._window)) if self._at else 0.0

    @property
    def availability(self) -> float:
        """Over all samples."""
        return self.seen / self.sent if self.sent else 1.0

    def badness(self) -> tuple[bool, float, float, float]:
        """Sort key: higher is worse. Computed without the window."""
        return (self.failing_since is not None, self.loss, -self.availability, max(0.0, self._slowest))

    def figures(self, path: Path, now: float) -> Figures:
        """The whole report."""
        samples = self._window[: min(self._at, len(self._window))]
        times = sorted(ms for ms in samples if ms >= 0)
        last = self._window[(self._at - 1) % len(self._window)] if self._at else -1.0
        return Figures(
            path=path,
            sent=self.sent,
            seen=self.seen,
            loss=self.loss,
            availability=self.availability,
            last_ms=None if last < 0 else round(last, 3),
            p50_ms=_rank(times, 0.5),
            p99_ms=_rank(times, 0.99),
            age_s=None if self.last is None else now - self.last,
            failing=self.failing_since is not None,
            lasts_s=None if self.failing_since is None else now - self.failing_since,
            failures=self.failures,
        )


def _rank(times: list[float], share: float) -> float | None:
    return round(times[max(0, math.ceil(share * len(times)) - 1)], 3) if times else None


@dataclass(slots=True)
class _Probe:
    proxy: int
    broker: int
    at: float
    waits: set[int]
    """Gateways whose members have not seen the probe."""


class Ledger:
    """All paths. `told` is called for each alarm that is raised (True) or cleared."""

    def __init__(self, limits: Probes, told: Callable[[Figures], None] = lambda figures: None) -> None:
        self._limits, self._told = limits, told
        self._accounts: dict[Path, Account] = {}
        self._out: dict[int, _Probe] = {}
        """Unfinished probes in the order of sending."""
        self.probes = 0
        """Number of probes sent so far."""
        self.samples_seen = self.samples_failed = self.alarms = 0

    def limit(self, limits: Probes) -> None:
        """Use these limits from now on; a failing path fails until it recovers by them."""
        self._limits = limits
        for account in self._accounts.values():
            account.keep(limits.window)

    def send(self, now: float, proxy: int, broker: int, gateways: Collection[int]) -> int:
        """Record a probe; a member at each of these gateways should receive it. Returns its number."""
        self.probes += 1
        self._out[self.probes] = _Probe(proxy, broker, now, set(gateways))
        for gateway in gateways:
            path = Path(proxy, broker, gateway)
            if path not in self._accounts:
                self._accounts[path] = Account(now, self._limits.window)
        return self.probes

    def saw(self, now: float, number: int, gateway: int, broker: int) -> None:
        """Record that the member at a gateway received it, numbered by this broker. If it is the wrong broker, the path
        failed."""
        probe = self._out.get(number)
        if probe is None or gateway not in probe.waits:
            return
        probe.waits.discard(gateway)
        self._judge(now, probe, gateway, 1000 * (now - probe.at) if broker == probe.broker else None)
        if not probe.waits:
            del self._out[number]

    def pass_time(self, now: float) -> None:
        """Fail the unseen probes whose time is over."""
        for number, probe in list(self._out.items()):
            if now - probe.at < self._limits.timeout_ms / 1000:
                return
            del self._out[number]
            for gateway in probe.waits:
                self._judge(now, probe, gateway, None)

    def keep(self, proxies: Collection[int], brokers: Collection[int], gateways: Collection[int]) -> None:
        """Forget all other paths."""
        gone = [
            path
            for path in self._accounts
            if path.proxy not in proxies or path.broker not in brokers or path.gateway not in gateways
        ]
        for path in gone:
            del self._accounts[path]

    def excuse(self, now: float, broker: int) -> None:
        """The rooms of a broker move: probes in transit do not count, and its paths may not fail at first."""
        for number in [number for number, probe in self._out.items() if probe.broker == broker]:
            del self._out[number]
        for path, account in self._accounts.items():
            if path.broker == broker:
                account.since = now + GRACE_S

    def figures(self, now: float) -> Iterator[Figures]:
        """The reports of all paths."""
        for path, account in self._accounts.items():
            yield account.figures(path, now)

    def worst(self, now: float, count: int) -> Iterator[Figures]:
        """The reports of this many paths, the worst first."""
        for path, account in heapq.nlargest(count, self._accounts.items(), key=lambda known: known[1].badness()):
            yield account.figures(path, now)

    @property
    def failing(self) -> int:
        """The number of failing paths."""
        return sum(account.failing_since is not None for account in self._accounts.values())

    def _judge(self, now: float, probe: _Probe, gateway: int, ms: float | None) -> None:
        path = Path(probe.proxy, probe.broker, gateway)
        account = self._accounts.get(path)
        if account is None:
            return  # the gateway left
        if ms is None:
            if probe.at < account.since:
                return
            self.samples_failed += 1
        else:
            account.since = min(account.since, probe.at)
            self.samples_seen += 1
        if account.take(now, ms, self._limits):
            self.alarms += ms is None
            self._told(account.figures(path, now))
