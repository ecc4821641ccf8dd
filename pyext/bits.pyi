import numpy as np
from numpy.typing import NDArray

def read(portable: bytes, out: NDArray[np.uint64]) -> None:
    """Sets `out` to the numbers of a roaring bitmap in its portable form (`pyroaring.BitMap.serialize`).

    ValueError for other or cut bytes, and for a number that `out` has no bit for; `out` is undefined then.
    """

def write(numbers: NDArray[np.uint32], out: NDArray[np.uint64]) -> None:
    """Sets `out` to exactly `numbers`. ValueError for one that `out` has no bit for; `out` is unchanged then."""

def count(words: NDArray[np.uint64]) -> int:
    """How many bits are set."""

def numbers(words: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The set bits, ascending."""
