"""`scripts/test.sh` with stand-ins for what it runs: a failure of any of them is a failure, the last line counts all tests,
and nothing outlives it.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import PATIENT_S

ROOT: Final = Path(__file__).parents[1]
AUTOGROUP: Final = "/proc/self/autogroup"
PASSED: Final = "echo PASSED"
PYTEST: Final = """
for word; do case $word in --junitxml=*) results=${word#*=} ;; esac; done
report() {
    printf '<testsuites><testsuite tests="%d" failures="%d" errors="%d" skipped="%d"/></testsuites>' $* >"$results"
}
"""
"""The beginning of a stand-in for pytest. `report TESTS FAILURES ERRORS SKIPPED` writes results."""
GROUPS: Final = ("others", "control", "faults", "bench")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in which every part passes."""
    for part in ("scripts/setup.sh", "scripts/lint.sh", "scripts/rust.sh", "bin/cargo"):
        stands_in(tmp_path / part, PASSED)
    stands_in_for_pytest(tmp_path, f"{PASSED}; report 5 0 0 1")
    for script in ("test.sh", "words.sh"):
        shutil.copy(ROOT / "scripts" / script, tmp_path / "scripts")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "closing.py", tmp_path / "tests")
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def stands_in_for_pytest(tree: Path, program: str, group: str = "") -> None:
    """In one group alone, if that is named."""
    file = tree / ".venv/bin/pytest"
    if group:
        passes = f"{PASSED}; report 5 0 0 1"
        program = f"case $results in */{group}.xml) {program} ;; *) {passes} ;; esac"
    stands_in(file, PYTEST + program)


def stands_in(file: Path, program: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{program}\n")
    file.chmod(0o755)


def run(tree: Path, *words: str) -> tuple[int, str]:
    """The exit code, and all output. A shell's background jobs have Ctrl-C ignored, and could not trap it."""
    suite = subprocess.run(
        ["env", "--default-signal=INT", tree / "scripts" / "test.sh", *words],
        env={**os.environ, "PATH": f"{tree / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    return suite.returncode, suite.stdout


def last_line(said: str) -> str:
    return said.splitlines()[-1]


SCRIPTS: Final = sorted(file.name for file in (ROOT / "scripts").glob("*.sh") if file.name != "words.sh")


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_says_what_it_does_and_does_nothing_else_when_asked_for_help(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = words(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    head = (ROOT / "scripts" / name).read_text().splitlines()[1]
    assert done.stdout.splitlines()[0] == head.removeprefix("# ")
    assert "set -" not in done.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scripts"]


@pytest.mark.parametrize(
    "name", [each for each in SCRIPTS if each not in {"fuzz.sh", "portal.sh", "run.sh", "test.sh"}]
)
def test_a_script_refuses_a_word_that_it_does_not_know(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = words(tmp_path, name, "--tset")
    assert done.returncode == 2
    assert done.stderr.endswith(f"scripts/{name}: unknown word: --tset; see {tmp_path}/scripts/{name} --help\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scripts"]


def words(tree: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "scripts" / name, *words],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )


def test_where_all_pass_the_suite_does_and_the_last_line_counts_all(tree: Path) -> None:
    stands_in_for_pytest(tree, 'report 5 0 0 1; echo "pytest $*"')
    stands_in(tree / "scripts/rust.sh", "sleep 0.2; echo late")
    code, said = run(tree)
    assert (code, said.count("PASSED"), said.count("late\n")) == (0, 3, 1), said
    assert last_line(said) == "16 passed, 0 failed, 4 skipped"
    assert said.count("pytest -m not soak --durations=10") == len(GROUPS)


def test_each_test_belongs_to_one_group_and_what_measures_runs_alone_after_all_else(tree: Path) -> None:
    stands_in_for_pytest(tree, 'report 5 0 0 1; echo "$*" >>began; sleep 0.2; echo ended >>began')
    stands_in(tree / "scripts/rust.sh", "sleep 0.5; echo rust ended >>began")
    assert run(tree)[0] == 0
    told = (tree / "began").read_text().splitlines()
    words = [" ".join(word for word in line.split() if "tests" in word) for line in told if "tests" in line]
    control = [f"tests/{name}" for name in ("console", "control", "http", "likes", "portal", "probes", "rooms")]
    ignored = " ".join(f"--ignore={name}" for name in [*control, "tests/faults", "tests/bench"])
    assert sorted(words[:3]) == [f"tests {ignored}", " ".join(control), "tests/faults"]
    assert words[3:] == ["tests/bench"]
    assert "rust ended" in told[: next(place for place, line in enumerate(told) if line.endswith(" tests/bench"))]


def test_words_are_for_one_pytest_in_place_of_the_groups(tree: Path) -> None:
    stands_in_for_pytest(tree, 'report 5 0 0 0; echo "pytest $*"')
    code, said = run(tree, "-k", "these", "tests/sdk")
    assert (code, said.count("pytest -m not soak"), last_line(said)) == (0, 1, "5 passed, 0 failed")
    assert "-k these tests/sdk\n" in said


@pytest.mark.parametrize(
    ("part", "name"),
    [("scripts/lint.sh", "scripts/lint.sh"), ("bin/cargo", "cargo-test"), ("scripts/rust.sh", "scripts/rust.sh")],
)
def test_one_that_fails_fails_the_suite_and_the_others_run_nevertheless(tree: Path, part: str, name: str) -> None:
    stands_in(tree / part, "echo it is wrong; exit 7")
    code, said = run(tree)
    assert (code, said.count("it is wrong"), said.count("PASSED")) == (1, 1, 7), said
    assert f"FAILED {name}: see what it printed above\n" in said
    assert last_line(said) == "16 passed, 1 failed, 4 skipped"


@pytest.mark.parametrize(
    ("group", "program", "line"),
    [
        ("others", "report 5 1 0 1; exit 1", "15 passed, 1 failed, 4 skipped"),
        ("control", "report 5 1 0 1; exit 1", "15 passed, 1 failed, 4 skipped"),
        ("faults", "report 5 1 0 1; exit 1", "15 passed, 1 failed, 4 skipped"),
        ("bench", "report 5 1 0 1; exit 1", "15 passed, 1 failed, 4 skipped"),
        ("faults", "report 5 0 2 1; exit 1", "14 passed, 2 failed, 4 skipped"),
        ("others", "report 0 0 0 0; exit 5", "12 passed, 1 failed, 3 skipped"),
        ("faults", "report 5 0 0 1; exit 3", "16 passed, 1 failed, 4 skipped"),
        ("others", "report 5 0 0 1; exit 1", "16 passed, 1 failed, 4 skipped"),
        ("bench", "report 0 0 0 0", "12 passed, 1 failed, 3 skipped"),
        ("others", "kill -KILL $$", "12 passed, 1 failed, 3 skipped"),
        ("faults", "kill -KILL $$", "12 passed, 1 failed, 3 skipped"),
        ("bench", "echo '<testsuites>' >$results; exit 1", "12 passed, 1 failed, 3 skipped"),
        ("others", "true", "12 passed, 1 failed, 3 skipped"),
    ],
)
def test_a_pytest_that_fails_collects_nothing_or_crashes_fails_the_suite(
    tree: Path, group: str, program: str, line: str
) -> None:
    stands_in_for_pytest(tree, program, group)
    code, said = run(tree)
    assert (code, last_line(said), said.count("PASSED")) == (1, line, 7), said


def test_without_a_setup_nothing_runs(tree: Path) -> None:
    stands_in(tree / "scripts/setup.sh", "echo no compiler; exit 5")
    assert run(tree) == (5, "no compiler\n")


@pytest.mark.parametrize(("free_kib", "built", "code"), [(3 << 20, False, 69), (3 << 20, True, 0), (1 << 20, True, 69)])
def test_without_room_on_the_disk_nothing_runs(tree: Path, free_kib: int, built: bool, code: int) -> None:
    stands_in(tree / "bin/df", f"echo header; echo /dev/disk 0 0 {free_kib} 99% /")
    if built:
        (tree / "core/target/debug/deps").mkdir(parents=True)
    ended, said = run(tree)
    assert ended == code
    if code:
        folder, needs = (os.environ.get("TMPDIR", "/tmp"), 2) if built else (".", 6)
        assert said.endswith(f"the suite needs {needs} GiB in {folder}, which has {free_kib >> 20} GiB free\n"), said


@pytest.mark.skipif(not os.access(AUTOGROUP, os.W_OK), reason="Linux shares processors without regard to sessions")
def test_what_runs_beside_pytest_is_the_last_of_all_sessions(tree: Path) -> None:
    stands_in(tree / "scripts/rust.sh", f"cat {AUTOGROUP}")
    assert "nice 19" in run(tree)[1]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_beside_pytest_ends_with_the_suite(tree: Path, end: signal.Signals) -> None:
    # A shell that must end just before it starts its child would wait for that child: so it has started it already.
    rust = "trap 'sleep 0.3; exit 1' TERM; sleep 60 & echo $$ > rust.pid; wait; echo never"
    stands_in(tree / "scripts/rust.sh", rust)
    # Only Ctrl-C makes pytest stop the children of its tests.
    others = "sleep 60 & echo $$ > pytest.pid; trap 'sleep 0.3; kill $!; exit 2' INT; wait; echo never"
    faults = f"while ! [ -s rust.pid ] || ! [ -s pytest.pid ]; do sleep 0.01; done; kill -{end:d} $PPID"
    stands_in(tree / ".venv/bin/pytest", f'case "$*" in *\\ tests/faults) {faults} ;; *) {others} ;; esac')
    code, said = run(tree)
    assert code == 128 + end
    assert "never" not in said
    for file in ("rust.pid", "pytest.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tree / file).read_text()), 0)


def test_a_test_that_keeps_figures_passes_where_results_are_written_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_figures.py").write_text("def test_it(record_property):\n    record_property('took_s', 1)\n")
    results = tmp_path / "results.xml"
    words = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--junitxml={results}", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 0, done.stdout
    assert "took_s" in results.read_text()
    counting = [sys.executable, "-m", "tests.closing", f"{results}:0"]
    assert (
        subprocess.run(counting, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1 passed, 0 failed\n"
    )


def test_the_last_lines_name_each_failed_test_each_that_left_a_handle_open_and_each_other_part(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import asyncio\n\n\n"
        "async def test_leaves_a_server_open():\n"
        "    await asyncio.get_running_loop().create_server(asyncio.Protocol, '127.0.0.1', 0)\n\n\n"
        "def test_is_wrong():\n"
        "    assert 1 == 2, 'one is not two'\n"
    )
    results = tmp_path / "results.xml"
    words = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--junitxml={results}", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.returncode == 1
    counting = [sys.executable, "-m", "tests.closing", f"{results}:1", "scripts/rust.sh"]
    told = subprocess.run(counting, cwd=ROOT, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert told.returncode == 1
    wrong, left_open, part, count = told.stdout.splitlines()
    assert "::test_is_wrong: AssertionError: one is not two" in wrong
    assert "::test_leaves_a_server_open" in left_open
    assert "unclosed resource <TCPServer" in left_open
    assert part == "FAILED scripts/rust.sh: see what it printed above"
    assert count == "1 passed, 3 failed"
