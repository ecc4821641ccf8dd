import numpy as np
from numpy.typing import NDArray

def merge(
    items: NDArray[np.uint64],
    scores: NDArray[np.float64],
    bounds: NDArray[np.int64],
    out_items: NDArray[np.uint64],
    out_scores: NDArray[np.float64],
) -> int:
    """The highest of several shards' tops, each ordered by falling score and, of equal scores, falling item.

    An item that two shards name while it moves comes once, with its higher score. Returns how many were written.
    """

def sums(
    items: NDArray[np.uint64],
    scores: NDArray[np.float64],
    bounds: NDArray[np.int64],
    factors: NDArray[np.float64],
    out_items: NDArray[np.uint64],
    out_scores: NDArray[np.float64],
) -> int:
    """A window from its buckets, each ordered by rising item: for each item the sum of factor x score, by rising item.

    `factors` has one number a bucket: 1 within the window, a part for a bucket that ends in it, or its decay. The output
    has room for as many items as come in. Returns how many were written.
    """

def decay(scores: NDArray[np.float64], ages: NDArray[np.float64], half_life: float, out: NDArray[np.float64]) -> None:
    """Each score x 2**(-age / half_life); ages in the unit of `half_life`. `out` may be `scores`."""

def intersect(one: NDArray[np.uint64], other: NDArray[np.uint64], out: NDArray[np.uint64]) -> int:
    """The numbers of both lists, which are rising and without doubles. Returns how many were written.

    Costs about the shorter list times the logarithm of the gaps in the longer one.
    """
