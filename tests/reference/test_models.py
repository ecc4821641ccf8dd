"""The models themselves, on cases small enough to check by hand (the same as in the tests of the Rust files)."""

from tests.reference import chunks, log, order, window


def test_window_names_the_four_newest_holes() -> None:
    model = window.Window(16)
    for seq in [1, 3, 5, 7, 9, 20]:
        assert model.commit(seq) == "fresh"
    assert model.missing_ranges() == [(10, 19), (8, 8), (6, 6), (4, 4)]
    assert model.missing_between(1, 20) == 14
    assert (model.check(0), model.check(5), model.check(6)) == ("old", "duplicate", "fresh")
    model.commit(6_400)
    assert (model.check(6_400 - 960), model.check(6_400 - 961)) == ("fresh", "old")


def test_log_repeats_slow_down_to_one_a_second() -> None:
    sender = log.LogSender(1_000)
    sender.push(b"x")
    times = [ms for ms in range(4_000) if sender.next_frame(ms * 1_000, 20_000, 1_200)]
    assert times == [0, 20, 60, 140, 300, 620, 1_260, 2_260, 3_260]


def test_log_delivers_once_in_order() -> None:
    sender, receiver = log.LogSender(10_000), log.LogReceiver(10_000)
    pushed = [bytes([number]) * 400 for number in range(5)]
    for record in pushed:
        sender.push(record)
    frames = []
    while (frame := sender.next_frame(0, 20_000, 900)) is not None:
        frames.append(frame)
    assert len(frames) == 3
    delivered: list[bytes] = []
    for frame in [*reversed(frames), *frames]:
        receiver.receive(frame, delivered.append)
    assert delivered == pushed
    sender.acknowledge(receiver.take_ack())
    assert (sender.acknowledged, sender.waiting) == (5, [])


def test_order_skips_what_another_owner_acknowledged() -> None:
    model = order.Publisher(1)
    for seq, offset in [(1, 1), (2, 2)]:
        assert model.offer(0, seq, 1)[0] == "apply"
        model.applied(seq, offset)
    for seq in [5, 9]:
        assert model.offer(0, seq, 1)[0] == "hold"
        model.hold(seq, 3, b"x")
    assert model.missing_ranges() == [(3, 4), (6, 8)]
    assert model.offer(0, 2, 1) == ("duplicate", 2)
    model.settle(8)
    assert (model.cumulative, model.held_bytes, model.runs(0)) == (7, 1, [])
    model.applied(8, 3)
    assert model.pop_ready() == (9, 3, b"x")


def test_chunks_put_together_are_the_message_or_nothing() -> None:
    data = bytes(range(250))
    pieces = chunks.split(data, 100)
    assert [flags for flags, _ in pieces] == [chunks.FIRST, 0, chunks.LAST]
    model = chunks.Assembler()
    outcomes = [model.push(0, "p", seq, *piece) for seq, piece in enumerate(pieces, 1)]
    assert outcomes == [("partial", None, None), ("partial", None, None), ("complete", data, None)]
    model.push(0, "p", 4, *pieces[0])
    assert model.push(0, "p", 6, *pieces[2]) == ("skipped", None, (4, 1))
    assert model.push(0, "p", 7, 0, b"x") == ("no_first", None, None)
    model.push(0, "p", 8, *pieces[0])
    assert model.expire(5_000_001) == [("p", (8, 1))]
