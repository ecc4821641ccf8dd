"""`muster topic stats`: sparklines of its minutes, and bars of what is due when, as the terminal can draw them."""

from typing import Any

import pytest

from muster_server.control.terminal import sparks
from muster_server.control.terminal.found import Target
from muster_server.systems.messages.cli import commands
from muster_server.systems.messages.shapes import Stats

FIGURES = ("accepted", "fired", "retries", "dead", "withdrawn", "lateness_p50_ms", "lateness_p99_ms", "callback_ms")


def minute(number: int, **figures: float | None) -> dict[str, Any]:
    return {"minute": 1_700_000_000_000 + 60_000 * number} | dict.fromkeys(FIGURES, 0) | figures


@pytest.mark.parametrize(("draws", "line", "block"), [(True, "▁█", "█"), (False, None, "#")])
def test_figures_come_with_lines_and_bars_that_the_terminal_can_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], draws: bool, line: str | None, block: str
) -> None:
    minutes = [minute(0, accepted=1, callback_ms=None), minute(1, accepted=9, callback_ms=None)]
    found = Stats(topic="orders", minutes=minutes, backlog={"now": 0, "1m": 8, "1h": 2}, pending=10, more=False)
    monkeypatch.setattr(commands, "ask", lambda *_: found)
    monkeypatch.setattr(sparks, "drawn", lambda: draws)
    assert commands.stats(Target(), "orders", as_json=False) == 0
    said = capsys.readouterr().out
    assert ("lately" in said) is draws
    assert line is None or line in said
    assert f"1m {block * commands.BAR} 8" in said
    assert f"1h {block * (commands.BAR // 4)} " in said
    assert "now" not in said
