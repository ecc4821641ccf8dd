"""Messages per second of rooms, from lists at given times."""

from typing import Any

from muster_server.systems.rooms.rates import LEAST_S, MOST_S, Rates


def room(name: str, offset: int, stream: int = 1) -> dict[str, Any]:
    return {"name": name, "stream": [stream, 1, 1], "next_offset": offset}


def told(rates: Rates, at: float, *rooms: dict[str, Any]) -> dict[str, float | None]:
    return {each["name"]: each["per_s"] for each in rates.add(rooms, at)}


def test_a_room_has_the_growth_of_its_offset_since_the_list_before() -> None:
    rates = Rates()
    assert told(rates, 10.0, room("a", 1), room("b", 5)) == {"a": None, "b": None}
    assert told(rates, 12.0, room("a", 11), room("b", 5), room("c", 9)) == {"a": 5.0, "b": 0.0, "c": None}


def test_lists_that_follow_at_once_keep_the_rate() -> None:
    rates = Rates()
    told(rates, 10.0, room("a", 1))
    assert told(rates, 12.0, room("a", 11)) == {"a": 5.0}
    assert told(rates, 12.0 + LEAST_S / 2, room("a", 12)) == {"a": 5.0}
    assert told(rates, 14.0, room("a", 15)) == {"a": 2.0}


def test_a_new_stream_and_an_old_list_give_no_rate() -> None:
    rates = Rates()
    told(rates, 10.0, room("a", 7), room("b", 7))
    assert told(rates, 11.0, room("a", 9, stream=2), room("b", 3)) == {"a": None, "b": None}
    assert told(rates, 12.0 + MOST_S, room("a", 90, stream=2)) == {"a": None}
