"""Picks of clients by name: one deck for each selector in use, the weights of all clients, and the busy ones.

Owns decks, weights, and the number of runs of each client in flight. It must not know tasks, deadlines or a clock: the
minute comes in. One process at a time must own a selector's picks; the caller ensures that.
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

DECKS_MAX: Final = 1024  # limit of selectors in use: 1,024 x 125 kB with a million clients
IN_FLIGHT_MAX: Final = 255  # limit of one client: a byte counts them


class Pick(msgspec.Struct, frozen=True):
    """The result of a pick and its reasons; with the state before it, enough to repeat the pick."""

    clients: list[str]
    numbers: NDArray[np.uint32]
    selector: str
    """The normal form: the name of the deck."""
    seed: int
    round: int
    of_round: int
    """This many of `clients` belong to `round`, the others to the next round, which began in this pick."""
    members: int
    tired: int
    """Number of clients that were picked although their weight is too low for a task, because the round had no others
    left."""
    excused: int
    """Number of clients that lost their turn, because their round ended while they were busy."""
    punishment: float
    replay: bytes = b""
    """The state before the pick (`replay.py`)."""


class DeckState(msgspec.Struct, frozen=True):
    selector: str
    round: int
    dealt: bytes
    """Numbers, as a portable roaring bitmap."""


class State(msgspec.Struct, frozen=True):
    """What a fair pick needs to know of the past; stored with the snapshot of the index, to which its numbers refer."""

    decks: list[DeckState]
    rested_at: bytes
    base: int
    minute: int


class Picks:
    """Used with the index it was made for. The penalty is computed again each minute, and when the averages change."""

    def __init__(self, index: Index, minute: int, *, in_flight_max: int = 1) -> None:
        if not 1 <= in_flight_max <= IN_FLIGHT_MAX:
            raise ValueError(f"invalid in_flight_max {in_flight_max} (expected 1 to {IN_FLIGHT_MAX})")
        self.decks_dropped = 0
        """Selectors whose round was dropped because more than `DECKS_MAX` were in use, and others were used later."""
        self._averages = (0.0, 0.0)
        self._cost: float | None = None
        """None: must be computed again, together with `_tired`."""
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
        """Make the picks of a state, with no client busy. Raises ValueError for numbers that the index does not have."""
        picks = cls(index, state.minute, in_flight_max=in_flight_max)
        rested_at = np.frombuffer(state.rested_at, dtype=np.int32)
        picks._grow((len(rested_at) + 63) // 64)  # the state had room for more numbers than the index has
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
        """The present cost of a task, in thousandths of a weight."""
        if self._cost is None:
            self._cost = punishment(self._index.online, *self._averages)
            self._weights.tired(min(1.0, self._cost / 1000), self._tired)
        return self._cost

    def set_averages(self, picked_per_task: float, tasks_per_minute: float) -> None:
        """Set the two averages, from the scheduler (`wheel.Averages`). The next pick raises ValueError for negative
        ones."""
        self._averages = (picked_per_task, tasks_per_minute)
        self._cost = None

    def weight(self, client: str) -> float | None:
        number = self._index.number(client)
        return None if number is None else self._weights.of(number) if number < self._words * 64 else 1.0

    def in_flight(self, client: str) -> int:
        """The number of a client's runs in flight."""
        number = self._index.number(client)
        return 0 if number is None or number >= self._words * 64 else int(self._in_flight[number])

    def picked(self, numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The number of picks of each client, through any selector."""
        self._grow()
        return self._picked[numbers]

    def weights(self, numbers: NDArray[np.uint32]) -> NDArray[np.float32]:
        """The weights of these clients."""
        self._grow()
        whole = np.empty(self._words * 64, dtype=np.float32)
        self._weights.read(whole)
        return whole[numbers]

    def owed(self, selector: Selector) -> tuple[int, int]:
        """The round of a selector's deck, and the number of its members that still wait for their turn."""
        self._grow()
        self._index.members(selector, self._members)
        deck = self._decks.get(str(selector))
        if deck is None:
            return 0, bits.count(self._members)
        deck.grow(self._words)
        return deck.round, bits.count(self._members & ~deck.dealt)

    @property
    def averages(self) -> tuple[float, float]:
        """The averages that `set_averages` set."""
        return self._averages

    def advance(self, minute: int) -> None:
        """Let minutes pass; each returns 0.001 of a weight."""
        if minute > self._weights.minute:
            self._weights.advance(minute)
            self._cost = None

    def pick(self, selector: Selector, wanted: int, seed: int, *, without: NDArray[np.uint32] | None = None) -> Pick:
        """Pick clients, charge them the cost, and count a run in flight for each. Clients in `without`, and busy ones,
        are skipped."""
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
        """Apply another owner's pick: these clients had their turn in the deck `name`, are charged `cost` and are busy."""
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
        """Give a task to each: charge the cost, count one more run in flight and one more pick."""
        self._weights.punish(numbers, cost)
        self._weights.mark_tired(numbers, min(1.0, cost / 1000), self._tired)
        self._picked[numbers] += 1
        self.occupy(numbers)

    def occupy(self, numbers: NDArray[np.uint32]) -> None:
        """Count one more run in flight of each; a pick does so itself."""
        self._grow()
        self._in_flight[numbers] += 1
        self._occupy(numbers)

    def release(self, numbers: NDArray[np.uint32]) -> None:
        """Count the end of a run of each of `numbers`. Raises ValueError for one without a run in flight."""
        if len(numbers) and (numbers.max() >= len(self._in_flight) or not self._in_flight[numbers].all()):
            raise ValueError("a client without a run in flight cannot be released")
        self._in_flight[numbers] -= 1
        self._occupy(numbers)

    def forget(self, number: int) -> None:
        """The number will belong to another client (`Index.forget`): full weight, and a turn in every round."""
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
        """The deck of a selector, which becomes the most recently used one."""
        deck = self._decks.pop(name, None) or Deck(self._words)
        deck.grow(self._words)
        self._decks[name] = deck
        if len(self._decks) > DECKS_MAX:
            del self._decks[next(iter(self._decks))]
            self.decks_dropped += 1
        return deck

    def _occupy(self, numbers: NDArray[np.uint32]) -> None:
        """Set or clear the busy bits of these, by their runs in flight."""
        words, bit = numbers >> 6, np.uint64(1) << (numbers & 63).astype(np.uint64)
        full = self._in_flight[numbers] >= self._in_flight_max
        np.bitwise_or.at(self._busy, words[full], bit[full])
        np.bitwise_and.at(self._busy, words[~full], ~bit[~full])

    def _grow(self, least: int = 0) -> None:
        """Make room for numbers assigned since, an eighth more than needed, because growing copies."""
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
