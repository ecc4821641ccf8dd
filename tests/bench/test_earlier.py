"""A tree beside an earlier one: what counts as worse, and where the earlier tree comes from."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import cli, earlier
from bench.progress import silent
from bench.report import Case, Goal, Report
from bench.rounds import Series

THEN, NOW = Path("/then"), Path("/now")
MORE, LESS, NONE = Goal("PF-1", ">=", 5.0), Goal("PF-2", "<=", 2.0), Goal("PF-10", "<=", 0.0)


class Trees:
    """Two trees, whose benches give these values one after the other."""

    def __init__(self, goal: Goal, then: list[float], now: list[float]) -> None:
        self.order: list[Path] = []
        self._goal = goal
        self._values: dict[Path, Iterator[float]] = {THEN: iter(then), NOW: iter(now)}

    def run(self, tree: Path, name: str) -> Report:
        self.order.append(tree)
        series = Series((next(self._values[tree]),))
        new = () if tree == THEN else (Case.limit("only here", series, self._goal),)
        return Report(name, {}, (Case.limit("figure", series, self._goal), Case.plain("not judged", series), *new))


@pytest.mark.parametrize(
    ("goal", "then", "now", "holds"),
    [
        (MORE, [10.0, 10.5, 9.5], [8.0, 8.1, 8.2], False),
        (MORE, [10.0, 10.5, 9.5], [9.1, 9.2, 9.3], True),  # worse in each round, by less than a tenth
        (MORE, [10.0, 10.5, 8.0], [8.0, 8.1, 8.2], True),  # the ranges meet
        (MORE, [10.0, 10.5, 9.5], [20.0, 21.0, 19.0], True),
        (LESS, [1.0, 1.1, 1.05], [1.3, 1.31, 1.32], False),
        (LESS, [1.0, 1.1, 1.05], [0.3, 0.31, 0.32], True),
        (NONE, [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], False),
        (NONE, [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], True),
    ],
)
def test_a_figure_is_worse_where_each_round_is_and_by_over_a_tenth(
    goal: Goal, then: list[float], now: list[float], holds: bool
) -> None:
    trees = Trees(goal, then, now)
    cases = earlier.compare(["fanout"], THEN, 3, silent, trees.run, NOW)
    assert [(case.name, case.holds) for case in cases] == [("fanout: figure", holds)]
    assert trees.order == [THEN, NOW, NOW, THEN, THEN, NOW]


@pytest.mark.parametrize("word", ["delay", "messages"])
def test_a_tree_is_asked_by_its_own_word_for_a_bench(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / f"{word}.py").touch()
    document = Report("any", {}, ()).as_json()
    asked: list[str] = []

    def ask(words: list[str], _: Path) -> subprocess.CompletedProcess[str]:
        asked.append(words[0])
        return subprocess.CompletedProcess(words, 0, document, "")

    monkeypatch.setattr(earlier, "ask", ask)
    earlier.measured(tmp_path, "messages")
    assert asked == [word]


def test_a_commit_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    (tree / "scripts" / "setup.sh").write_text("#!/bin/sh\necho built >> log\n")
    (tree / "scripts" / "setup.sh").chmod(0o755)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one"],
        ["tag", "v1"],
    ):
        subprocess.run(["git", "-C", str(tree), *words], check=True)
    monkeypatch.setattr(earlier, "HERE", tree)
    monkeypatch.setattr(earlier, "TREES", tree / ".tools" / "baseline")
    said: list[str] = []
    first, second = earlier.built("v1", said.append), earlier.built("v1", said.append)
    assert first == second
    assert ((first / "log").read_text(), len(said)) == ("built\n", 1)
    with pytest.raises(earlier.NoBaseline, match="unknown commit 'v2'"):
        earlier.built("v2", said.append)
    (tree / "scripts" / "setup.sh").write_text("#!/bin/sh\necho no compiler >&2\nexit 69\n")
    subprocess.run(
        ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "two"], check=True
    )
    for _ in range(2):
        with pytest.raises(earlier.NoBaseline, match="cannot be built: no compiler"):
            earlier.built("HEAD", said.append)


def test_the_command_exits_1_where_a_figure_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, compare = CliRunner(), earlier.compare
    monkeypatch.setattr(earlier, "built", lambda *_: THEN)
    for now, code in (([8.0, 8.0], 1), ([10.0, 10.0], 0)):
        trees = Trees(MORE, [10.0, 10.0], now)
        cases = compare(["fanout"], THEN, 2, silent, trees.run, NOW)
        monkeypatch.setattr(earlier, "compare", partial(_given, cases))
        assert runner.invoke(cli.app, ["compare", "--rounds", "2", "fanout"]).exit_code == code
    assert runner.invoke(cli.app, ["compare", "nothing"]).exit_code == 2


def test_the_baseline_is_a_commit_of_this_tree() -> None:
    commit = earlier.baseline()
    assert len(commit) >= 12
    if earlier._git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
        pytest.skip("no whole history here")
    assert earlier._git("cat-file", "-t", commit).stdout == b"commit\n"


def _given(cases: tuple[Case, ...], *_: object) -> tuple[Case, ...]:
    return cases
