"""Lanes against a plain list: a key has a limit of open messages, and they open by due time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server.systems.messages.lanes import Dues, Lanes

KEYS = ("a", "b")


class Plain:
    """The messages of each key in a list, by due time."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.waiting: dict[str, list[tuple[int, int]]] = {key: [] for key in KEYS}
        self.open: dict[str, set[int]] = {key: set() for key in KEYS}

    def admit(self, key: str, number: int, due_at: int) -> bool:
        if number in self.open[key]:
            return True
        if (due_at, number) in self.waiting[key]:
            return False
        self.waiting[key].append((due_at, number))
        return number in self.opened(key)

    def opened(self, key: str) -> list[int]:
        some: list[int] = []
        while self.waiting[key] and len(self.open[key]) < self.at_once:
            first = min(self.waiting[key])
            self.waiting[key].remove(first)
            self.open[key].add(first[1])
            some.append(first[1])
        return some

    def ended(self, number: int) -> list[int]:
        for key in KEYS:
            if number in self.open[key]:
                self.open[key].discard(number)
                return self.opened(key)
        return []


@settings(max_examples=300, deadline=None)
@given(
    at_once=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["due", "due", "again", "end", "more"]), st.sampled_from(KEYS), st.integers(0, 99)),
        max_size=80,
    ),
)
def test_lanes_agree_with_a_plain_list(at_once: int, steps: list[tuple[str, str, int]]) -> None:
    lanes, plain = Lanes(at_once), Plain(at_once)
    given_: list[tuple[str, int, int]] = []
    for step, key, number in steps:
        if step == "due":
            new = (key, len(given_), number)
            given_.append(new)
            assert lanes.admit(*new) == plain.admit(*new)
        elif step == "again" and given_:
            again = given_[number % len(given_)]
            if again[1] in plain.open[again[0]] or (again[2], again[1]) in plain.waiting[again[0]]:
                assert lanes.admit(*again) == plain.admit(*again)
        elif step == "end" and given_:
            ends = given_[number % len(given_)][1]
            assert list(lanes.ended(ends)) == plain.ended(ends)
        elif step == "more":
            lanes.at_once = plain.at_once = 1 + number % 3
            assert sorted(lanes.room()) == sorted(each for one in KEYS for each in plain.opened(one))
        assert lanes.waiting == sum(map(len, plain.waiting.values()))
        for one in KEYS:
            for each in plain.open[one]:
                assert lanes.is_open(each)
    for _ in given_:
        for number in lanes.turn(len(given_)):
            lanes.ended(number)
    assert lanes.waiting == 0
    assert not lanes.turn(1), "nothing stays behind"


def test_open_messages_are_looked_at_in_turn() -> None:
    lanes = Lanes(5)
    for number in range(5):
        assert lanes.admit("a", number, number)
    assert [list(lanes.turn(2)) for _ in range(3)] == [[0, 1], [2, 3], [4, 0]]


@settings(max_examples=200, deadline=None)
@given(dues=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 20)), max_size=120))
def test_no_two_messages_of_a_key_have_one_due_time_and_equal_ones_keep_their_order(
    dues: list[tuple[str, int]],
) -> None:
    free = Dues()
    given_: dict[str, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for key, due in dues:
        at = free.free(1, key, due)
        assert at >= due
        given_[key].append((due, at))
    for pairs in given_.values():
        assert len({at for _, at in pairs}) == len(pairs)
        for due in {due for due, _ in pairs}:
            same = [at for each, at in pairs if each == due]
            assert same == sorted(same)


def test_due_times_are_remembered_within_a_bound() -> None:
    free = Dues(entries_max=100)
    last = [free.free(1, "a", 5) for _ in range(1_000)]
    assert last == list(range(5, 1_005))
    for number in range(1_000):
        free.free(1, f"key-{number}", 5)
    assert len(free) <= 101
