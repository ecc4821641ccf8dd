"""The SDKs of Centrifuge as their package clients bring them: programs of ours that drive them, one line of JSON a case.

`scripts/setup.sh --tests` puts the packages into `.tools/sdks/`. The programs are in `programs/`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import PATIENT_S

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = Path(__file__).parent / "programs"
SDKS: Final = ROOT / ".tools" / "sdks"
NODE_MIN: Final = 18
GO_MIN: Final = (1, 25)
"""As `go.mod` of the SDK asks for."""
MEND: Final = {
    "js": f"needs Node.js {NODE_MIN} or newer with npm, and its packages; to get them: scripts/setup.sh --tests",
    "python": "needs the packages of the SDK; to get them: scripts/setup.sh --tests",
    "go": f"needs Go {GO_MIN[0]}.{GO_MIN[1]} or newer from https://go.dev/dl/; then: scripts/setup.sh --tests",
}


def need(sdk: str) -> None:
    """Skips if an SDK is missing, and fails where nothing may be."""
    if _is_there(sdk):
        return
    if os.environ.get("CI") == "true":
        pytest.fail(MEND[sdk])
    pytest.skip(MEND[sdk])


def _is_there(sdk: str) -> bool:
    match sdk:
        case "js":
            return _version("node", "--version") >= (NODE_MIN,) and (SDKS / "js" / "node_modules" / "ws").is_dir()
        case "python":
            return (SDKS / "python" / "centrifuge").is_dir()
        case _:
            return _version("go", "version") >= GO_MIN and (SDKS / "go" / "cases").is_file()


def _version(program: str, word: str) -> tuple[int, ...]:
    if shutil.which(program) is None:
        return ()
    said = subprocess.run([program, word], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    return () if found is None else tuple(map(int, found.groups()))


def command(sdk: str) -> tuple[list[str], dict[str, str]]:
    """The program of an SDK, and further variables of its environment."""
    match sdk:
        case "js":  # it finds its packages beside itself
            program = SDKS / "js" / "cases.mjs"
            shutil.copyfile(PROGRAMS / "js" / "cases.mjs", program)
            return ["node", str(program)], {}
        case "python":
            return [sys.executable, str(PROGRAMS / "python" / "cases.py")], {"PYTHONPATH": str(SDKS / "python")}
        case _:
            return [str(SDKS / "go" / "cases")], {}


@dataclass(frozen=True)
class Given:
    """The facts about a server that cases need."""

    token: str = "someone"
    other: str = "another"
    """A token of another user."""
    reader: str = "reader"
    """A token of a third user, with the right to read alone."""
    wrong: str = "wrong"
    expired: str = "expired"
    small: str = "smallhistory"
    """A namespace that keeps fewer than 300 messages."""
    enters: str = "enters"
    """A token of the first user whose client the server subscribes to `hall`."""
    hall: str = "smallhistory:hall"
    """A room of the namespace `small`."""


def names(sdk: str) -> set[str]:
    """All cases of a program."""
    words, environment = command(sdk)
    return set(json.loads(_output([*words, "names", "json", json.dumps(asdict(Given()))], environment)))


def run(sdk: str, url: str, encoding: str, given: Given, cases: Sequence[str]) -> dict[str, str | None]:
    """Runs these cases. Returns each one's error."""
    words, environment = command(sdk)
    return told([*words, url, encoding, json.dumps(asdict(given)), *cases], environment)


def told(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """The report of a program: each case's error. `environment`: further variables."""
    lines = [json.loads(line) for line in _output(words, environment).splitlines()]
    return {line["case"]: line.get("error") for line in lines}


def _output(words: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=PATIENT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, done.stderr
    return done.stdout
