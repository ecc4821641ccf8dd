"""The clients that `scripts/clients.sh` makes, run against an instance: publish, history, likes, a delayed message, a list
by cursors. The generators are those of `scripts/setup.sh --tests`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.documents import ROOT, fenced
from tests.faults.instance import Instance, configuration
from tests.faults.test_http import make_key
from tests.waiting import PATIENT_S

TOOLS: Final = ROOT / ".tools" / "clients"
PROGRAMS: Final = ROOT / "examples" / "clients"
PAGE: Final = (ROOT / "docs" / "http.md").read_text()
MEND: Final = "needs the generators of clients; to get them: scripts/setup.sh --tests (with Node.js 18 and npm)"


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated clients."""
    if not (TOOLS / "stamp").is_file():
        if os.environ.get("CI") == "true":
            pytest.fail(MEND)
        pytest.skip(MEND)
    folder = tmp_path_factory.mktemp("clients")
    ran([str(ROOT / "scripts" / "clients.sh"), str(folder)])
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of an instance with the topic `orders`, and a key for everything."""
    instance = Instance(
        tmp_path_factory.mktemp("served"),
        configuration(database={"url": "none"}, probes={"every_ms": 0}, systems={"enabled": "messages,likes,http"}),
    )
    with instance.running():
        made = instance.ran("topic", "create", "orders", "--callback", "pull:")
        assert made.returncode == 0, made.stderr
        url: str = json.loads(instance.ran("status", "--json").stdout)["systems"]["http"]["url"]
        yield url, make_key(instance)


def ran(words: list[str], environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> str:
    """What a program prints."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=3 * PATIENT_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def python(clients: Path, served: tuple[str, str]) -> Any:
    path = os.pathsep.join([str(clients / "python"), str(TOOLS / "python")])
    return json.loads(ran([sys.executable, str(PROGRAMS / "case.py"), *served], {"PYTHONPATH": path}))


def typescript(clients: Path, served: tuple[str, str]) -> Any:
    """Its types are checked first."""
    folder = clients / "typescript"
    (folder / "node_modules").symlink_to(TOOLS / "typescript" / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(PROGRAMS / "case.ts", folder)
    checks = ["--strict", "--noEmitOnError", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom"]
    ran(["node", "node_modules/typescript/bin/tsc", *checks, "case.ts"], folder=folder)
    return json.loads(ran(["node", "case.js", *served], folder=folder))


def test_both_clients_publish_read_like_delay_and_list(clients: Path, served: tuple[str, str]) -> None:
    users = [str(user) for user in range(5)]
    said = python(clients, served)
    told = {"likers": users, "state": "scheduled", "problem": "bad_room_name"}
    assert said == {**told, "history": ["goal"], "data": {"order": 7}}
    said = typescript(clients, served)
    assert said == {**told, "history": ["goal", "second"], "data": {"order": 8}}


def test_the_page_shows_what_the_programs_run() -> None:
    for language, program in (("python", "case.py"), ("ts", "case.ts")):
        example = (PROGRAMS / program).read_text().partition("begin of the example\n")[2]
        example = example.partition(f"{'#' if language == 'python' else '//'} end of the example")[0].strip()
        assert example in [each.strip() for each in fenced(PAGE, language)]
