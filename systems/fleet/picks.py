"""Picks of clients by name: one deck for each selector in use, the weights of all clients, and the busy ones.

Owns decks, weights, and how many runs each client has in flight. It must not know tasks, deadlines or a clock: the minute
comes in. One process at a time must own a selector's picks; the caller sees to that.
"""

from array import array
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from muster_server.pyext import bits
from muster_server.pyext.deck import Deck
from muster_server.pyext.weights import Weights, punishment
from muster_server.systems.fleet import replay
from muster_server.systems.fleet.index import Index
from muster_server.systems.fleet.selector import Selector

DECKS_MAX: Final = 1024  # selectors in use at once: 1,024 x 125 kB with a million clients
IN_FLIGHT_MAX: Final = 255  # of one client: a byte counts them


class Pick(msgspec.Struct, frozen=True):
    """What was picked and why; with the state before it, all that is needed to pick the same again."""

    clients: list[str]
    numbers: NDArray[np.uint32]
    selector: str
    """The normal form: the name of the deck."""
    seed: int
    round: int
    of_round: int
    """So many of `clients` belong to `round`, the others to the next one, which began in this pick."""
    members: int
    tired: int
    """Picked though their weight does not pay for a task, because the round had no other client left."""
    excused: int
    """Clients that lost their turn, because their round ended while they were busy."""
    punishment: float
    replay: bytes = b""
    """The state before it (`replay.py`)."""


class DeckState(msgspec.Struct, frozen=True):
    selector: str
    round: int
    dealt: bytes
    """Numbers, as a portable roaring bitmap."""


class State(msgspec.Struct, frozen=True):
    """What a fair pick needs to know of the past; written down with the index's snapshot, whose numbers it speaks of."""

    decks: list[DeckState]
    rested_at: bytes
    base: int
    minute: int


class Picks:
    """Asked with the index it was made for. The punishment is computed anew each minute, and when the averages change."""

    def __init__(self, index: Index, minute: int, *, in_flight_max: int = 1) -> None:
        if not 1 <= in_flight_max <= IN_FLIGHT_MAX:
            raise ValueError(f"in_flight_max must be 1 to {IN_FLIGHT_MAX}, not {in_flight_max}")
        self.decks_dropped = 0
        """Selectors whose round was given up because others were used later; more than `DECKS_MAX` are in use."""
        self._averages = (0.0, 0.0)
        self._cost: float | None = None
        """None: must be computed anew, together with `_tired`."""
        self._index = index
        self._in_flight_max = in_flight_max
        self._decks: dict[str, Deck] = {}
        self._weights = Weights(index.words * 64, minute)
        self._words = index.words
        self._members = np.zeros(self._words, dtype=np.uint64)
        self._tired = np.zeros(self._words, dtype=np.uint64)
        self._busy = np.zeros(self._words, dtype=np.uint64)
        self._in_flight = np.zeros(self._words * 64, dtype=np.uint8)
        self._picked = np.zeros(self._words * 64, dtype=np.uint32)

    @classmethod
    def restored(cls, index: Index, state: State, *, in_flight_max: int = 1) -> "Picks":
        """As of a state, with no client busy. Raises ValueError for numbers that the index does not have."""
        picks = cls(index, state.minute, in_flight_max=in_flight_max)
        rested_at = np.frombuffer(state.rested_at, dtype=np.int32)
        picks._grow((len(rested_at) + 63) // 64)  # it had room for more than the index has numbers
        picks._weights = Weights(picks._words * 64, state.minute, rested_at, state.base)
        for deck in state.decks:
            dealt = np.zeros(picks._words, dtype=np.uint64)
            bits.read(deck.dealt, dealt)
            picks._decks[deck.selector] = Deck(picks._words, deck.round, dealt)
        return picks

    def state(self) -> State:
        decks = [
            DeckState(name, deck.round, BitMap(array("I", bits.numbers(deck.dealt).tobytes())).serialize())
            for name, deck in self._decks.items()
        ]
        return State(decks, self._weights.rested_at.tobytes(), self._weights.base, self._weights.minute)

    @property
    def punishment(self) -> float:
        """What a task takes now, in thousandths of a weight."""
        if self._cost is None:
            self._cost = punishment(self._index.online, *self._averages)
            self._weights.tired(min(1.0, self._cost / 1000), self._tired)
        return self._cost

    def set_averages(self, picked_per_task: float, tasks_per_minute: float) -> None:
        """The two averages, from the scheduler (`wheel.Averages`). ValueError for negative ones, with the next pick."""
        self._averages = (picked_per_task, tasks_per_minute)
        self._cost = None

    def weight(self, client: str) -> float | None:
        number = self._index.number(client)
        return None if number is None else self._weights.of(number) if number < self._words * 64 else 1.0

    def in_flight(self, client: str) -> int:
        """Runs that a client has in flight."""
        number = self._index.number(client)
        return 0 if number is None or number >= self._words * 64 else int(self._in_flight[number])

    def picked(self, numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """How often each was picked, through any selector."""
        self._grow()
        return self._picked[numbers]

    def weights(self, numbers: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Those of these clients."""
        self._grow()
        whole = np.empty(self._words * 64, dtype=np.float32)
        self._weights.read(whole)
        return whole[numbers]

    def owed(self, selector: Selector) -> tuple[int, int]:
        """The round of a selector's deck, and how many of its members it still owes a turn."""
        self._grow()
        self._index.members(selector, self._members)
        deck = self._decks.get(str(selector))
        if deck is None:
            return 0, bits.count(self._members)
        deck.grow(self._words)
        return deck.round, bits.count(self._members & ~deck.dealt)

    @property
    def averages(self) -> tuple[float, float]:
        """As `set_averages` got them."""
        return self._averages

    def advance(self, minute: int) -> None:
        """Lets minutes pass; each gives 0.001 of a weight back."""
        if minute > self._weights.minute:
            self._weights.advance(minute)
            self._cost = None

    def pick(self, selector: Selector, wanted: int, seed: int, *, without: NDArray[np.uint32] | None = None) -> Pick:
        """Picks clients, punishes them, and counts a run in flight for each. `without` are passed over, as are the busy."""
        self._grow()
        name, cost = str(selector), self.punishment
        self._index.members(selector, self._members)
        barred = self._busy
        if without is not None and len(without):
            barred = np.zeros(self._words, dtype=np.uint64)
            bits.write(without, barred)
            barred |= self._busy
        deck = self._deck(name)
        before = replay.kept(
            wanted, deck, self._members, self._tired, barred, self._weights.rested_at, self._weights.now
        )
        draw = deck.pick(wanted, seed, self._members, self._weights.rested_at, self._weights.now, self._tired, barred)
        self._give(draw.clients, cost)
        names = [self._index.name(number) for number in draw.clients.tolist()]
        return Pick(
            names,
            draw.clients,
            name,
            seed,
            draw.round,
            draw.of_round,
            bits.count(self._members),
            draw.tired,
            draw.excused,
            cost,
            replay.packed(before, draw.clients),
        )

    def follow(self, name: str, numbers: NDArray[np.uint32], round_: int, of_round: int, cost: float) -> None:
        """Another owner picked: these had their turn in the deck `name`, are punished by `cost` and busy."""
        self._grow()
        deck = self._deck(name)
        dealt = deck.dealt.copy()
        last = round_ + (of_round < len(numbers))
        if last >= deck.round:
            turned = numbers[of_round:] if of_round < len(numbers) else numbers
            if last > deck.round:
                dealt[:] = 0
            marked = np.zeros(self._words, dtype=np.uint64)
            bits.write(turned, marked)
            self._decks[name] = Deck(self._words, last, dealt | marked)
        self._give(numbers, cost)

    def _give(self, numbers: NDArray[np.uint32], cost: float) -> None:
        """A task to each: punished, one more in flight, one more picked."""
        self._weights.punish(numbers, cost)
        self._weights.mark_tired(numbers, min(1.0, cost / 1000), self._tired)
        self._picked[numbers] += 1
        self.occupy(numbers)

    def occupy(self, numbers: NDArray[np.uint32]) -> None:
        """One more run in flight of each; a pick does so itself."""
        self._grow()
        self._in_flight[numbers] += 1
        self._occupy(numbers)

    def release(self, numbers: NDArray[np.uint32]) -> None:
        """A run of each of `numbers` ended. ValueError for one that has none in flight."""
        if len(numbers) and (numbers.max() >= len(self._in_flight) or not self._in_flight[numbers].all()):
            raise ValueError("a client without a run in flight cannot be released")
        self._in_flight[numbers] -= 1
        self._occupy(numbers)

    def forget(self, number: int) -> None:
        """The number will be another client's (`Index.forget`): whole weight, and a turn in every round."""
        self._cost = None
        if number >= self._words * 64:
            return
        one = np.array([number], dtype=np.uint32)
        self._weights.restore(one)
        self._in_flight[number] = 0
        self._picked[number] = 0
        self._occupy(one)
        for deck in self._decks.values():
            deck.forget(one)

    def _deck(self, name: str) -> Deck:
        """The deck of a selector, which is now the one used last."""
        deck = self._decks.pop(name, None) or Deck(self._words)
        deck.grow(self._words)
        self._decks[name] = deck
        if len(self._decks) > DECKS_MAX:
            del self._decks[next(iter(self._decks))]
            self.decks_dropped += 1
        return deck

    def _occupy(self, numbers: NDArray[np.uint32]) -> None:
        """Sets or clears the bits of these, as their runs in flight say."""
        words, bit = numbers >> 6, np.uint64(1) << (numbers & 63).astype(np.uint64)
        full = self._in_flight[numbers] >= self._in_flight_max
        np.bitwise_or.at(self._busy, words[full], bit[full])
        np.bitwise_and.at(self._busy, words[~full], ~bit[~full])

    def _grow(self, least: int = 0) -> None:
        """Room for numbers given since, an eighth more than needed: growth copies."""
        if max(least, self._index.words) <= self._words:
            return
        words = max(least, self._index.words + self._index.words // 8)
        for name in ("_members", "_tired", "_busy"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(words - self._words, dtype=np.uint64)]))
        more = (words - self._words) * 64
        self._in_flight = np.concatenate([self._in_flight, np.zeros(more, dtype=np.uint8)])
        self._picked = np.concatenate([self._picked, np.zeros(more, dtype=np.uint32)])
        self._weights.grow(words * 64)
        self._words = words
        self._cost = None
