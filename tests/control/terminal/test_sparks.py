"""Sparklines show a series, and only where a terminal can draw them."""

import io
import sys

import pytest

from muster_server.control.terminal.sparks import BLOCKS, drawn, spark


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
