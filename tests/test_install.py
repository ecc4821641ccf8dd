"""`pip install` into an empty environment, as a user does it: wheels of what is built here, and everything from source."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.documents import ROOT, fenced
from tests.waiting import PATIENT_S

README: Final = (ROOT / "README.md").read_text()
ABOUT: Final = """
from importlib.metadata import distributions, files, requires
print(sorted({each.name for each in distributions()} - {"pip", "setuptools"}))
print(sorted({file.parts[0] for file in files("muster")}))
print(requires("muster"))
"""
LOADS: Final = """
from importlib import import_module
from muster_server.plane import systems
for system in systems.named().values():
    for named in (system.commands, system.check, system.doctor, system.demo, system.http):
        if named:
            import_module(named.partition(":")[0])
"""
"""Loads the words, checks and routes of all systems, which every process of the command or of HTTP has."""
BUILD: Final = "import sys; from importlib import import_module; import_module(sys.argv[1]).build_wheel(sys.argv[2])"
BIN: Final = Path(sys.executable).parent
PACKAGES: Final = ("control", "plane", "pyext", "systems")
ENGINE_BYTES_MAX: Final = 2_000_000
"""Of the library's compiled module."""
WITHOUT_SERVERS: Final = """
import asyncio
import muster.testing
try:
    asyncio.run(muster.testing.instance().__aenter__())
except ModuleNotFoundError as error:
    print(error)
"""
CODE: Final = (".py", ".pyi", "py.typed", ".html", ".js", ".css", ".svg", "zh.json", ".LICENSE", "LICENCES.txt")
"""The ends of the names of what a wheel has beside compiled modules."""


class Environment:
    """A Python with nothing but pip, and no sight of this tree."""

    def __init__(self, path: Path) -> None:
        venv.create(path / "venv", with_pip=True)
        self.path, self.bin = path, path / "venv" / "bin"

    def install(self, *what: Path | str) -> None:
        """`pip install`."""
        self(self.bin / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *what)

    def __call__(self, *words: str | Path, **environment: str) -> str:
        return run(words, self.path, self.environment(**environment))

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of its programs."""
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", *(name for name in os.environ if name.startswith("MUSTER_"))}
        return {name: value for name, value in os.environ.items() if name not in hidden} | more


def run(words: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path, *ends: str) -> set[str]:
    """The files below a package whose names end so, else those that its wheel must have, from above the package."""
    found = {file for file in folder.rglob("*") if file.name.endswith(ends or CODE)}
    maps = set() if ends else set(folder.rglob("assets/vendor/maps/*.json"))
    return {str(file.relative_to(folder.parent)) for file in found | maps}


def as_built(tree: Path) -> Path:
    """A copy of what the server's wheel is made of, whose kernels are newer than their sources; cargo compares its own."""
    left_out = shutil.ignore_patterns(
        ".*", "bench", "core", "tests", "build", "dist", "docs", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
    (tree / "core").symlink_to(ROOT / "core")
    (tree / "setup.cfg").write_text("[build]\nbuild_lib = built\n")
    for source in tree.glob("pyext/**/*.c"):
        source.touch()
    for module in tree.glob("pyext/**/*.so"):
        place = tree / "built" / "muster_server" / module.relative_to(tree)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, place)
    return tree


pytestmark = pytest.mark.timeout(3600)  # builds of Rust, also where each process has a fifth of a processor


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of `muster` and `muster-server`, of what `scripts/setup.sh` has compiled, with the tags of auditwheel."""
    path = tmp_path_factory.mktemp("wheels")
    (path / "linux").mkdir()
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    for backend, source in (("maturin", ROOT / "core"), ("setuptools.build_meta", as_built(path / "tree"))):
        run([sys.executable, "-c", BUILD, backend, path / "linux"], source, environment)
    built = sorted((path / "linux").glob("*.whl"))
    run([BIN / "auditwheel", "repair", "--patcher", "none", "--wheel-dir", path / "dist", *built], path)
    return sorted((path / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("empty"))


def judge_tags(wheels: list[Path]) -> None:
    """The library's wheel is for every CPython, the server's for this one; each has the tag that auditwheel finds."""
    library, server = (wheel.name.split("-") for wheel in wheels)
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert (library[0], library[2:4]) == ("muster", ["cp311", "abi3"])
    assert (server[0], server[2:4]) == ("muster_server", [own, own])
    for wheel, tags in zip(wheels, (library[4], server[4]), strict=True):
        found = json.loads(run([BIN / "auditwheel", "show", "--json", wheel], wheel.parent))
        assert found["overall_tag"] in tags.removesuffix(".whl").split(".")
        assert found["overall_tag"].startswith("manylinux")


def judge_files(wheels: list[Path]) -> None:
    """A wheel has every file of the program, its compiled modules and the licence, and nothing else."""
    kernels = {f"muster_server/{name.removesuffix('.pyx')}" for name in files(ROOT / "pyext", ".pyx")}
    library, server = files(ROOT / "core" / "python" / "muster"), files(ROOT / "src" / "muster_server")
    for folder in PACKAGES:
        server |= {f"muster_server/{name}" for name in files(ROOT / folder)}
    compiled = {"muster/_core"}, kernels | {"muster_server/_engines"}
    for wheel, modules, program in zip(wheels, compiled, (library, server), strict=True):
        with zipfile.ZipFile(wheel) as archive:
            names = {name for name in archive.namelist() if not name.endswith("/")}
        about = {name for name in names if ".dist-info/" in name}
        built = {name for name in names if name.endswith(".so")}
        assert {name.partition(".")[0] for name in built} == modules
        assert names - about - built == program
        assert any(name.endswith("licenses/LICENSE") for name in about)


def test_a_wheel_has_the_tag_that_it_fits_and_every_file_of_the_program(wheels: list[Path]) -> None:
    judge_tags(wheels)
    judge_files(wheels)


def test_the_library_brings_the_engine_of_a_client_alone(wheels: list[Path]) -> None:
    with zipfile.ZipFile(wheels[0]) as archive:
        (engine,) = (each for each in archive.infolist() if each.filename.endswith(".so"))
    assert engine.file_size <= ENGINE_BYTES_MAX


def test_the_wheels_install_without_a_compiler_and_run_what_the_readme_shows(
    wheels: list[Path], empty: Environment
) -> None:
    library, server = wheels
    empty.install(library)
    judge_library(empty)
    empty.install(f"{server}[http]")
    judge_server(empty)


def judge_library(empty: Environment) -> None:
    """The library alone, without dependencies."""
    named, names, wanted = empty(empty.bin / "python", "-I", "-c", ABOUT).splitlines()
    assert named == "['muster']"
    assert re.fullmatch(r"\['muster', 'muster-[\d.]+\.dist-info'\]", names)
    assert all("extra ==" in each for each in ast.literal_eval(wanted))
    (said,) = empty(empty.bin / "python", "-I", "-c", WITHOUT_SERVERS).splitlines()
    assert said.endswith("pip install 'muster[testing]'")


def judge_server(empty: Environment) -> None:
    """The command, a demo with the HTTP face, a reader, and the README's example beside it."""
    command, folder = empty.bin / "muster", str(empty.path / "instance")
    assert re.fullmatch(r"\d+\.\d+\.\d+, protocols? [\d to]+\n", empty(command, "version"))
    empty(empty.bin / "python", "-I", "-c", LOADS)
    chosen = {"MUSTER_INSTANCE__DIR": folder}
    words: list[str | Path] = [command, "up", "--demo", "--members", "5", "--with", "http"]
    up = subprocess.Popen(
        words,
        cwd=empty.path,
        env=empty.environment(**chosen),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert up.stdout is not None
        begun = first_figures(up.stdout)
        assert first_line(empty, [command, "sub", "demo"], chosen)
        (example,) = fenced(README, "python")
        said = empty(empty.bin / "python", "-I", "-c", example, **chosen)
        assert re.fullmatch(r"sports:final (\S+:1) 1 b'goal' \1\n", said)
        url = json.loads(empty(command, "status", "--json", **chosen))["systems"]["http"]["url"]
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
        up.send_signal(signal.SIGINT)
        ended = up.communicate(timeout=PATIENT_S)[0]
    finally:
        up.kill()
        up.communicate()
    assert (up.returncode, "every member got every message" in ended) == (0, True), begun + ended


def first_figures(lines: Iterator[str]) -> str:
    """The output of `up --demo` up to its first row of figures, when all nodes serve."""
    said = ""
    for line in lines:
        said += line
        if re.match(r"\s*\d", line):
            return said
    raise AssertionError(said)


def first_line(empty: Environment, words: list[str | Path], chosen: dict[str, str]) -> str:
    """The first line of a command that streams; Ctrl-C ends it."""
    with subprocess.Popen(words, env=empty.environment(**chosen), stdout=subprocess.PIPE, text=True) as streams:
        assert streams.stdout is not None
        line = streams.stdout.readline()
        streams.send_signal(signal.SIGINT)
        streams.communicate(timeout=PATIENT_S)
    assert streams.returncode == 0
    return line


@pytest.mark.soak
def test_the_library_and_the_server_install_from_source(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    built = shutil.ignore_patterns(".*", "core", "tests", "build", "dist", "*.egg-info", "*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=built)
    (tree / "core").symlink_to(ROOT / "core")
    fresh = Environment(tmp_path)
    fresh.install(ROOT / "core")
    judge_library(fresh)
    fresh.install(ROOT / "core", f"{tree}[http]")
    judge_server(fresh)


@pytest.mark.soak
def test_make_dist_in_a_clone_makes_wheels_and_archives_that_install_everywhere(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in run(["git", "ls-files"], ROOT).splitlines():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    run(["make", "dist"], tree)
    dist = tree / "dist"
    wheels = sorted(dist.glob("*.whl"))
    judge_tags(wheels)
    judge_files(wheels)
    by_hand, by_archive = Environment(tmp_path / "wheels"), Environment(tmp_path / "archives")
    by_hand.install(*wheels)
    by_hand.install(
        "muster-server[database,fleet,http,kafka,likes,messages,presence]"
    )  # as they are there: their libraries
    judge_server(by_hand)
    by_archive.install(*sorted(dist.glob("*.tar.gz")))
    assert re.fullmatch(r"\d+\.\d+\.\d+, protocols? [\d to]+\n", by_archive(by_archive.bin / "muster", "version"))
    assert len(list(dist.iterdir())) == 4
