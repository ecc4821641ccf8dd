"""Turns by a clock of their own: each pair once an interval, never too many a second, none left out for long."""

from collections import Counter

import pytest

from muster_server.systems.probes.rounds import Pair, Rounds


def pairs(count: int) -> list[Pair]:
    return [(proxy, broker) for proxy in range(count // 10) for broker in range(10)]


def run(rounds: Rounds, began: float, seconds: float, tick: float = 0.01) -> Counter[Pair]:
    sent: Counter[Pair] = Counter()
    for turn in range(round(seconds / tick)):
        sent.update(rounds.due(began + turn * tick))
    return sent


def test_every_pair_has_its_turn_once_an_interval() -> None:
    rounds = Rounds(every_s=0.5, per_s_max=1_000)
    rounds.follow(pairs(20))
    sent = run(rounds, 0.0, 5.0)
    assert len(sent) == 20
    assert set(sent.values()) <= {10, 11}


def test_more_pairs_than_the_most_a_second_are_gone_round() -> None:
    rounds = Rounds(every_s=0.5, per_s_max=100)
    rounds.follow(pairs(1_000))
    sent = run(rounds, 0.0, 5.0)
    assert sum(sent.values()) == pytest.approx(500, abs=2)
    assert set(sent.values()) == {1}, "nobody twice before everybody once"
    sent += run(rounds, 5.0, 5.0)
    assert len(sent) >= 998


def test_other_limits_are_in_force_at_once() -> None:
    rounds = Rounds(every_s=100.0, per_s_max=100)
    rounds.follow(pairs(20))
    assert sum(run(rounds, 0.0, 1.0).values()) == 1
    rounds.limit(1.0, 100)
    assert set(run(rounds, 1.0, 2.0).values()) == {2}
    rounds.limit(1.0, 10)
    assert sum(run(rounds, 3.0, 2.0).values()) == pytest.approx(20, abs=1)


def test_who_stood_still_does_not_make_up_for_it() -> None:
    rounds = Rounds(every_s=1.0, per_s_max=100)
    rounds.follow(pairs(100))
    run(rounds, 0.0, 1.0)
    assert len(rounds.due(60.0)) == 1


def test_who_comes_or_goes_does_not_give_others_a_turn_too_few() -> None:
    rounds = Rounds(every_s=0.0, per_s_max=100)
    rounds.follow([(1, 1), (1, 2), (1, 4)])
    assert [rounds.due(at)[0] for at in (0.0, 0.01)] == [(1, 1), (1, 2)]
    rounds.follow([(1, 1), (1, 3), (1, 4)])
    assert [rounds.due(at)[0] for at in (0.02, 0.03, 0.04)] == [(1, 3), (1, 4), (1, 1)]
    rounds.follow([])
    assert rounds.due(0.05) == []
    rounds.follow([(2, 2)])
    assert rounds.due(0.06) == [(2, 2)]


def test_the_next_turn_is_waited_for_and_no_longer() -> None:
    rounds = Rounds(every_s=1.0, per_s_max=100)
    rounds.follow(pairs(10))
    assert rounds.due(0.0) == [(0, 0)]
    assert rounds.wait_s(0.04) == pytest.approx(0.06)
