"""`pip install` into an empty environment, as a user does it: the library alone, and the server with its command."""

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.documents import ROOT, fenced
from tests.faults.instance import Instance, configuration

README: Final = (ROOT / "README.md").read_text()
ABOUT: Final = """
from importlib.metadata import distributions, files, requires
print(sorted({each.name for each in distributions()} - {"pip", "setuptools"}))
print(sorted({file.parts[0] for file in files("muster")}))
print(requires("muster"))
"""


class Environment:
    """A Python with nothing but pip, and no sight of this tree."""

    def __init__(self, path: Path) -> None:
        venv.create(path / "venv", with_pip=True)
        self.path, self.bin = path, path / "venv" / "bin"

    def install(self, *what: Path) -> None:
        """`pip install`."""
        self(self.bin / "pip", "install", "--quiet", "--disable-pip-version-check", *what)

    def __call__(self, *words: str | Path, **environment: str) -> str:
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", *(name for name in os.environ if name.startswith("MUSTER_"))}
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return run(words, self.path, kept | environment)


def run(words: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_library_installs_alone_and_runs_the_example_of_the_readme(tmp_path: Path) -> None:
    empty = Environment(tmp_path)
    empty.install(ROOT / "core")
    python = empty.bin / "python"
    named, names, wanted = empty(python, "-I", "-c", ABOUT).splitlines()
    assert named == "['muster']"
    assert re.fullmatch(r"\['muster', 'muster-[\d.]+\.dist-info'\]", names)
    assert wanted == "None"
    (example,) = fenced(README, "python")
    instance = Instance(tmp_path, configuration())
    with instance.running():
        said = empty(python, "-I", "-c", example, MUSTER_INSTANCE__DIR=str(instance.folder.path))
    assert re.fullmatch(r"sports:final (\S+:1) 1 b'goal' \1\n", said)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_server_installs_with_it_and_its_command_works(tmp_path: Path) -> None:
    empty, tree = Environment(tmp_path), tmp_path / "tree"
    built = shutil.ignore_patterns(".*", "core", "tests", "build", "*.egg-info", "*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=built)
    empty.install(ROOT / "core", tree)
    command, folder = empty.bin / "muster", str(tmp_path / "instance")
    assert re.fullmatch(r"\d+\.\d+\.\d+, protocol 1\n", empty(command, "version"))
    said = empty(command, "up", "--demo", "--for", "2", "--members", "5", MUSTER_INSTANCE__DIR=folder)
    assert "every member got every message" in said
    assert "--quick" in empty(command, "bench", "fanout", "--help")
