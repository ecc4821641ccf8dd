"""Picks by name: fair within a selector while clients come, go and change, busy ones passed over, and told how."""

from collections import Counter

import numpy as np
import pytest

from muster_server.systems.fleet import picks as module
from muster_server.systems.fleet import replay
from muster_server.systems.fleet.index import Index, Update
from muster_server.systems.fleet.picks import Picks, State
from muster_server.systems.fleet.selector import parse

EVERYONE = parse("")
CHINA = parse("country=CN")


def index_of(count: int, country: str = "CN") -> Index:
    index = Index()
    for number in range(count):
        index.apply(Update(f"{country}{number}", 1, 1, {"country": [country]}))
    return index


def test_each_client_of_a_selector_is_picked_once_a_round_while_others_come() -> None:
    index = index_of(100)
    picks = Picks(index, 0)
    counts: Counter[str] = Counter()
    for turn in range(30):
        pick = picks.pick(CHINA, 10, turn)
        assert pick.round == turn // 10
        assert (pick.members, len(pick.clients), pick.selector) == (100, 10, "country=CN")
        counts.update(pick.clients)
        picks.release(pick.numbers)
        for number in range(3):
            index.apply(Update(f"US{turn}-{number}", 1, 1, {"country": ["US"]}))
        assert max(counts.values()) - min(counts[f"CN{n}"] for n in range(100)) <= 1
    assert set(counts.values()) == {3}


def test_each_selector_has_its_own_round() -> None:
    picks = Picks(index_of(20), 0, in_flight_max=9)
    assert sorted(picks.pick(CHINA, 20, 1).clients) == sorted(picks.pick(EVERYONE, 20, 2).clients)


def test_a_busy_client_is_passed_over_until_its_run_ends() -> None:
    picks = Picks(index_of(10), 0, in_flight_max=2)
    first = picks.pick(CHINA, 10, 1)
    second = picks.pick(CHINA, 10, 2)
    assert len(first.clients) == len(second.clients) == 10
    assert picks.pick(CHINA, 10, 3).clients == []
    picks.release(first.numbers[:3])
    third = picks.pick(CHINA, 10, 4)
    assert sorted(third.numbers.tolist()) == sorted(first.numbers[:3].tolist())
    with pytest.raises(ValueError, match="without a run"):
        Picks(index_of(10), 0).release(np.array([3], dtype=np.uint32))


def test_clients_of_the_same_run_are_not_picked_to_replace() -> None:
    picks = Picks(index_of(10), 0, in_flight_max=5)
    first = picks.pick(CHINA, 4, 1)
    again = picks.pick(CHINA, 10, 2, without=first.numbers)
    assert sorted(first.clients + again.clients) == sorted(f"CN{n}" for n in range(10))


def test_a_task_takes_the_punishment_of_the_source_and_minutes_give_it_back() -> None:
    picks = Picks(index_of(200), 0)
    picks.set_averages(10.0, 2.0)
    assert picks.punishment == 10.0
    client = picks.pick(CHINA, 10, 1).clients[0]
    assert picks.weight(client) == pytest.approx(0.99)
    picks.advance(10)
    assert picks.weight(client) == 1.0
    assert picks.weight("stranger") is None


def test_a_client_tired_of_other_selectors_tasks_comes_last_in_its_round() -> None:
    index = index_of(40)
    for number in range(10):
        index.apply(Update(f"CN{number}", 1, 2, {"country": ["CN"], "tag": ["hot"]}))
    picks = Picks(index, 0, in_flight_max=9)
    hot = {f"CN{number}" for number in range(10)}
    picks.pick(parse("tag=hot"), 10, 1)
    assert picks.punishment == 1000.0  # no averages yet
    first = picks.pick(CHINA, 30, 2)
    assert not set(first.clients) & hot
    assert first.tired == 0
    last = picks.pick(CHINA, 10, 3)
    assert set(last.clients) == hot
    assert (last.tired, last.round) == (10, 0)


def test_a_state_picks_as_the_original_would() -> None:
    index = index_of(300)
    picks = Picks(index, 5)
    picks.set_averages(10.0, 2.0)
    for turn in range(17):
        picks.release(picks.pick(CHINA, 13, turn).numbers)
    state = picks.state()
    assert isinstance(state, State)
    for again in (Picks.restored(Index.restored(index.snapshot()), state), picks):
        again.set_averages(10.0, 2.0)
        pick = again.pick(CHINA, 50, 99)
        assert (pick.round, pick.seed, pick.punishment) == (0, 99, 15.0)
        assert pick.clients == picks_of(state, index)


def picks_of(state: State, index: Index) -> list[str]:
    picks = Picks.restored(Index.restored(index.snapshot()), state)
    picks.set_averages(10.0, 2.0)
    return picks.pick(CHINA, 50, 99).clients


def test_a_forgotten_clients_number_owes_and_weighs_anew() -> None:
    index = index_of(2)
    picks = Picks(index, 0)
    picks.pick(CHINA, 2, 1)
    index.apply(Update("CN0", 1, 2, None))
    picks.forget(index.forget("CN0"))
    index.apply(Update("new", 1, 1, {"country": ["CN"]}))
    assert picks.weight("new") == 1.0
    assert picks.pick(CHINA, 2, 2).clients == ["new"]


def test_decks_beyond_the_bound_are_given_up_oldest_first_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECKS_MAX", 2)
    picks = Picks(index_of(4), 0, in_flight_max=9)
    for text in ("country=CN", "", "country=CN", "country!=US"):
        picks.pick(parse(text), 1, 1)
    assert picks.decks_dropped == 1
    assert [deck.selector for deck in picks.state().decks] == ["country=CN", "not country=US"]


def test_a_state_with_room_for_more_than_the_index_has_is_restored() -> None:
    index = index_of(10)
    picks = Picks(index, 5)
    for number in range(500):
        index.apply(Update(f"US{number}", 1, 1, {"country": ["US"]}))
    picks.pick(CHINA, 3, 1)  # grows by an eighth more than the index needs
    again = Picks.restored(Index.restored(index.snapshot()), picks.state())
    assert again.pick(CHINA, 7, 1).round == 0
    assert again.owed(CHINA) == (0, 0)


def test_another_owner_goes_on_with_the_round_whatever_numbers_it_gives() -> None:
    here, there = index_of(50), Index()
    for number in reversed(range(50)):
        there.apply(Update(f"CN{number}", 1, 1, {"country": ["CN"]}))
    owner, other = Picks(here, 0), Picks(there, 0)
    counts: Counter[str] = Counter()
    for turn in range(40):
        picks, index, follows, followed = (owner, here, other, there) if turn % 3 else (other, there, owner, here)
        pick = picks.pick(CHINA, 7, turn)
        counts.update(pick.clients)
        found = [followed.number(client) for client in pick.clients]
        numbers = np.array([number for number in found if number is not None], dtype=np.uint32)
        follows.follow(pick.selector, numbers, pick.round, pick.of_round, pick.punishment)
        assert other.owed(CHINA) == owner.owed(CHINA)
        assert max(counts.values()) - min(counts[f"CN{n}"] for n in range(50)) <= 1
        picks.release(pick.numbers)
        follows.release(numbers)
        assert {other.weight(client) for client in counts} == {owner.weight(client) for client in counts}
        assert index.online == 50


def test_a_draw_comes_out_again_from_what_is_kept_of_it() -> None:
    index = index_of(700)
    picks = Picks(index, 5)
    picks.set_averages(10.0, 2.0)
    for turn in range(60):
        pick = picks.pick(CHINA, 23, turn, without=np.array([turn], dtype=np.uint32))
        assert replay.again(pick.replay, turn)
        assert not replay.again(pick.replay, turn + 1)
        if turn % 5:
            picks.release(pick.numbers)
        picks.advance(5 + turn // 10)
