"""Picks are fair whatever comes and goes, and every draw is the model's, client for client."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from muster_server.pyext import bits
from muster_server.pyext.deck import BITS_MAX, Deck
from muster_server.pyext.weights import Weights
from tests.reference import deck as model

WORDS = 3
CLIENTS = WORDS * 64

some = st.sets(st.integers(0, CLIENTS - 1), max_size=60)
seeds = st.integers(0, 2**64 - 1)


def words(clients: Iterable[int], count: int = WORDS) -> NDArray[np.uint64]:
    out = np.zeros(count, dtype=np.uint64)
    bits.write(np.array(sorted(clients), dtype=np.uint32), out)
    return out


def numbers(found: NDArray[np.uint64]) -> set[int]:
    return {int(number) for number in bits.numbers(found)}


class Fleet(RuleBasedStateMachine):
    """Clients join, leave, rest, tire and are barred between picks; the deck and the model are asked alike."""

    def __init__(self) -> None:
        super().__init__()
        self.mine, self.theirs = Deck(WORDS), model.Deck(WORDS)
        self.weights = Weights(CLIENTS, 0)
        self.members: set[int] = set()
        self.barred: set[int] = set()
        self.steady: dict[int, int] = {}
        """Clients that are members and not barred since a round began, and how often each was picked since."""
        self.of_round: Counter[int] = Counter()

    @rule(clients=some)
    def join(self, clients: set[int]) -> None:
        self.members |= clients

    @rule(clients=some)
    def leave(self, clients: set[int]) -> None:
        self.members -= clients
        self._unsteady()

    @rule(clients=some)
    def bar(self, clients: set[int]) -> None:
        self.barred = clients
        self._unsteady()

    @rule(clients=some)
    def renumber(self, clients: set[int]) -> None:
        """Numbers that belong to others from now on."""
        gone = clients - self.members
        self.mine.forget(np.array(sorted(gone), dtype=np.uint32))
        self.theirs.dealt -= gone
        for client in gone:
            del self.of_round[client]

    @rule(minutes=st.integers(1, 300))
    def rest(self, minutes: int) -> None:
        self.weights.advance(self.weights.minute + minutes)

    @rule()
    def store(self) -> None:
        self.mine = Deck(WORDS, self.mine.round, self.mine.dealt)

    @rule(
        wanted=st.one_of(st.integers(0, 10), st.integers(0, CLIENTS)),
        seed=seeds,
        floor=st.sampled_from([0.0, 0.5, 0.9]),
        punishment=st.sampled_from([0.0, 20.0, 300.0]),
    )
    def pick(self, wanted: int, seed: int, floor: float, punishment: float) -> None:
        tired = np.zeros(WORDS, dtype=np.uint64)
        self.weights.tired(floor, tired)
        owing = {c: max(int(self.weights.rested_at[c]) - self.weights.now, 0) for c in range(CLIENTS)}
        before, round_before = set(self.theirs.dealt), self.mine.round
        draw = self.mine.pick(
            wanted, seed, words(self.members), self.weights.rested_at, self.weights.now, tired, words(self.barred)
        )
        expected = self.theirs.pick(wanted, seed, self.members, owing, numbers(tired), self.barred)
        clients = [int(client) for client in draw.clients]
        assert clients == expected.clients
        assert (draw.round, draw.of_round, draw.tired, draw.excused, draw.seed) == (
            expected.round,
            expected.of_round,
            expected.tired,
            expected.excused,
            seed,
        )
        assert self.mine.round == self.theirs.round in {draw.round, draw.round + 1}
        self.weights.punish(draw.clients, punishment)
        split = draw.of_round if draw.round == round_before else 0
        self._account(clients, split, before, turned=self.mine.round != round_before)
        assert len(clients) == min(wanted, len(self.members - self.barred))

    def _account(self, clients: list[int], of_round: int, before: set[int], *, turned: bool) -> None:
        """What is promised, counted without the model."""
        assert len(set(clients)) == len(clients)
        assert set(clients) <= self.members - self.barred
        self.of_round.update(clients[:of_round])
        for client in clients:
            if client in self.steady:
                self.steady[client] += 1
        if turned:
            assert self.members - self.barred <= before | set(clients[:of_round])
            assert max(self.of_round.values(), default=0) <= 1
            self.of_round = Counter(clients[of_round:])
            if not self.steady:
                self.steady = {client: int(client in clients[of_round:]) for client in self.members - self.barred}
        assert max(self.of_round.values(), default=0) <= 1

    def _unsteady(self) -> None:
        self.steady = {c: n for c, n in self.steady.items() if c in self.members and c not in self.barred}

    @invariant()
    def those_who_stay_are_picked_alike(self) -> None:
        if self.steady:
            assert max(self.steady.values()) - min(self.steady.values()) <= 1

    @invariant()
    def the_turns_are_the_models(self) -> None:
        assert numbers(self.mine.dealt) == self.theirs.dealt


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 400), seeds)
def test_rounds_of_a_still_mark_deal_each_client_once(count: int, wanted: int, seed: int) -> None:
    members = words(range(count), 47)
    deck, weights, picked = Deck(47), Weights(47 * 64, 0), np.zeros(47 * 64, dtype=np.int64)
    while deck.round < 3:
        seed = model.mixed(seed)
        draw = deck.pick(wanted, seed, members, weights.rested_at, weights.now)
        picked[draw.clients] += 1
        assert len(draw.clients) == min(wanted, count)
        assert picked[:count].max() - picked[:count].min() <= 1
        if wanted >= count:
            break


@settings(max_examples=50, deadline=None)
@given(some, some, st.integers(1, 50), seeds)
def test_a_pick_is_replayed_from_its_state_and_seed(members: set[int], dealt: set[int], wanted: int, seed: int) -> None:
    weights = Weights(CLIENTS, 0)
    weights.punish(np.array(sorted(dealt), dtype=np.uint32), 200.0)
    draws = []
    for _ in range(2):
        deck = Deck(WORDS, 7, words(dealt))
        draws.append(deck.pick(wanted, seed, words(members), weights.rested_at, weights.now))
    assert np.array_equal(draws[0].clients, draws[1].clients)
    assert draws[0].round == draws[1].round


def test_heavier_clients_come_earlier_in_a_round() -> None:
    weights = Weights(1024, 0)
    light = np.arange(0, 1000, 2, dtype=np.uint32)
    weights.punish(light, 500.0)
    deck = Deck(16)
    first = deck.pick(250, 1, words(range(1000), 16), weights.rested_at, weights.now)
    assert sum(int(client) % 2 for client in first.clients) > 150  # 3 in 4 expected, and 1 in 2 by chance


def test_tired_clients_are_picked_only_when_no_rested_one_is_left_in_the_round() -> None:
    weights = Weights(CLIENTS, 0)
    tired = words(range(90))
    deck = Deck(WORDS)
    draw = deck.pick(10, 1, words(range(100)), weights.rested_at, weights.now, tired)
    assert {int(client) for client in draw.clients} == set(range(90, 100))
    assert (draw.tired, deck.round) == (0, 0)
    draw = deck.pick(10, 2, words(range(100)), weights.rested_at, weights.now, tired)
    assert (draw.tired, len(draw.clients), deck.round) == (10, 10, 0)


def test_a_barred_client_keeps_its_turn_and_loses_it_with_the_round() -> None:
    weights = Weights(CLIENTS, 0)
    deck, members = Deck(WORDS), words(range(10))
    first = deck.pick(9, 1, members, weights.rested_at, 0, None, words([4]))
    assert 4 not in first.clients
    assert list(deck.pick(1, 2, members, weights.rested_at, 0).clients) == [4]
    deck = Deck(WORDS)
    deck.pick(9, 1, members, weights.rested_at, 0, None, words([4]))
    turned = deck.pick(1, 2, members, weights.rested_at, 0, None, words([4]))
    assert (turned.excused, turned.round, turned.of_round, len(turned.clients), deck.round) == (1, 1, 1, 1, 1)


def test_nobody_to_pick_turns_no_round() -> None:
    weights = Weights(CLIENTS, 0)
    deck = Deck(WORDS)
    for members, barred in [((), ()), ((1, 2), (1, 2))]:
        draw = deck.pick(5, 1, words(members), weights.rested_at, 0, None, words(barred))
        assert (len(draw.clients), deck.round) == (0, 0)
    assert len(deck.pick(0, 1, words([1]), weights.rested_at, 0).clients) == 0


def test_one_seed_again_and_again_costs_no_longer_search() -> None:
    """The same probes would all hit clients that were dealt by them before."""
    weights, deck = Weights(6400, 0), Deck(100)
    picked = [int(deck.pick(1, 5, words(range(6400), 100), weights.rested_at, 0).clients[0]) for _ in range(500)]
    assert len(set(picked)) == 500
    assert abs(np.mean(picked) - 3200) < 400


def test_growth_keeps_the_round() -> None:
    weights, deck = Weights(640, 0), Deck(1)
    first = deck.pick(60, 1, words(range(64), 1), weights.rested_at, 0)
    deck.grow(10)
    second = deck.pick(580, 2, words(range(640), 10), weights.rested_at, 0)
    assert not set(first.clients) & set(second.clients)
    assert deck.round == 0


def test_wrong_sizes_are_refused() -> None:
    weights, deck = Weights(CLIENTS, 0), Deck(WORDS)
    one, all_three = words([1], 1), words([1])
    for members, tired, barred in [(one, None, None), (all_three, one, None), (all_three, None, one)]:
        with pytest.raises(ValueError, match="as the deck"):
            deck.pick(1, 1, members, weights.rested_at, 0, tired, barred)
    with pytest.raises(ValueError, match="weights for"):
        deck.pick(1, 1, all_three, weights.rested_at[:64], 0)
    with pytest.raises(ValueError, match="cannot be picked"):
        deck.pick(-1, 1, all_three, weights.rested_at, 0)
    for count in (0, BITS_MAX // 64 + 1):
        with pytest.raises(ValueError, match="a deck has"):
            Deck(count)
