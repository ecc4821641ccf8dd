"""The state before a draw, small enough to be stored with its run, and the repetition of the draw.

Owns bytes. It must not know names, tasks or stores. It stores weights only of clients that the draw could have looked
at and whose weight was not full: all others are alike.
"""

import zlib
from array import array
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from muster_server.pyext import bits
from muster_server.pyext.deck import Deck

BYTES_MAX: Final = 65_536
"""A longer state is not stored: for example a fleet of a million with most weights in use."""
_LEVEL: Final = 1

Words = NDArray[np.uint64]


class State(msgspec.Struct, frozen=True, array_like=True):
    """Bitmaps are in the portable roaring format."""

    words: int
    round: int
    wanted: int
    now: int
    members: bytes
    dealt: bytes
    tired: bytes
    barred: bytes
    light: bytes
    """Clients whose weight is not full."""
    rest: bytes
    """Thousandths of a minute until the weight of each of these is full, four bytes each."""
    picked: bytes
    """Numbers of the picked clients, four bytes each."""


def kept(
    wanted: int,
    deck: Deck,
    members: Words,
    tired: Words,
    barred: Words,
    rested_at: NDArray[np.int32],
    now: int,
) -> State:
    """The state before a draw; `packed` fills in `picked`."""
    words = len(members)
    looked_at = members & ~barred
    if bits.count(looked_at & ~deck.dealt) >= wanted:
        looked_at = looked_at & ~deck.dealt  # the round has enough clients
    numbers = bits.numbers(looked_at)
    weights = rested_at[numbers]
    some = weights > now
    return State(
        words,
        deck.round,
        wanted,
        now,
        _bitmap(members),
        _bitmap(deck.dealt),
        _bitmap(tired & members),
        _bitmap(barred & members),
        _serialized(numbers[some]),
        (weights[some] - now).astype("<u4").tobytes(),
        b"",
    )


def packed(state: State, picked: NDArray[np.uint32]) -> bytes:
    """Encode as bytes; empty if they exceed the limit."""
    whole = msgspec.structs.replace(state, picked=picked.astype("<u4").tobytes())
    packed = zlib.compress(msgspec.msgpack.encode(whole), _LEVEL)
    return packed if len(packed) <= BYTES_MAX else b""


def again(packed: bytes, seed: int) -> bool:
    """Draw again; returns whether the result has the same clients in the same order."""
    state = msgspec.msgpack.decode(zlib.decompress(packed), type=State)
    deck = Deck(state.words, state.round, _words(state.dealt, state.words))
    rested_at = np.full(state.words * 64, state.now, dtype=np.int32)
    rested_at[bits.numbers(_words(state.light, state.words))] += np.frombuffer(state.rest, dtype="<i4")
    tired, barred = _words(state.tired, state.words), _words(state.barred, state.words)
    draw = deck.pick(state.wanted, seed, _words(state.members, state.words), rested_at, state.now, tired, barred)
    return draw.clients.astype("<u4").tobytes() == state.picked


def _bitmap(words: Words) -> bytes:
    return _serialized(bits.numbers(words))


def _serialized(numbers: NDArray[np.uint32]) -> bytes:
    """Serialize numbers. `array` is copied at once; with NumPy each number would become an object."""
    return BitMap(array("I", numbers.tobytes())).serialize()


def _words(bitmap: bytes, words: int) -> Words:
    out = np.zeros(words, dtype=np.uint64)
    bits.read(bitmap, out)
    return out
