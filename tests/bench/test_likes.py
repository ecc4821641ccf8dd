"""The bench of likes on a small scale: every figure is there; its client takes no wrong answer."""

import itertools
import socket
import threading
from collections.abc import Iterator

import pytest

from bench import likes
from bench.likes_client import PONG, Pipeline, pace, saturate, whole
from bench.peers import Missing, Redis


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that answers everything with itself."""

    def serve(sock: socket.socket) -> None:
        with sock:
            while data := sock.recv(1 << 16):
                sock.sendall(data)

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_every_like_that_is_sent_is_answered_and_a_source_goes_on_where_it_was(echo: int) -> None:
    sources = [iter([Pipeline(b":%d\r\n" % number, 3, b":%d\r\n" % number) for number in range(10)]) for _ in range(4)]
    assert saturate(echo, sources, 0.0).likes == 4 * 3
    assert saturate(echo, sources).likes == 4 * 3 * 9


def test_questions_are_asked_by_their_schedule_while_likes_run(echo: int) -> None:
    sources = [itertools.repeat(Pipeline(b":0\r\n", 1, 4)) for _ in range(2)]
    paced = pace(echo, sources, b":7\r\n" + PONG, pipelines_rate=500, questions_rate=200, seconds=0.2)
    assert 0 < len(paced.took) == len(paced.late) <= 40
    assert min(paced.took) > 0
    assert 0 < paced.pipelines <= paced.planned == 100


@pytest.mark.parametrize(
    ("answer", "got", "expected"),
    [
        (b":0\r\n:0\r\n", b":0\r\n", False),
        (b":0\r\n:0\r\n", b":0\r\n:0\r\n", True),
        (8, b":1\r\n", False),
        (8, b":1\r\n:0\r\n", True),
        (0, b":7\r\n", False),
        (0, b":7\r\n" + PONG, True),
    ],
)
def test_a_pipeline_is_whole_once_all_its_answers_are_here(answer: bytes | int, got: bytes, expected: bool) -> None:
    assert whole(answer, got) is expected


@pytest.mark.parametrize(
    ("answer", "got"),
    [(b":0\r\n", b":1\r\n"), (b":0\r\n", b"-MISCONF disk is full\r\n"), (8, b"-ERR no\r\n"), (0, b"$-1\r\n" + PONG)],
)
def test_a_wrong_answer_ends_the_bench(answer: bytes | int, got: bytes) -> None:
    with pytest.raises(ConnectionError, match="answered"):
        whole(answer, got)


def test_a_small_run_judges_every_goal_and_has_a_peer_for_each_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        Redis.find()
    except Missing as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(likes, "SECONDS_QUICK", 0.1)
    monkeypatch.setattr(likes, "PAGES", 1_000)  # enough that their CPU is not 0 where it is counted in ticks of 10 ms
    monkeypatch.setattr(likes, "HELD_QUICK", 400_000)
    monkeypatch.setattr(likes, "LATE_MS", 1e6)  # nothing is judged by its time here
    cases = likes.run(rounds=1, quick=True)
    goals = {case.goal for case in cases if case.goal}
    left_out = {str(likes.GOALS[name]) for name in ("memory", "asked", "feed")}
    assert goals == {str(goal) for goal in likes.GOALS.values()} - left_out
    tiny = ("bytes for a further like", likes.PAGE_CPU)  # a page more or less of the allocator, a tick of a clock
    measured = [case for case in cases if not any(figure in case.name for figure in tiny)]
    assert [case.name for case in measured if case.value <= 0] == []
    assert [case.name for case in measured if " over " in case.name and not case.ratio] == []
