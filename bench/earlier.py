"""This tree's build beside the build of an earlier commit, in turns: which goals' figures became worse.

Owns the earlier tree and the judgement. Each bench runs as a program of its own tree; it must not know what it measures.
"""

import math
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.every import ask, parsed
from bench.progress import Progress
from bench.report import Case, Goal, Report, Sense
from bench.rounds import Series, VoidRunError

HERE: Final = Path(__file__).parents[1]
BASELINE: Final = HERE / "bench" / "baseline"
"""Names the commit that `make bench-check` compares with."""
TREES: Final = HERE / ".tools" / "baseline"
CHEAP: Final = ("fanout", "receive", "hops", "likes")
"""Benches that take less than a minute for a quick round and judge most of a message's way."""
RENAMED: Final = {"delay": "messages"}
"""Earlier words of benches, which an earlier tree may have, and their words now."""
WORSE: Final = 0.10
"""A figure may be worse by this share, or by less than its spread."""
Run = Callable[[Path, str], Report]


class NoBaseline(Exception):
    """The earlier commit cannot be found or built. The text is one line."""


@dataclass(frozen=True)
class Figure:
    """A goal's figure of one run: the ratio, or the value where the goal is on the value itself."""

    goal: Goal
    value: float


def baseline() -> str:
    """The commit that the tree names. Raises `NoBaseline`."""
    try:
        return BASELINE.read_text().split()[0]
    except (OSError, IndexError):
        raise NoBaseline(f"{BASELINE.relative_to(HERE)} names no commit; give one with --baseline") from None


def built(revision: str, say: Callable[[str], None]) -> Path:
    """The tree of a commit, built below `.tools`; a tree that was built before is used again. Raises `NoBaseline`."""
    commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").stdout.decode().strip()
    if not commit:
        raise NoBaseline(f"unknown commit {revision!r}; in a shallow clone: git fetch --unshallow")
    tree = TREES / commit[:12]
    if (tree / ".built").exists():
        return tree
    say(f"building {commit[:12]} in {tree.relative_to(HERE)}: about 4 minutes")
    shutil.rmtree(TREES, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = _git("archive", "--format=tar", commit)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    done = subprocess.run(
        ["scripts/setup.sh"], cwd=tree, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NoBaseline(f"{commit[:12]} cannot be built: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    (tree / ".built").touch()
    return tree


def measured(tree: Path, name: str) -> Report:
    """One quick round of a bench by the programs of a tree. Raises `VoidRunError` and `OSError`."""
    done = ask([_word(tree, name), "--quick", "--rounds", "1", "--json", "--no-progress"], tree)
    report = parsed(done.stdout)
    if report is None:
        why = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise OSError(f"{name} in {tree.name}: {why}")
    if report.void:
        raise VoidRunError(f"{name} in {tree.name}: {report.void}")
    return report


def _word(tree: Path, name: str) -> str:
    """The word of a bench in a tree."""
    earlier = (old for old, new in RENAMED.items() if new == name and (tree / "bench" / f"{old}.py").exists())
    return next(earlier, name)


def compare(
    names: Sequence[str], earlier: Path, rounds: int, progress: Progress, run: Run = measured, now: Path = HERE
) -> tuple[Case, ...]:
    """Each bench in both trees, in turning order. One case for each goal's figure that both trees have."""
    with progress(len(names) * rounds * 2) as step:
        return tuple(case for name in names for case in _compared(name, earlier, now, rounds, step, run))


def _compared(
    name: str, earlier: Path, now: Path, rounds: int, step: Callable[[str], None], run: Run
) -> Iterator[Case]:
    figures: dict[Path, list[dict[str, Figure]]] = {earlier: [], now: []}
    void = ""
    for number in range(rounds):
        for tree in (earlier, now) if number % 2 == 0 else (now, earlier):
            step(f"{name}  round {number + 1}/{rounds}  {'this tree' if tree == now else 'earlier'}")
            try:
                figures[tree].append(_figures(run(tree, name)))
            except VoidRunError as error:
                figures[tree].append({})
                void = str(error)
    goals = {case: figure.goal for each in figures[now] for case, figure in each.items()}
    for case, goal in goals.items():
        if any(case in each for each in figures[earlier]):
            mine, theirs = (_series(case, figures[tree]) for tree in (now, earlier))
            yield _judged(f"{name}: {case}", mine, theirs, goal)
    if not goals:
        yield Case.plain(name, Series((math.nan,), void or "no figure has a goal"))


def _series(case: str, rounds: Sequence[dict[str, Figure]]) -> Series:
    values = tuple(each[case].value if case in each else math.nan for each in rounds)
    return Series(values, "each round is void" if all(map(math.isnan, values)) else "")


def _figures(report: Report) -> dict[str, Figure]:
    return {
        case.name: Figure(Goal.parsed(case.goal), case.value if case.ratio is None else case.ratio)
        for case in report.cases
        if case.goal and not case.void
    }


def _judged(name: str, mine: Series, theirs: Series, goal: Goal) -> Case:
    if mine.void or theirs.void:
        return Case.compared(name, mine, theirs, goal)
    if goal.bound == 0:  # a count of faults: no round may have more than the worst one before
        return Case.limit(name, Series((mine.max - theirs.max,)), Goal(goal.id, "<=", 0.0))
    sense: Sense = ">=" if goal.sense in {">=", ">"} else "<="
    bound = 1 - WORSE if sense == ">=" else 1 + WORSE
    case = Case.compared(name, mine, theirs, Goal(goal.id, sense, bound))
    meets = mine.max >= theirs.min if sense == ">=" else mine.min <= theirs.max
    return replace(case, holds=bool(case.holds) or meets)


def _git(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, check=False)
