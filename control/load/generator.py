"""The interface of a system for `muster load`: a generator of its requests or messages.

Owns the shape. A generator knows the protocol of its system; it knows nothing of tables, reports and other hosts.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from muster_server.pyext.histogram import Histogram

LATENCY_MAX_US: Final = 3_600_000_000

Micros = NDArray[np.uint64]
NONE: Final[Micros] = np.zeros(0, dtype=np.uint64)
"""No latencies."""


def histogram() -> Histogram:
    """An empty histogram of microseconds up to an hour, with three digits."""
    return Histogram(1, LATENCY_MAX_US, 3)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run that one host drives: host `index` of `of`, and the name of the run."""

    run: str
    index: int = 0
    of: int = 1

    def part(self, whole: int) -> int:
        """This host's part of a number, so that all parts together are that number."""
        return whole * (self.index + 1) // self.of - whole * self.index // self.of

    def rate(self, whole: float) -> float:
        """This host's part of a rate."""
        return whole / self.of


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one generator. Counts are since the start; latencies, in microseconds, since the last slice."""

    counts: Mapping[str, int]
    latencies: Micros = NONE
    """From the time at which a message or request fell due."""
    late: Micros = NONE
    """How late the generator itself looked at what fell due."""
    over: bool = False
    """All of the schedule was sent."""
    complete: bool = False
    """Nothing is on its way any more."""


class Generator(Protocol):
    """A load of one system. `open`, then `advance` again and again, then `close`."""

    @property
    def sent(self) -> str:
        """The count of what was sent."""

    @property
    def done(self) -> str:
        """The count of what came back or arrived: its latencies are measured."""

    @property
    def wrong(self) -> tuple[str, ...]:
        """Counts that are 0 in a faultless run."""

    async def open(self) -> str:
        """Connect; return one line that says what is connected. Raises `UserError`."""

    async def advance(self, seconds: float) -> Slice:
        """Send what falls due within this time, and return what happened since the last call."""

    async def close(self) -> None:
        """Leave."""


class Settings(Protocol):
    """The settings of one system's load: a struct that crosses to the other hosts of a run, and makes a generator."""

    @property
    def for_s(self) -> float:
        """Length of the schedule in seconds."""

    def generator(self, share: Share) -> Generator:
        """The generator of one host."""
