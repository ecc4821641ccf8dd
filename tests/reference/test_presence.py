"""The model of presence on cases small enough to check by hand, and its golden vectors.

`core/presence/tests/vectors.rs` reads the same vectors.
"""

import itertools
import json
from typing import Any, Final

import pytest

from tests.documents import ROOT
from tests.reference import presence

VECTORS: Final = json.loads((ROOT / "tests" / "vectors" / "presence.json").read_text())


def text(value: Any) -> Any:
    """As the vectors write it."""
    if isinstance(value, dict):
        return {name: text(each) for name, each in value.items()}
    return [text(each) for each in value] if isinstance(value, list) else str(value)


@pytest.mark.parametrize("case", VECTORS["frames"], ids=lambda case: f"{case['kind']}-{case['name']}")
def test_a_frame_reads_as_the_layout_says(case: dict[str, Any]) -> None:
    name, fields = presence.decode(bytes.fromhex(case["bytes"]))
    assert (name, text(fields)) == (case["name"], case["fields"])


def test_every_kind_has_a_vector() -> None:
    assert {int(case["kind"]) for case in VECTORS["frames"]} == set(presence.HEADS)


@pytest.mark.parametrize("start", [0, (1 << 32) - 2, (1 << 64) - 2])
def test_gaps_count_on_over_the_ends_of_32_and_64_bits(start: int) -> None:
    gaps = presence.Gaps(start)

    def at(distance: int) -> int:
        return (start + distance) % presence.CIRCLE

    assert [gaps.take(at(number), at(number)) for number in (1, 5, 5)] == ["fresh", "fresh", "duplicate"]
    assert (gaps.missing, gaps.complete) == ([2, 3, 4], 1)
    assert gaps.take(at(2), at(3)) == "fresh"
    assert gaps.expect(at(7))
    assert (gaps.missing, gaps.complete) == ([4, 6, 7], 3)
    assert not gaps.expect(at(3 + presence.WINDOW + 1))
    assert gaps.take(at(9_000), at(9_000)) == "beyond"


def test_any_order_of_events_gives_the_same_places() -> None:
    top = presence.CIRCLE - 1
    events = [
        (1, 1, top, 0, 5, "phone", True),
        (1, 1, top, 1, 5, "phone", False),
        (1, 1, 0, 0, 5, "phone", True),
        (2, 1, 9, 0, 5, "phone", True),
        (2, 2, 1, 0, 5, "phone", False),
    ]
    for order in itertools.permutations(events):
        writer = presence.Writer()
        for event in [*order, *order]:
            writer.apply(*event)
        assert writer.online == {(5, "phone", 1)}


def test_a_full_state_replaces() -> None:
    writer = presence.Writer()
    writer.apply(1, 1, 1, 0, 5, "phone", True)
    writer.apply(2, 1, 1, 0, 5, "phone", True)
    writer.replace(1, 2, 8, [(6, "phone", 3, 0)])
    assert writer.online == {(6, "phone", 1), (5, "phone", 2)}
