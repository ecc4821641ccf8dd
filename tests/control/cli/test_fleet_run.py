"""What `muster fleet run` says at the end: who was silent, who was asked instead, who gave no result."""

import pytest

from muster_server.systems.fleet.cli.run import _summary
from muster_server.systems.fleet.questions import Event


def test_the_summary_names_the_silent_and_those_asked_instead(capsys: pytest.CaptureFixture[str]) -> None:
    ended = Event("ended", "r@0", wanted=3, done=["a", "d"], replaced=["b"], missed=["c"])
    _summary(ended, [["d"]], 1.25)
    assert capsys.readouterr().err.splitlines() == [
        "r@0: 2 of 3 results from 4 clients in 1.2 s",
        "silent: b; asked instead: d",
        "no result: c",
    ]


def test_long_lists_are_cut_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"c{number}" for number in range(25)]
    _summary(Event("ended", "r@0", wanted=25, missed=names), [], 30.0)
    assert capsys.readouterr().err.splitlines()[1] == f"no result: {', '.join(names[:10])} and 15 more"
