"""Rates and the memory of idempotent answers, with time given to them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.systems.http.descriptors import fitting
from muster_server.systems.http.idempotency import Answer, Idempotency, Nothing
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.rates import BURST, Buckets


def test_a_caller_gets_its_burst_and_then_its_rate() -> None:
    buckets = Buckets(10)
    assert [buckets.take("a", 1, 0.0) for _ in range(20)] == [0.0] * 20
    assert buckets.take("a", 1, 0.0) == pytest.approx(0.1)
    assert buckets.take("a", 1, 0.1) == 0.0
    assert buckets.take("b", 1, 0.0) == 0.0


def test_what_is_more_than_a_bucket_passes_once_it_is_full() -> None:
    buckets = Buckets(10)
    assert buckets.take("a", 100, 0.0) == 0.0
    assert buckets.take("a", 1, 0.0) == pytest.approx(100 / 10 + 0.1 - BURST)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 30)), max_size=60))
def test_never_more_passes_than_rate_and_burst(asked: list[tuple[float, int]]) -> None:
    buckets, now, passed = Buckets(10), 0.0, 0
    for after, count in asked:
        now += after
        wait = buckets.take("a", count, now)
        if not wait:
            passed += count
        elif count <= BURST * 10:
            again = Buckets(10)
            again._full = buckets._full.copy()
            assert again.take("a", count, now + wait + 1e-6) == 0.0
    assert passed <= BURST * 10 + now * 10 + 30


def test_names_are_bounded() -> None:
    buckets = Buckets(10, names_max=100)
    for at in range(1_000):
        buckets.take(str(at), 1, 0.0)
    assert len(buckets) == 100


@pytest.mark.parametrize(
    ("connections", "soft", "hard", "limit", "possible"),
    [
        (10_000, 1_024, 1 << 20, 10_000 + 8 * 100 + 256, 10_000),
        (10_000, 1_024, 4_096, 4_096, 4_096 - 8 * 100 - 256),
        (10_000, 1 << 20, 1 << 20, 1 << 20, 10_000),
        (10_000, 256, 256, 256, 16),
        (5, 256, 256, 256, 5),
    ],
)
def test_no_more_connections_are_taken_than_descriptors_allow(
    connections: int, soft: int, hard: int, limit: int, possible: int
) -> None:
    assert fitting(connections, 100, soft, hard) == (limit, possible)


class Clock:
    """Time that stands until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Counts how often it is done."""

    def __init__(self, body: bytes = b"x", error: Exception | None = None) -> None:
        self.done, self._body, self._error = 0, body, error

    async def __call__(self) -> Answer:
        self.done += 1
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        return Answer(200, self._body)


async def test_the_same_request_is_done_once_and_answered_alike() -> None:
    memory, work = Idempotency(60, 10), Work()
    first, second, third = await asyncio.gather(*(memory.once(("a",), "k", b"body", work) for _ in range(3)))
    assert (first.body, second.body, third.body) == (b"x", b"x", b"x")
    assert [first.replayed, second.replayed, third.replayed] == [False, True, True]
    assert work.done == 1


async def test_another_body_with_the_same_key_is_refused() -> None:
    memory, work = Idempotency(60, 10), Work()
    await memory.once(("a",), "k", b"body", work)
    with pytest.raises(Problem, match="idempotency_mismatch"):
        await memory.once(("a",), "k", b"other", work)
    await memory.once(("b",), "k", b"other", work)
    assert work.done == 2


async def test_what_did_nothing_may_be_tried_again() -> None:
    memory, refused, work = Idempotency(60, 10), Work(error=Nothing(Problem("busy"))), Work()
    with pytest.raises(Problem, match="busy"):
        await memory.once(("a",), "k", b"body", refused)
    await memory.once(("a",), "k", b"body", work)
    assert work.done == 1


@pytest.mark.parametrize("error", [Problem("timeout"), RuntimeError("defect")])
async def test_what_may_be_done_is_not_done_again(error: Exception) -> None:
    memory, failed, work = Idempotency(60, 10), Work(error=error), Work()
    with pytest.raises(type(error)):
        await memory.once(("a",), "k", b"body", failed)
    with pytest.raises(Problem, match="timeout"):
        await memory.once(("a",), "k", b"body", work)
    assert work.done == 0


async def test_a_duplicate_waits_so_long_and_no_longer() -> None:
    memory, never = Idempotency(60, 10, wait_s=0.01), asyncio.Event()

    async def work() -> Answer:
        await never.wait()
        return Answer(200, b"x")

    first = asyncio.create_task(memory.once(("a",), "k", b"body", work))
    await asyncio.sleep(0)
    with pytest.raises(Problem, match="in_progress"):
        await memory.once(("a",), "k", b"body", work)
    never.set()
    assert (await first).body == b"x"


async def test_answers_are_bounded_by_time_count_and_bytes() -> None:
    clock = Clock()
    memory = Idempotency(60, 3, bytes_max=100, clock=clock)
    for at in range(10):
        await memory.once(("a",), str(at), b"", Work(b"y" * 10))
    assert len(memory) == 3
    assert memory.bytes == 30
    await memory.once(("a",), "big", b"", Work(b"y" * 95))
    assert memory.bytes <= 100
    clock.now = 61.0
    again = Work()
    await memory.once(("a",), "big", b"other", again)
    assert again.done == 1
    assert len(memory) == 1


async def test_running_requests_are_not_pushed_out() -> None:
    memory, never = Idempotency(60, 1), asyncio.Event()

    async def work() -> Answer:
        await never.wait()
        return Answer(200, b"x")

    first = asyncio.create_task(memory.once(("a",), "k", b"", work))
    await asyncio.sleep(0)
    with pytest.raises(Problem, match="busy"):
        await memory.once(("a",), "other", b"", Work())
    never.set()
    await first
