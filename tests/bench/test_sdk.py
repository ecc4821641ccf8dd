"""The bench of the library, small: every figure is there, every goal is judged, and no fault passes its readers."""

from dataclasses import replace

import pytest

from bench import sdk
from bench.peers import Missing, Nats, Redis
from bench.sdk_programs import HEAD, REST, Reader

BYTES = 40


def message(number: int) -> bytes:
    return HEAD.pack(number, 0) + REST[: BYTES - HEAD.size]


def test_all_libraries_read_and_publish_all_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hiredis")
    for peer in (Redis, Nats):
        try:
            peer.find()
        except Missing as missing:
            pytest.skip(str(missing))
    shapes = (replace(sdk.ONE, count=150), replace(sdk.MANY, readers=3, count=150), replace(sdk.AWAITED, count=2_000))
    said: list[str] = []
    monkeypatch.setattr(sdk, "LATE_US_MAX", 1e9)  # nothing is judged by its time here
    found = sdk.run(rounds=1, quick=False, say=said.append, shapes=shapes)
    cases = {case.name: case for case in found}
    judged = [case for case in found if case.goal is not None]
    assert [case.goal.partition(" ")[0] for case in judged if case.goal] == ["PF-31"] * 10
    for shape in shapes:
        for ours in ("muster", "muster apart"):
            assert cases[f"{shape.name}, {ours}: lost or wrong, worst round"].holds
    for name in (
        "1,000/s to one reader: p50, ms, over nats-py",
        "2,000/s to 20 readers: reader, µs CPU each, over redis-py",
    ):
        case = cases[name]
        assert case.value > 0
        assert case.reference is not None
        assert case.reference > 0
    assert cases["256 awaited publishes at once: publisher, µs CPU each"].value > 0
    assert not said


@pytest.mark.parametrize(
    ("came", "wrong"),
    [
        ([message(0), message(1)], 0),
        ([message(0), message(2)], 1),
        ([message(0), message(0)], 1),
        ([message(0), message(1)[:-1] + b"?"], 1),
        ([message(0), message(1)[:-1]], 1),
        ([message(0), b""], 1),
    ],
)
def test_a_message_out_of_turn_or_with_other_content_is_wrong(came: list[bytes], wrong: int) -> None:
    reader = Reader(BYTES)
    for data in came:
        reader.take(data)
    assert reader.wrong == wrong
