"""How far each replica is behind the primary, and which of them may serve a read.

The primary's position is sampled from time to time. A replica's lag is the age of the oldest sample that it has not applied,
so it needs no clock but this process's. A replica that has applied no sample has an unknown lag. Owns samples, states and
counts. It must not know a connection or a thread.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..errors import Invalid
from .positions import Positions

SAMPLES_MAX: Final = 10_000
UNKNOWN: Final = "primary"
"""The position after a commit that could not be asked for: reads that have seen it go to the primary."""
NEW: Final = "not asked yet"


@dataclass(slots=True)
class Figures:
    """Counts of one `Replicas` in one process since its start."""

    writes: int = 0
    """Sessions of `writing`."""
    replica_reads: int = 0
    """Sessions of `reading` on a replica."""
    primary_reads: int = 0
    """Sessions of `reading` on the primary. The next four are the reasons."""
    behind: int = 0
    """No replica had the position in time."""
    out: int = 0
    """All replicas were left out, or there is none."""
    unknown: int = 0
    """The position of a commit could not be asked for."""
    malformed: int = 0
    """A position that cannot be one of this database, as a cookie that was changed."""
    failed: int = 0
    """Replicas that did not answer when a session chose them; the session took another server."""


@dataclass(frozen=True, slots=True)
class State:
    """One replica, as last seen. `why`: the reason why it is left out; empty: it serves reads. `lag_s`: None: unknown."""

    name: str
    why: str = NEW
    lag_s: float | None = None
    position: str = ""


class Standings:
    """The replicas of one primary."""

    def __init__(self, positions: Positions, names: Sequence[str], lag_s_max: float, look_s: float) -> None:
        """Raises `Invalid`."""
        if not look_s > 0:
            raise Invalid(f"invalid look_s {look_s} (expected more than 0 seconds)")
        if not lag_s_max > 0 or not math.isfinite(lag_s_max):
            raise Invalid(f"invalid lag_s_max {lag_s_max} (expected more than 0 seconds)")
        if names and positions.name == "sqlite":
            raise Invalid("a SQLite database is one file and has no replicas")
        self.positions = positions
        self.states = [State(name) for name in names]
        self.figures = Figures()
        self._lag_s_max = lag_s_max
        self._samples: deque[tuple[float, str]] = deque(maxlen=min(SAMPLES_MAX, math.ceil(lag_s_max / look_s) + 2))
        self._turn = 0

    def sampled(self, position: str, now: float) -> None:
        """The primary is at this position."""
        if position and (not self._samples or self._samples[-1][1] != position):
            self._samples.append((now, position))

    def answered(self, index: int, position: str | None, now: float) -> None:
        """A replica has applied this position; None: the server is no replica."""
        if position is None:
            self.failed(index, "no replica of another server")
            return
        lag_s = self._lag_s(position, now)
        if lag_s is None:
            why = "unknown lag: none of the positions of the primary is applied yet"
        elif lag_s > self._lag_s_max:
            why = f"lags by more than {self._lag_s_max:g} s"
        else:
            why = ""
        self.states[index] = replace(self.states[index], why=why, lag_s=lag_s, position=position)

    def failed(self, index: int, why: str) -> None:
        """A replica did not answer; it is left out until it does."""
        self.states[index] = replace(self.states[index], why=why, lag_s=None, position="")

    def _lag_s(self, position: str, now: float) -> float | None:
        lacks = (index for index, (_, each) in enumerate(self._samples) if not self.positions.includes(position, each))
        first = next(lacks, len(self._samples))
        if not first:
            return None
        return 0.0 if first == len(self._samples) else now - self._samples[first][0]

    def order(self, seen: str) -> list[int]:
        """Return the replicas that a read tries, best first; none: it takes the primary. Counts the reason."""
        figures = self.figures
        if seen == UNKNOWN:
            figures.unknown += 1
            return []
        if seen and not self.positions.is_position(seen):
            figures.malformed += 1
            return []
        usable = [index for index, state in enumerate(self.states) if not state.why]
        if not usable:
            figures.out += 1
            return []
        self._turn += 1
        turned = [usable[(self._turn + place) % len(usable)] for place in range(len(usable))]
        if not seen:
            return turned
        return sorted(turned, key=lambda index: not self.positions.includes(self.states[index].position, seen))
