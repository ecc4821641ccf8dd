"""Lags of replicas by samples, in virtual time, and the order in which replicas are tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.database.positions import MariaDb, Positions, PostgreSql
from muster.database.standings import Standings

LAG_S = 2.0


def at(number: int) -> str:
    """A position of the log."""
    return f"0_{number:X}"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.floats(0.01, 1.0)), max_size=60))
def test_a_replica_serves_only_what_is_known_to_be_young(steps: list[tuple[int, int, float]]) -> None:
    """Beside the truth: the time at which the primary had each position."""
    standings = Standings(PostgreSql(), ["one"], LAG_S, 0.01)
    now, primary, replica = 0.0, 1, 0
    written = {1: 0.0}
    for writes, applies, passes in steps:
        for _ in range(writes):
            primary += 1
            written[primary] = now
        standings.sampled(at(primary), now)
        now += passes
        replica = min(primary, replica + applies)
        standings.answered(0, at(replica), now)
        (state,) = standings.states
        lacks = [time for position, time in written.items() if position > replica]
        true_lag = now - min(lacks) if lacks else 0.0
        if not state.why:
            assert state.lag_s is not None
            assert state.lag_s <= LAG_S
            assert true_lag <= state.lag_s + 1.0 + 1e-9, "late by no more than a pause between two looks"
        if replica == primary:
            assert state.lag_s == 0.0


def test_a_replica_that_has_none_of_the_positions_has_no_known_lag() -> None:
    standings = Standings(PostgreSql(), ["one"], LAG_S, 1.0)
    standings.sampled(at(5), 0.0)
    standings.answered(0, at(4), 0.1)
    assert "unknown lag" in standings.states[0].why
    standings.sampled(at(9), 1.0)
    standings.answered(0, at(5), 1.1)
    assert (standings.states[0].why, round(standings.states[0].lag_s or 0, 3)) == ("", 0.1)
    standings.answered(0, at(5), 1.0 + LAG_S + 0.1)
    assert "lags by more than 2 s" in standings.states[0].why
    standings.failed(0, "no answer")
    assert standings.order("") == []


def test_replicas_that_have_a_position_come_first_and_others_take_turns() -> None:
    standings = Standings(PostgreSql(), ["one", "two", "three"], LAG_S, 1.0)
    standings.sampled(at(5), 0.0)
    for index, position in enumerate((5, 9, 5)):
        standings.answered(index, at(position), 0.0)
    assert {standings.order("")[0] for _ in range(3)} == {0, 1, 2}
    assert {standings.order(at(8))[0] for _ in range(3)} == {1}
    assert standings.order("primary") == standings.order("not a position") == []
    assert (standings.figures.unknown, standings.figures.malformed) == (1, 1)


@pytest.mark.parametrize(
    ("known", "older", "newer"),
    [
        (MariaDb(), "0-1-9", "0-2-10"),
        (MariaDb(), "0-1-9", "0-1-9.1-1-1"),
        (MariaDb(), "", "0-1-9"),
        (PostgreSql(), "0_FFFFFFFF", "1_0"),
        (PostgreSql(), "0_9", "0_A"),
    ],
)
def test_a_newer_position_includes_an_older_one(known: Positions, older: str, newer: str) -> None:
    assert known.includes(newer, older)
    assert not known.includes(older, newer)
    assert known.includes(newer, newer)
