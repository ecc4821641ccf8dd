from typing import Final

import numpy as np
from numpy.typing import NDArray

PUNISHMENT_MAX: Final[float]
"""A task takes at most a whole weight: 0.001 x 1,000."""

CAPACITY_MAX: Final[int]
"""Clients: 2**26, as in a deck."""

def punishment(online: int, picked_per_task: float, tasks_per_minute: float) -> float:
    """online / (picked_per_task x tasks_per_minute): a client's weight is whole again after a round of all clients.

    At most `PUNISHMENT_MAX`, which is also the answer for averages of 0: a round that never ends. 0 if no client is online.
    ValueError for a negative number or NaN.
    """

class Weights:
    """Weights of clients 0 to capacity - 1 (rounded up to whole words of 64), all 1 at first.

    `rested_at`, `base` and `minute` are the whole state, and make an equal object. Minutes are whole and count from any
    moment; an earlier minute than the last is taken as the last.
    """

    def __init__(
        self, capacity: int, minute: int, rested_at: NDArray[np.int32] | None = None, base: int | None = None
    ) -> None: ...
    @property
    def rested_at(self) -> NDArray[np.int32]:
        """When each weight is 1 again, in thousandths of a minute since `base`; earlier than `now` if it is."""

    @property
    def base(self) -> int: ...
    @property
    def minute(self) -> int: ...
    @property
    def now(self) -> int:
        """`minute` in the unit of `rested_at`."""

    def advance(self, minute: int) -> None:
        """Lets minutes pass: each gives 0.001 back. Costs the same for any number of clients."""

    def grow(self, capacity: int) -> None:
        """Room for more clients, of weight 1. `rested_at` is another array afterwards."""

    def punish(self, clients: NDArray[np.uint32], punishment: float) -> None:
        """A task for each of `clients`: takes 0.001 x punishment, down to 0. ValueError beyond the capacity."""

    def restore(self, clients: NDArray[np.uint32]) -> None:
        """Weight 1, for numbers that now belong to other clients."""

    def read(self, out: NDArray[np.float32]) -> None:
        """The weights of the first `len(out)` clients."""

    def of(self, client: int) -> float: ...
    def tired(self, weight: float, out: NDArray[np.uint64]) -> int:
        """Sets the bit of each client whose weight is below `weight`; 64 clients a word. Returns how many are set."""

    def mark_tired(self, clients: NDArray[np.uint32], weight: float, out: NDArray[np.uint64]) -> None:
        """Sets the bits of those of `clients` whose weight is below `weight`, and clears none: after a task."""
