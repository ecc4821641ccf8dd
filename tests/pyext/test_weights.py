"""Weights and punishment give the model's answers, over tasks, minutes, growth and long times."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from muster_server.pyext import bits
from muster_server.pyext.weights import CAPACITY_MAX, PUNISHMENT_MAX, Weights, punishment
from tests.reference import weights as model

CLIENTS = 70
NEAR = 1e-6  # a float32 of at most 1

punishments = st.one_of(st.sampled_from([0, 1000, 10**6]), st.integers(0, 10**6)).map(lambda n: Fraction(n, 1000))
some = st.one_of(
    st.lists(st.integers(0, CLIENTS - 1), max_size=20),
    st.tuples(st.integers(0, CLIENTS), st.integers(0, CLIENTS), st.lists(st.integers(0, CLIENTS - 1), max_size=3)).map(
        lambda parts: [*range(parts[0], parts[1]), *parts[2], *range(parts[0], parts[1])]
    ),
)


def array(clients: list[int]) -> NDArray[np.uint32]:
    return np.array(clients, dtype=np.uint32)


class Both(RuleBasedStateMachine):
    """The kernel and the model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.mine, self.theirs = Weights(CLIENTS, 29_000_000), model.Weights(CLIENTS, 29_000_000)

    @rule(clients=some, punishment=punishments)
    def punish(self, clients: list[int], punishment: Fraction) -> None:
        self.mine.punish(array(clients), float(punishment))
        self.theirs.punish(clients, punishment)

    @rule(minutes=st.integers(-3, 300))
    def advance(self, minutes: int) -> None:
        self.mine.advance(self.mine.minute + minutes)
        self.theirs.advance(self.theirs.minute + minutes)

    @rule(clients=some)
    def restore(self, clients: list[int]) -> None:
        self.mine.restore(array(clients))
        self.theirs.restore(clients)

    @rule()
    def store(self) -> None:
        self.mine = Weights(CLIENTS, self.mine.minute, self.mine.rested_at, self.mine.base)

    @rule(thousandths=st.integers(0, 1000))
    def tired(self, thousandths: int) -> None:
        out = np.full(2, 2**64 - 1, dtype=np.uint64)
        assert self.mine.tired(thousandths / 1000, out) == len(self.theirs.tired(thousandths * 1000))
        assert set(bits.numbers(out)) == self.theirs.tired(thousandths * 1000)
        marked = np.zeros(2, dtype=np.uint64)
        self.mine.mark_tired(np.arange(CLIENTS, dtype=np.uint32), thousandths / 1000, marked)
        assert np.array_equal(marked, out)

    @invariant()
    def every_weight_is_the_models(self) -> None:
        out = np.zeros(CLIENTS, dtype=np.float32)
        self.mine.read(out)
        assert np.abs(out - np.array(self.theirs.weights) / model.WHOLE).max() <= NEAR
        assert self.mine.of(7) == pytest.approx(self.theirs.weights[7] / model.WHOLE, abs=1e-12)
        assert out.min() >= 0.0
        assert out.max() <= 1.0


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5))
def test_a_punishment_is_the_sources_formula_and_never_more_than_a_whole_weight(
    online: int, picked: int, tasks: int
) -> None:
    expected = model.punishment(online, Fraction(picked), Fraction(tasks, 60))
    assert punishment(online, picked, tasks / 60) == pytest.approx(float(expected), rel=1e-12)
    assert 0.0 <= punishment(online, picked, tasks / 60) <= PUNISHMENT_MAX


def test_the_printed_case_of_the_source() -> None:
    """20,000 clients, 100 a task, 10 tasks a minute: a round of 20 minutes, in which a weight comes back."""
    cost = punishment(20_000, 100.0, 10.0)
    assert cost == 20.0
    weights = Weights(64, 0)
    weights.punish(array([3]), cost)
    assert weights.of(3) == pytest.approx(0.98)
    weights.advance(19)
    assert weights.of(3) < 1.0
    weights.advance(20)
    assert weights.of(3) == 1.0


def test_averages_of_zero_and_nobody_online_punish_within_bounds() -> None:
    assert punishment(20_000, 0.0, 0.0) == punishment(20_000, 100.0, 0.0) == PUNISHMENT_MAX
    assert punishment(0, 0.0, 0.0) == punishment(0, 100.0, 10.0) == 0.0
    assert punishment(20_000, 1.0, 1.0) == PUNISHMENT_MAX  # by the source a weight of -19
    for bad in [(-1, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, float("nan"))]:
        with pytest.raises(ValueError, match="0 or more"):
            punishment(*bad)


def test_weights_stand_years_without_a_pause() -> None:
    weights = Weights(64, 0)
    for minute in range(0, 40_000_000, 500_000):
        weights.advance(minute)
        weights.punish(array([1]), 400.0)
        assert weights.of(1) == pytest.approx(0.6)
    weights.advance(weights.minute + 100)
    assert weights.of(1) == pytest.approx(0.7)


def test_a_weight_keeps_its_debt_where_the_base_moves() -> None:
    weights = Weights(64, 0)
    weights.advance(1_048_576)
    weights.punish(array([5]), 1000.0)
    weights.advance(1_048_577)
    assert weights.base == 1_048_577
    assert weights.of(5) == pytest.approx(0.001)


def test_growth_keeps_weights_and_adds_whole_ones() -> None:
    weights = Weights(64, 0)
    weights.punish(array([63]), 500.0)
    weights.grow(65)
    assert (weights.of(63), weights.of(64), weights.of(127)) == (0.5, 1.0, 1.0)
    weights.punish(array([127]), 500.0)
    assert weights.of(127) == 0.5


def test_clients_beyond_the_capacity_and_bad_numbers_are_refused() -> None:
    weights = Weights(10, 0)
    for clients in ([64], [0, 2**32 - 1]):
        with pytest.raises(ValueError, match="beyond the capacity of 64"):
            weights.punish(array(clients), 1.0)
    assert weights.of(0) == 1.0
    for wrong in (-1.0, 1000.1, float("nan")):
        with pytest.raises(ValueError, match="punishment"):
            weights.punish(array([0]), wrong)
    with pytest.raises(ValueError):
        weights.punish(np.zeros(1, dtype=np.int64), 1.0)
    with pytest.raises(ValueError):
        weights.read(np.zeros(65, dtype=np.float32))
    with pytest.raises(ValueError):
        weights.tired(0.5, np.zeros(2, dtype=np.uint64))
    with pytest.raises(ValueError, match="beyond 1 words"):
        Weights(128, 0).mark_tired(array([64]), 0.5, np.zeros(1, dtype=np.uint64))
    with pytest.raises(ValueError):
        weights.tired(1.5, np.zeros(1, dtype=np.uint64))
    with pytest.raises(ValueError):
        weights.of(64)
    with pytest.raises(ValueError):
        Weights(CAPACITY_MAX + 1, 0)
