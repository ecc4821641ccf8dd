"""The engines of delayed messages through their binding: a schedule in a folder, callbacks over loopback, policies."""

import http.server
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from muster_server import _engines
from muster_server.systems.messages.shapes import Envelope, Fire, Result
from muster_server.systems.messages.topics import RETRIES_MS
from tests.ports import free_ports

LIMIT = 20.0
LIMITS = b"""{"allowed": ["127.0.0.1/32"], "concurrency": 4, "in_flight_max": 10, "calls_max": 10, "queue_max": 10,
    "wait_max": 1}"""
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def replies(engine: Any, count: int) -> list[tuple[Any, ...]]:
    """Waits on the descriptor, as a loop does, for so many replies."""
    found: list[tuple[Any, ...]] = []
    end = time.monotonic() + LIMIT
    while len(found) < count:
        readable, _, _ = select.select([engine.fd()], [], [], max(0.0, end - time.monotonic()))
        assert readable, f"{len(found)} of {count} replies"
        found += engine.take()
    assert len(found) == count
    return found


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[_engines.ScheduleKeeper]:
    keeper = _engines.ScheduleKeeper(b"{}", path=str(tmp_path / "schedule"), segment_bytes=8 << 20)
    yield keeper
    keeper.close()


def test_message_fires_when_due_and_is_done_after_delivery(keeper: _engines.ScheduleKeeper) -> None:
    due_at = now_ms() + 100
    keeper.insert([(1, 7, 3, due_at, None, b"body")])
    assert replies(keeper, 1) == [(1, "inserted", (7, 1, due_at, None, 0, "scheduled", None))]
    keeper.serve(2, 3, 55, 60_000, 6, 10)
    [(number, kind, array)] = replies(keeper, 1)
    assert now_ms() >= due_at
    [fire] = msgspec.msgpack.decode(array, type=list[Fire])
    claim = fire.claim
    assert (number, kind, fire) == (2, "fires", Fire(7, 3, claim, fire.until, due_at, 1, b"body"))
    assert now_ms() < fire.until <= now_ms() + 60_000
    keeper.change([(3, 7, "cancel", None, None), (4, 7, "deliver", claim, None), (5, 7, "deliver", claim, None)])
    cancelled, delivered, again = replies(keeper, 3)
    assert cancelled == (3, "refused", "fired", None)
    assert delivered == (4, "changed", (7, claim + 1, due_at, None, 1, "done", None), "delivered")
    assert again == (5, "refused", "claim_lost", None)


def test_arrays_are_answered_as_their_entries_are(keeper: _engines.ScheduleKeeper) -> None:
    now, later = now_ms(), now_ms() + 10_000_000
    new = [(1, 3, now, None, b"one"), (2, 3, now, later, b"two"), (2, 4, now, None, b""), (3, 4, 1 << 63, None, b"")]
    keeper.insert_packed(1, msgspec.msgpack.encode([*new, (4, 5, later, None, b"")]))
    [(number, kind, array, counts, again)] = replies(keeper, 1)
    assert (number, kind, counts, again) == (1, "packed", {3: 2, 5: 1}, False)
    assert msgspec.msgpack.decode(array) == [
        ["inserted", [1, 1, now, None, 0, "scheduled", None]],
        ["inserted", [2, 1, now, later, 0, "scheduled", None]],
        ["before", [2, 1, now, later, 0, "scheduled", None]],
        ["refused", "bad_time"],
        ["inserted", [4, 1, later, None, 0, "scheduled", None]],
    ]
    keeper.serve(2, 3, 55, 60_000, 6, 10)
    fires: list[Fire] = []
    while len(fires) < 2:
        fires += msgspec.msgpack.decode(replies(keeper, 1)[0][2], type=list[Fire])
    one, two = fires
    results = [
        Result(one.number, 3, one.claim, "deliver", None, 0, 1.5),
        Result(one.number, 3, one.claim, "deliver", None, 0, 1.5),
        Result(two.number, 3, two.claim, "fail", later, 5, 0.5, "refused", 500, b"no"),
        Result(9, 3, 1, "release", later, -1, 0.0),
    ]
    keeper.settle(3, msgspec.msgpack.encode(results))
    assert replies(keeper, 1) == [(3, "settled", b"dxrx")]
    ledger = _engines.ClaimLedger()
    assert ledger.begin(msgspec.msgpack.encode(fires), now + 5_000, 5_000) == [(3, 2, 2)]
    assert (len(ledger), ledger.held(3)) == (2, 2)
    sums = ledger.settle(msgspec.msgpack.encode(results), b"dxrx", now, 0, [1, 5])
    assert sums == [(3, 3, 3.5, 1, 1, 0, [2, 1, 0], True)]
    assert (len(ledger), ledger.held(3)) == (0, 0)


@pytest.mark.parametrize(
    "array",
    [b"", b"\x91", b"\x91\x90", b"\xdd\xff\xff\xff\xff", b"\x90\x90", b"\x91\x95\x01\x01\x01\x01\x01"],
)
def test_an_array_of_another_shape_is_a_value_error(keeper: _engines.ScheduleKeeper, array: bytes) -> None:
    for ask in (keeper.insert_packed, keeper.settle):
        with pytest.raises(ValueError, match="malformed"):
            ask(1, array)
    with pytest.raises(ValueError, match="malformed"):
        _engines.ClaimLedger().begin(array, 0, 0)


def test_changes_hold_after_the_folder_is_opened_again(tmp_path: Path) -> None:
    path, due_at = str(tmp_path / "schedule"), now_ms() + 10_000_000
    keeper = _engines.ScheduleKeeper(b"{}", path=path, segment_bytes=8 << 20)
    with pytest.raises(BlockingIOError):
        _engines.ScheduleKeeper(b"{}", path=path, segment_bytes=8 << 20)
    keeper.change([(0, 2, "cancel", None, None)])
    keeper.insert([(number, number, 1, due_at, due_at + 5, bytes([number])) for number in range(1, 5)])
    keeper.change([(9, 3, "due_by", None, 60_000), (10, 4, "due_at", 1, due_at - 5)])
    assert [reply[1] for reply in replies(keeper, 7)] == ["ahead", *["inserted"] * 4, "changed", "changed"]
    keeper.close()
    with pytest.raises(ValueError, match="closed"):
        keeper.take()
    keeper = _engines.ScheduleKeeper(b"{}", path=path, segment_bytes=8 << 20)
    whole = False
    while not whole:
        keeper.stats(0)
        whole = replies(keeper, 1)[0][2]["whole"]
    keeper.get([(number, number) for number in range(1, 6)])
    found = replies(keeper, 5)
    assert [(reply[2][5], reply[2][2], reply[4]) for reply in found[:4]] == [
        ("scheduled", due_at, b"\x01"),
        ("cancelled", due_at, b"\x02"),
        ("scheduled", due_at + 60_000, b"\x03"),
        ("scheduled", due_at - 5, b"\x04"),
    ]
    assert found[4] == (5, "unknown")
    assert keeper.clock_steps() == []
    keeper.close()


@pytest.mark.parametrize(
    "change",
    [
        (1, 1, "deliver", None, None),
        (1, 1, "due_at", None, None),
        (1, 1, "due_at", None, -1),
        (1, 1, "fly", None, None),
    ],
)
def test_change_that_makes_no_sense_is_a_value_error(keeper: _engines.ScheduleKeeper, change: Any) -> None:
    with pytest.raises(ValueError, match=r"change|time"):
        keeper.change([change])


class Hook(http.server.BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[str, int, bytes, str]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = self.headers
        self.seen.append((headers["webhook-id"], int(headers["webhook-timestamp"]), body, headers["webhook-signature"]))
        said = {"/good": b"ok", "/states": b"ABORT\n"}.get(self.path, b"ok")
        self.send_response(503 if self.path == "/bad" else 200)
        self.send_header("content-length", str(len(said)))
        self.send_header("retry-after", "7")
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    Hook.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_callback_is_signed_and_its_answer_told(hook: str) -> None:
    client = _engines.CallbackClient(b'{"allowed": ["127.0.0.1/32"]}')
    call = (1, "message-1", f"{hook}/good", "text/plain", b"hello", [SECRET], 5.0)
    assert client.submit([call]) == 1
    [(number, outcome, status, _, retry_in, took)] = replies(client, 1)
    assert (number, outcome, status, retry_in) == (1, "delivered", 200, None)
    assert 0 < took < LIMIT
    [(webhook_id, timestamp, body, signature)] = Hook.seen
    assert _engines.webhook_verify(SECRET, webhook_id, timestamp, body, signature, timestamp)
    assert not _engines.webhook_verify(SECRET, webhook_id, timestamp, b"Hello", signature, timestamp)
    client.submit([(2, "message-2", f"{hook}/bad", "text/plain", b"", [SECRET], 5.0)])
    assert replies(client, 1)[0][:5] == (2, "refused", 503, b"ok", 7.0)
    client.close()


def test_callback_to_a_private_address_is_refused_unless_allowed(hook: str) -> None:
    client = _engines.CallbackClient(b"{}")
    client.submit([(1, "message-1", f"{hook}/good", "text/plain", b"", [], 5.0)])
    assert replies(client, 1)[0][:4] == (1, "failed", None, "forbidden_address")
    assert Hook.seen == []
    client.close()
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8"):
        _engines.CallbackClient(b'{"allowed": ["here"]}')


def test_fires_become_callbacks_and_results(hook: str) -> None:
    engine = _engines.FiringEngine(LIMITS)
    engine.topics([(1, f"{hook}/good", [SECRET], 5.0, [1_000], 0, 6.0)])
    now = now_ms()

    def fire(number: int, topic: int, target: str, *, due_at: int = now, attempts: int = 1, until: int = 0) -> Fire:
        envelope = msgspec.msgpack.encode(Envelope(f"message-{number}", target, "text/plain", now, b"hello"))
        return Fire(number, topic, 5, until or now + 60_000, due_at, attempts, envelope)

    mine = [
        fire(1, 1, ""),
        fire(2, 1, f"{hook}/bad"),
        fire(3, 1, f"{hook}/bad", attempts=2),
        fire(4, 1, "http://10.0.0.1/"),
        fire(5, 1, "", until=now + 5_500),
        fire(9, 1, "", due_at=now - 3_600_000, until=now - 3_500_000),  # this clock is an hour ahead of the center's
    ]
    others = [fire(6, 2, ""), fire(7, 1, "room:lobby"), fire(8, 1, "", due_at=now + 60_000)]
    back = engine.take(now, msgspec.msgpack.encode([*mine, *others]))
    assert back is not None
    assert msgspec.msgpack.decode(back, type=list[Fire]) == others
    while engine.under_way():
        select.select([engine.fd()], [], [], LIMIT)
        engine.collect(now, 0)
    results = {each.number: each for each in msgspec.msgpack.decode(engine.piece(100), type=list[Result])}
    assert len(results) == engine.waiting() == 6
    said = {number: (each.verb, each.next, each.outcome, each.status, each.answer) for number, each in results.items()}
    assert said == {
        1: ("deliver", None, "delivered", 200, b""),
        2: ("fail", now + 6_000, "refused", 503, b"ok"),  # Retry-After says 7 s
        3: ("fail", None, "refused", 503, b"ok"),
        4: ("fail", None, "failed", None, b"forbidden_address"),
        5: ("release", now, "", None, b""),
        9: ("release", now - 3_500_000, "", None, b""),
    }
    assert [each.lateness_ms for each in (results[1], results[3], results[5])] == [0, -1, -1]
    assert all(each.claim == 5 and each.topic == 1 for each in results.values())
    assert engine.made() == {"delivered": 1, "refused": 2, "failed": 1, "not_made": 0, "out_of_time": 2}
    first = msgspec.msgpack.decode(engine.piece(2), type=list[Result])
    engine.told(bytes([0, 1]))
    assert engine.waiting() == 5
    assert msgspec.msgpack.decode(engine.piece(1), type=list[Result]) == first[:1], (
        "it is told again, before the others"
    )
    engine.tell(msgspec.msgpack.encode([Result(9, 1, 1, "deliver", None, 3, 0.5, "delivered")]))
    assert engine.waiting() == 6
    engine.told(bytes([1]))
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}/"
    assert engine.take(now, msgspec.msgpack.encode([fire(10, 1, nobody, until=now + 30_000)])) is None
    while engine.under_way():
        select.select([engine.fd()], [], [], LIMIT)
        engine.collect(now + 3_600_000, 0)  # the clock was set ahead meanwhile
    last = msgspec.msgpack.decode(engine.piece(100), type=list[Result])[-1]
    assert (last.number, last.next) == (10, now + 30_000 + 1_000)
    engine.close()


def test_a_check_back_is_answered_by_an_outcome_and_held_targets_are_told(hook: str) -> None:
    engine = _engines.FiringEngine(LIMITS)
    engine.topics([(1, "", [SECRET], 5.0, [1_000], 0, 600.0)])
    now = now_ms()
    fires: list[Fire] = []
    for number, path in enumerate(("good", "states", "bad")):
        kind = "text/plain" if path == "bad" else "application/vnd.muster.check"
        envelope = Envelope(f"message-{number}", f"{hook}/{path}", kind, now, b"{}\nhello")
        fires.append(Fire(number, 1, 5, now + 60_000, now, 1, msgspec.msgpack.encode(envelope)))
    assert engine.take(now, msgspec.msgpack.encode(fires)) is None
    while engine.under_way():
        select.select([engine.fd()], [], [], LIMIT)
        engine.collect(now, 0)
    results = {each.number: each for each in msgspec.msgpack.decode(engine.piece(100), type=list[Result])}
    assert (results[1].verb, results[1].status) == ("deliver", 200)
    # A server that says 200 to anything, as one behind a wrong path, does not end a check-back.
    assert (results[0].verb, results[0].next, results[0].status) == ("fail", now + 1_000, 200)
    assert results[0].answer == b"the response to a check-back must be OK or ABORT, not: ok"
    end = time.monotonic() + LIMIT
    while not engine.held():
        assert time.monotonic() < end
        time.sleep(0.001)
    [(topic, url, why, left)] = engine.held()
    assert (topic, url, why) == (1, f"{hook}/bad", "paused")
    assert 0 < left <= 7
    engine.close()


def test_policies_are_those_of_the_engine() -> None:
    plan = _engines.RetryPlan(RETRIES_MS, jitter=100)
    assert plan.attempts_max() == 6
    assert plan.next(1, 0, None, 0) == 1_000
    assert plan.next(6, 0, None, 0) is None
    assert _engines.RetryPlan([5], jitter=0).next(1, 10, 20, 3) == 30
    dispatch = _engines.WorkerDispatch("weighted-round-robin")
    assert [dispatch.choose([(1, 2, 0), (2, 1, 0)], 0) for _ in range(3)] == [0, 1, 0]
    assert dispatch.choose([(1, 0, 0)], 0) is None
    assert _engines.assign_workers("least-loaded", [(1, 5, 0), (2, 9, 0)], 1, [0, 0]) == [1]
    assert _engines.worker_weight(0.1, 0.75, 0.5) == 250
    with pytest.raises(ValueError, match="unknown policy"):
        _engines.WorkerDispatch("best")
