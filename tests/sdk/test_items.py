"""Positions, messages and gaps as values."""

import pickle

import pytest

from muster import Delivered, Expired, Gap, Message, NoMember, Position, Stream

ONE, TWO = Position((1, 2, 3), 4), Position((1, 2, 3), 5)


def test_positions_compare_within_a_stream_only() -> None:
    assert ONE < TWO <= Position((1, 2, 3), 5)
    assert TWO > ONE >= Position((1, 2, 3), 4)
    assert Position((1, 2, 4), 4) != ONE
    with pytest.raises(ValueError, match="different streams"):
        assert Position((1, 3, 1), 9) > ONE
    with pytest.raises(TypeError, match="with positions, not with int"):
        assert ONE < 5  # type: ignore[operator]


def test_positions_are_values() -> None:
    assert {ONE, Position((1, 2, 3), 4)} == {ONE}
    assert Position.from_bytes(bytes(ONE)) == ONE == pickle.loads(pickle.dumps(ONE))
    assert (str(ONE), ONE.stream, ONE.offset) == ("1.2.3:4", Stream(1, 2, 3), 4)
    with pytest.raises(ValueError, match="20 bytes"):
        Position.from_bytes(b"short")
    with pytest.raises(AttributeError):
        ONE.offset = 5  # type: ignore[misc]


def test_items_can_be_told_apart_by_matching() -> None:
    for item in (Message("r", (1, 2, 3), 4, 7, b"data"), Gap(Stream(1, 2, 3), 5, None, "slow")):
        match item:
            case Message(room, position, sender, data):
                assert (room, position, sender, data) == ("r", ONE, 7, b"data")
            case Gap(stream, first, last, reason):
                assert (str(stream), first, last, reason) == ("1.2.3", 5, None, "slow")


def test_messages_are_values() -> None:
    one = Message("r", (1, 2, 3), 4, 7, b"data")
    assert {one, Message("r", (1, 2, 3), 4, 7, b"data")} == {one} == {pickle.loads(pickle.dumps(one))}
    others = [
        Message("s", (1, 2, 3), 4, 7, b"data"),
        Message("r", (1, 2, 4), 4, 7, b"data"),
        Message("r", (1, 2, 3), 5, 7, b"data"),
        Message("r", (1, 2, 3), 4, 8, b"data"),
        Message("r", (1, 2, 3), 4, 7, b"date"),
    ]
    assert one not in others
    assert one != ("r", ONE, 7, b"data")
    assert repr(one) == "Message(room='r', position=1.2.3:4, sender=7, data=b'data')"
    assert repr(Message("r", (1, 2, 3), 4, 7, bytes(41))).endswith(f"data={bytes(40) + b'...'!r})")
    assert Message("r", (1, 2, 3), 4, 7, b'{"a":[1]}').json() == {"a": [1]}
    headed = Message("r", (1, 2, 3), 4, 7, b"data", None, {"kind": "goal"})
    assert (headed.headers, one.headers) == ({"kind": "goal"}, {})
    assert headed != one
    assert pickle.loads(pickle.dumps(headed)) == headed
    assert repr(headed).endswith("data=b'data', headers={'kind': 'goal'})")
    with pytest.raises(ValueError, match="the name of a header"):
        Message("r", (1, 2, 3), 4, 7, b"data", None, {"a b": ""})
    with pytest.raises(ValueError):
        one.json()
    with pytest.raises(AttributeError):
        one.data = b""  # type: ignore[misc]


def test_what_became_of_a_command_is_never_equal_to_something_else() -> None:
    said = [Delivered(1), Expired(1), Delivered(2), NoMember()]
    assert len(set(said)) == 4
    assert Delivered(1) == pickle.loads(pickle.dumps(Delivered(1)))
