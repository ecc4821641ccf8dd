"""The costs of the user's own machine: `muster load` runs against its instance, and the CPU of each role.

Owns the runs and the idle load that is subtracted. Each system names its runs and what follows from them (`RUNS` and
`measured` of its `size.py`).
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from muster_server.control.errors import UserError
from muster_server.control.load.report import Report
from muster_server.control.size.costs import Costs

IDLE: Final = ("rooms", "--members", "1", "--rooms", "1", "--publishers", "1", "--rate", "1", "--for", "8s")
RUN_S_MAX: Final = 90.0
UNITS: Final = 4
"""Significant digits of a cost."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A run: microseconds of CPU of each role beyond an idle instance, and the counts."""

    cpu_us: Mapping[str, float]
    sent: int
    done: int
    took_s: float


class Sized(Protocol):
    """The parts of a system's `size.py` for measuring."""

    RUNS: Sequence[Sequence[str]]
    """Words of `muster load` for each run."""
    measured: Callable[[Sequence[Work]], dict[str, float]]
    """The costs that follow from these runs."""


def costs(sized: Mapping[str, Any], config: Path | None, say: Callable[[str], None]) -> Costs:
    """Measure the costs of these systems. Raises `UserError`."""
    idle = _report(IDLE, config)
    missing = [role for role in ("gateway", "broker", "proxy") if role not in idle.cpu_s]
    if missing:
        raise UserError(
            "costs of a role need a process for each role, all on this machine; start the instance with "
            "muster up --apart --with likes,messages"
        )
    resting = {role: seconds / idle.took_s for role, seconds in idle.cpu_s.items()}
    systems: dict[str, dict[str, float]] = {}
    for name, size in sized.items():
        works = []
        for number, words in enumerate(size.RUNS, 1):
            say(f"measuring {name}, run {number} of {len(size.RUNS)}: muster load {' '.join(words)}")
            works.append(_work(_report(words, config), resting))
        systems[name] = {key: float(f"{value:.{UNITS}g}") for key, value in size.measured(works).items() if value > 0}
    return Costs(
        machine=_machine(), measured=datetime.now().astimezone().isoformat(timespec="seconds"), systems=systems
    )


def _work(report: Report, resting: Mapping[str, float]) -> Work:
    busy = {
        role: max(0.0, seconds - resting.get(role, 0.0) * report.took_s) * 1e6 for role, seconds in report.cpu_s.items()
    }
    return Work(
        cpu_us=busy,
        sent=max(1, report.counts[report.names.sent]),
        done=max(1, report.counts[report.names.done]),
        took_s=report.took_s,
    )


def _report(words: Sequence[str], config: Path | None) -> Report:
    command = [sys.executable, "-m", "muster_server.control.cli.main", "load", *words, "--json"]
    if config is not None:
        command += ["--config", str(config)]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=RUN_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"muster load {' '.join(words)}: no report within {RUN_S_MAX:g} s") from None
    try:
        return msgspec.json.decode(ran.stdout, type=Report)
    except msgspec.DecodeError:
        said = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"muster load {' '.join(words)}: {said or 'no report'}") from None


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()[:80]
    return "unknown"
