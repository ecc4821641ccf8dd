from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class Histogram:
    """Counts of values in HdrHistogram's layout, exact to `digits` significant digits.

    `lowest` and `highest` are in the unit of the values (the default suits microseconds up to an hour); a value beyond
    what the array holds is counted in its last place, so nothing measured disappears. `counts` is the whole state.
    """

    def __init__(self, lowest: int = 1, highest: int = 3_600_000_000, digits: int = 3) -> None: ...
    @property
    def lowest(self) -> int: ...
    @property
    def highest(self) -> int: ...
    @property
    def digits(self) -> int: ...
    @property
    def counts(self) -> NDArray[np.int64]: ...
    @property
    def count(self) -> int: ...
    @property
    def mean(self) -> float:
        """0.0 when empty; each value counts as the middle of its bucket."""

    @property
    def max(self) -> int:
        """The highest value equal, within the digits, to the largest recorded; 0 when empty."""

    def record(self, values: NDArray[np.uint64]) -> int:
        """Counts a contiguous batch; returns how many lay beyond the array and were counted in its last place."""

    def merge(self, other: Histogram) -> None:
        """Adds the counts of `other`. ValueError if its bounds or digits differ."""

    def clear(self) -> None: ...
    def percentiles(self, wanted: Sequence[float] | NDArray[np.float64]) -> NDArray[np.uint64]:
        """One value per percentile (0 to 100, any order); zeros when empty."""
