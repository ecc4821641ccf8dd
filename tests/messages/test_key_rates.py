"""The rate of each key against a plain list of the moments at which its messages left."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server.systems.messages import key_rates
from muster_server.systems.messages.key_rates import HORIZON_US, KEYS_MAX, RESERVED_MAX, SECOND_US, UNUSED_US, KeyRates

KEYS = ("a", "b")


class Plain:
    """A bucket for each key that drips: the first moment at which all messages before it have left and it holds one."""

    def __init__(self, rate: float) -> None:
        self.interval = max(1, round(SECOND_US / rate))
        self.most = max(SECOND_US, self.interval)
        """The bucket's size, in time."""
        self.given: dict[str, list[int]] = defaultdict(list)

    def moment(self, key: str, now: int) -> int:
        """The first moment from now on that keeps the bucket of the moments given out from running below nothing."""
        moments = self.given[key]
        low, high = max([now, *moments[-1:]]), now + (len(moments) + 1) * self.interval
        while low < high:  # once it holds, it holds for each later moment
            middle = (low + high) // 2
            low, high = (low, middle) if self.holds([*moments, middle]) else (middle + 1, high)
        return low

    def holds(self, moments: list[int]) -> bool:
        left, before = self.most, 0
        for at in moments:
            left = min(self.most, left + at - before) - self.interval
            before = at
            if left < 0:
                return False
        return True


@settings(max_examples=150, deadline=None)
@given(
    rate=st.sampled_from([0.5, 1, 3, 20_000, 250_000, 1_000_000]),
    steps=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 40), st.booleans()), max_size=60),
)
def test_each_message_leaves_at_its_moment_as_a_plain_bucket_gives_it(
    rate: float, steps: list[tuple[str, int, bool]]
) -> None:
    rates, plain, now = KeyRates(rate), Plain(rate), 1_000
    moments: dict[int, tuple[str, int]] = {}
    late: set[int] = set()
    step_us = max(1, plain.interval // 10)
    for number, (key, passed, again) in enumerate(steps):
        now += passed * step_us
        at = plain.moment(key, now)
        if at - now <= HORIZON_US:
            plain.given[key].append(at)
            moments[number] = (key, at)
            assert rates.admit(key, number, now) == at - now
            assert rates.has(number) == (at > now)
        else:
            assert rates.admit(key, number, now) == HORIZON_US
            assert rates.has(number)
            late.add(number)
        if again:
            for each, (of, due) in list(moments.items()):
                if rates.has(each):
                    assert rates.admit(of, each, now) == max(0, due - now)
    for each, (of, due) in moments.items():
        if rates.has(each):
            assert rates.admit(of, each, due) == 0
    assert set(rates.all_waiting()) == late
    for key in KEYS:
        assert plain.holds(plain.given[key])


def test_a_key_gets_a_second_of_its_rate_at_once_and_others_do_not_wait() -> None:
    rates = KeyRates(4)
    assert [rates.admit("a", number, 0) for number in range(6)] == [0, 0, 0, 0, SECOND_US // 4, SECOND_US // 2]
    assert rates.admit("b", 6, 0) == 0
    assert rates.waiting == 2
    slow = KeyRates(0.1)
    assert [slow.admit("a", number, 0) for number in range(3)] == [0, 10 * SECOND_US, 20 * SECOND_US]


def test_what_is_beyond_the_horizon_asks_again_and_keeps_no_moment() -> None:
    rates = KeyRates(0.01)
    waits = [rates.admit("a", number, 0) for number in range(10)]
    assert waits == [0, *(100 * SECOND_US * number for number in (1, 2, 3)), *[HORIZON_US] * 6]
    assert rates.waiting == 3 + 6
    assert rates.admit("a", 9, HORIZON_US) == 100 * SECOND_US


def test_memory_is_bounded_and_given_up() -> None:
    rates = KeyRates(1)
    for number in range(KEYS_MAX):
        assert rates.admit(f"key {number}", number, 0) == 0
    assert rates.admit("one more", KEYS_MAX, 0) == SECOND_US
    assert rates.admit("one more", KEYS_MAX, SECOND_US) == 0, "the others are full again"
    assert (len(rates._full), rates.waiting) == (1, 0)

    fast = KeyRates(1_000)
    for number in range(RESERVED_MAX + 1_000):
        assert fast.admit("a", number, 0) <= RESERVED_MAX * 1_000
    assert fast.waiting == RESERVED_MAX
    for number in range(1 << 40, (1 << 40) + RESERVED_MAX + 10):
        assert fast.admit("a", number, 0) == HORIZON_US
    assert fast.waiting == 2 * RESERVED_MAX
    fast.sweep(HORIZON_US + UNUSED_US + 1)
    assert (fast.waiting, len(fast._full)) == (0, 0)


def test_moments_are_swept_once_a_second() -> None:
    rates = KeyRates(1)
    assert rates.admit("a", 1, 0) == 0
    rates.sweep(key_rates.SECOND_US + 1)
    assert not rates._full
