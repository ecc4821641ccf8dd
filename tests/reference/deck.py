"""Slow, obvious model of `pyext/deck.pyx`: sets of clients, and the draw as its head comment promises it."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@dataclass
class Random:
    state: int

    def two_below(self, bound: int) -> list[int]:
        self.state = (self.state + GAMMA) & MASK
        number = mixed(self.state)
        return [((number >> 32) * bound) >> 32, ((number & 0xFFFFFFFF) * bound) >> 32]


@dataclass
class Draw:
    round: int
    clients: list[int] = field(default_factory=list)
    of_round: int = 0
    tired: int = 0
    excused: int = 0


@dataclass
class Deck:
    """`owing` is what each client has waited for: minutes until its weight is whole, 0 if it is."""

    words: int
    round: int = 0
    dealt: set[int] = field(default_factory=set)

    def pick(
        self,
        wanted: int,
        seed: int,
        members: Set[int],
        owing: Mapping[int, int],
        tired: Set[int] = frozenset(),
        barred: Set[int] = frozenset(),
    ) -> Draw:
        draw = Draw(self.round)
        random = Random(mixed(seed ^ len(members - self.dealt - barred - tired)))
        self._deal(draw, wanted, members - self.dealt - barred, owing, tired, random)
        draw.of_round = len(draw.clients)
        before = set(draw.clients)
        if draw.of_round < wanted and members - barred - before:
            draw.excused = len(members - self.dealt)
            self.round += 1
            self.dealt = set()
            self._deal(draw, wanted, members - barred - before, owing, tired, random)
            if not before:
                draw.round, draw.of_round = self.round, len(draw.clients)
        return draw

    def _deal(
        self, draw: Draw, wanted: int, owed: Set[int], owing: Mapping[int, int], tired: Set[int], random: Random
    ) -> None:
        self._draw(draw, wanted, set(owed - tired), owing, random)
        rested = len(draw.clients)
        self._draw(draw, wanted, set(owed & tired), owing, random)
        draw.tired += len(draw.clients) - rested

    def _draw(self, draw: Draw, wanted: int, pool: set[int], owing: Mapping[int, int], random: Random) -> None:
        count = min(wanted - len(draw.clients), len(pool))
        bits = self.words * 64
        probes = 12 * count * bits < (len(pool) - count + 1) * (self.words + len(pool))
        listed = sorted(pool)
        for _ in range(count):
            found: list[int] = []
            while len(found) < 2:
                if probes:
                    found += [at for at in random.two_below(bits) if at in pool]
                else:
                    found += [listed[place] for place in random.two_below(len(listed))]
            one, other = found[:2]
            chosen = other if owing[other] < owing[one] else one
            place = listed.index(chosen)
            listed[place] = listed[-1]
            listed.pop()
            pool.remove(chosen)
            self.dealt.add(chosen)
            draw.clients.append(chosen)
