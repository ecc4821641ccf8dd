"""The interface between benches and systems that deliver messages: Muster and its peers join the same rounds through
it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

LATE_US_MAX = 1000.0  # a paced run means nothing if the generator's p99 lateness is above this


@dataclass(frozen=True)
class Load:
    """One publisher, `fanout` subscribers of one room.

    `saturated`: at most `window` publishes not yet delivered to all. `paced`: `rate` deliveries a second, open loop.
    """

    mode: Literal["saturated", "paced"]
    fanout: int
    payload_bytes: int = 200
    window: int = 256
    rate: float = 0.0
    seconds: float = 1.0
    warm_up_seconds: float = 0.3

    @property
    def name(self) -> str:
        pace = "saturated" if self.mode == "saturated" else f"paced {self.rate:,.0f}/s"
        return f"x{self.fanout:,} {pace}"


@dataclass(frozen=True)
class Latency:
    """Microseconds from the intended moment of sending."""

    p50: float
    p90: float
    p99: float
    p99_9: float
    first_p50: float  # first, middle and last subscriber of each publish
    middle_p50: float
    last_p50: float


@dataclass(frozen=True)
class Result:
    """The result of one run of a load. Deliveries are distinct, in order and checked byte by byte."""

    published: int
    deliveries: int
    lost: int
    duplicated: int
    corrupted: int
    seconds: float  # to the last delivery
    server_cpu_ns: int  # user and system of all server processes
    server_rss_bytes: int
    latency: Latency | None = None  # paced loads only
    late_p99_us: float = 0.0
    role_cpu_ns: Mapping[str, int] = field(default_factory=dict)  # the same by role, if there are several

    @property
    def void(self) -> bool:
        """The generator missed its own schedule: the run must be repeated."""
        return self.late_p99_us > LATE_US_MAX

    @property
    def per_second(self) -> float:
        return self.deliveries / self.seconds if self.seconds else 0.0

    @property
    def cpu_ns_each(self) -> float:
        return self.server_cpu_ns / self.deliveries if self.deliveries else 0.0


class Target(Protocol):
    """A system under load. `start` once, `run` many times, `stop` once, also after a failed `start`."""

    name: str

    def start(self) -> Sequence[int]:
        """Starts the server roles on the server core; returns their pids."""

    def run(self, load: Load) -> Result:
        """Warms up, runs the load from the driver core, and waits until all deliveries have come or are given up."""

    def stop(self) -> None: ...
