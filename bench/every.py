"""All benches one after another, each in a process of its own, with one document for each in a folder.

A document that is in the folder already is used again, so a run that was interrupted goes on. Measures nothing itself.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.child import python_environment
from bench.progress import Progress
from bench.report import Report


@dataclass(frozen=True)
class Outcome:
    """One bench. `why`: the reason for which there is no document, or one with void figures."""

    name: str
    code: int
    report: Report | None = None
    why: str = ""


def ask(words: Sequence[str], tree: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a bench as a program, by this interpreter or by that of another built tree."""
    python = sys.executable if tree is None else str(tree / ".venv" / "bin" / "python")
    return subprocess.run(
        [python, "-m", "bench", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tree,
        env=python_environment() if tree is None else {**os.environ, "PYTHONPATH": str(tree)},
        check=False,
    )


def run(names: Sequence[str], folder: Path, *, quick: bool, progress: Progress) -> list[Outcome]:
    """Run these benches, or use their documents in `folder`. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    return list(_outcomes(names, folder, quick, progress))


def _outcomes(names: Sequence[str], folder: Path, quick: bool, progress: Progress) -> Iterator[Outcome]:
    with progress(len(names)) as step:
        for name in names:
            step(name)
            file = folder / f"{name}.json"
            if (before := _read(file)) is not None and _is_quick(before) == quick and not (before.void or before.gaps):
                yield Outcome(name, 0, before)
                continue
            done = ask([name, "--json", "--no-progress", *(["--quick"] if quick else [])])
            report = parsed(done.stdout)
            if report is not None:
                file.write_text(done.stdout)
            lines = done.stderr.strip().splitlines()
            ended = f"ended with {done.returncode} and no document"
            why = report.void or report.gaps if report is not None else (lines or [ended])[-1]
            yield Outcome(name, done.returncode, report, why)


def _read(file: Path) -> Report | None:
    try:
        return parsed(file.read_text())
    except FileNotFoundError:
        return None


def parsed(text: str) -> Report | None:
    """The document that a bench printed; None: it is none."""
    try:
        return Report.from_json(text)
    except (ValueError, KeyError, TypeError):
        return None


def _is_quick(report: Report) -> bool:
    """Return whether a document is of a quick run. A document of two loopbacks has a part for each."""
    run = report.machine.get("run")
    parts = [run, *run.values()] if isinstance(run, dict) else []
    return any(isinstance(part, dict) and part.get("quick") for part in parts)
