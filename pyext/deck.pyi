from typing import Final

import numpy as np
from numpy.typing import NDArray

BITS_MAX: Final[int]
"""Clients that a deck can tell apart: 2**26."""

class Draw:
    """What a pick gave, and why."""

    @property
    def clients(self) -> NDArray[np.uint32]:
        """Distinct, in the order drawn; fewer than wanted only if no others were open."""

    @property
    def seed(self) -> int: ...
    @property
    def round(self) -> int:
        """The round of the first `of_round` clients; the others are of the next one, which began in this draw."""

    @property
    def of_round(self) -> int: ...
    @property
    def tired(self) -> int:
        """How many were picked though tired, because no rested client was left in their round."""

    @property
    def excused(self) -> int:
        """Members that lost their turn, because the round ended while they were barred."""

class Deck:
    """Deals each member once a round. `round` and `dealt` are the whole state, and make an equal object.

    Between two clients that were members and not barred all the time, picks since any round began differ by at most 1.
    """

    def __init__(self, words: int, round: int = 0, dealt: NDArray[np.uint64] | None = None) -> None:
        """For the clients 0 to 64 x words - 1. ValueError beyond `BITS_MAX`."""

    @property
    def round(self) -> int: ...
    @property
    def dealt(self) -> NDArray[np.uint64]:
        """Those that had their turn in this round, present or not."""

    def grow(self, words: int) -> None:
        """Room for more clients. `dealt` is another array afterwards."""

    def forget(self, clients: NDArray[np.uint32]) -> None:
        """Owes these a turn in this round: their numbers now belong to other clients."""

    def pick(
        self,
        wanted: int,
        seed: int,
        members: NDArray[np.uint64],
        rested_at: NDArray[np.int32],
        now: int,
        tired: NDArray[np.uint64] | None = None,
        barred: NDArray[np.uint64] | None = None,
    ) -> Draw:
        """Up to `wanted` of `members`, those of heavier weight more likely first.

        First those whom the round owes a turn, the `tired` last; then the next round begins. `barred` are never picked;
        they keep their turn until the round ends. The same state and arguments give the same clients. `rested_at` and
        `now` are those of `muster_server.pyext.weights.Weights`. ValueError if sizes do not match.
        """
