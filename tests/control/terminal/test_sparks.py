"""Sparklines show a series, and only where a terminal can draw them."""

import io
import sys

import pytest

from muster_server.control.terminal import sparks
from muster_server.control.terminal.sparks import BLOCKS, Lately, bar, drawn, spark


def test_a_series_is_one_block_for_each_value() -> None:
    assert spark([]) == ""
    assert spark([5, 5, 5]) == "▁▁▁"
    assert spark([0, 7, 3.5]) == "▁█▅"
    assert spark(range(8)) == BLOCKS


@pytest.mark.parametrize(
    ("term", "encoding", "terminal", "draws"),
    [
        ("xterm", "utf-8", True, True),
        ("xterm", "UTF-8", True, True),
        ("dumb", "utf-8", True, False),
        ("", "utf-8", True, False),
        ("xterm", "latin-1", True, False),
        ("xterm", "utf-8", False, False),
    ],
)
def test_only_a_terminal_that_can_draw_gets_blocks(
    monkeypatch: pytest.MonkeyPatch, term: str, encoding: str, terminal: bool, draws: bool
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", term)
    if not term:
        monkeypatch.delenv("TERM")
    assert drawn() is draws


@pytest.mark.parametrize(("draws", "block"), [(True, "█"), (False, "#")])
def test_a_bar_fills_its_width_with_the_greatest_value(
    monkeypatch: pytest.MonkeyPatch, draws: bool, block: str
) -> None:
    monkeypatch.setattr(sparks, "drawn", lambda: draws)
    assert [bar(value, 8, 4) for value in (8, 4, 1, 0)] == [block * 4, block * 2, block, block]
    assert bar(0, 0, 4) == ""


def test_each_row_keeps_its_newest_values() -> None:
    lately = Lately(3)
    assert [lately.add("a", value) for value in (0, 7, 7)] == ["▁", "▁█", "▁██"]
    assert lately.add("b", 1) == "▁"
    assert lately.add("a", None) == "▁██"
    assert lately.add("a", 0) == "██▁"


def test_rows_beyond_the_bound_get_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparks, "SERIES_MAX", 1)
    lately = Lately()
    assert [lately.add(row, 1.0) for row in "aba"] == ["▁", "", "▁▁"]
