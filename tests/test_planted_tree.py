"""`scripts/planted.sh` over a toy crate: what it writes, which patches it refuses, and how they are mended."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import PATIENT_S

ROOT: Final = Path(__file__).parents[1]
CODE: Final = """//! A toy.

const FAR: u32 = 1;

const ALSO_FAR: u32 = 2;

pub fn first() {}

pub fn counts(by: u32) -> u32 {
    let sum = by + 1;
    sum
}
"""
BUG: Final = "    if crate::planted::IS {\n        return by;\n    }\n"
LAID: Final = "core/target/planted/core"
EDIT: Final = "core/target/planted/edit"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one crate and one planted bug, in a repository."""
    for script in ("planted.sh", "words.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / script, tmp_path / "scripts")
    (tmp_path / ".gitignore").write_text("target/\n")
    source = tmp_path / "core" / "toy" / "src"
    source.mkdir(parents=True)
    (source / "lib.rs").write_text(CODE)
    (source / "other.rs").write_text("// nothing\n")
    (tmp_path / "core/planted/overlay").mkdir(parents=True)
    (tmp_path / "core/planted/patches").mkdir()
    git(tmp_path, "init", "--quiet")
    planted(tmp_path, "edit")
    (tmp_path / EDIT / "toy/src/planted.rs").write_text("pub const IS: bool = true;\n")
    (tmp_path / EDIT / "toy/src/lib.rs").write_text(CODE.replace("    let", BUG + "    let"))
    planted(tmp_path, "save")
    commit(tmp_path)
    return tmp_path


def planted(tree: Path, *words: str, code: int = 0) -> str:
    """Runs the script, which must end with this code; all that it prints."""
    done = subprocess.run(
        [tree / "scripts/planted.sh", *words],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    subprocess.run(["git", *who, *words], cwd=tree, check=True, timeout=PATIENT_S)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "as it is")


def without_history(tree: Path) -> None:
    """As an unpacked source archive."""
    shutil.rmtree(tree / ".git")
    shutil.rmtree(tree / "core/target")


def change(tree: Path, old: str, new: str) -> None:
    file = tree / "core/toy/src/lib.rs"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def files(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_an_edit_is_saved_as_new_files_and_a_patch_of_the_crate(tree: Path) -> None:
    assert set(files(tree / "core/planted")) == {"overlay/toy/src/planted.rs", "patches/toy.patch"}
    assert not (tree / EDIT).exists()
    assert (tree / "core/toy/src/lib.rs").read_text() == CODE, "the crate itself has no bug"
    assert BUG in (tree / LAID / "toy/src/lib.rs").read_text()


def test_an_edit_without_a_change_saves_what_there_was(tree: Path) -> None:
    before = files(tree / "core/planted")
    planted(tree, "edit")
    planted(tree, "save")
    assert files(tree / "core/planted") == before


def test_the_tree_is_laid_without_a_repository(tree: Path) -> None:
    without_history(tree)
    planted(tree, "lay")
    assert BUG in (tree / LAID / "toy/src/lib.rs").read_text()
    assert (tree / LAID / "toy/src/planted.rs").exists()


def test_a_file_is_written_only_if_it_differs(tree: Path) -> None:
    laid = tree / LAID / "toy/src"
    before = {file.name: file.stat().st_mtime_ns for file in laid.iterdir()}
    change(tree, "const FAR", "const NEAR")
    (laid / "other.rs").write_text("// changed in the wrong place\n")
    planted(tree, "lay")
    assert {file.name: file.stat().st_mtime_ns == before[file.name] for file in laid.iterdir()} == {
        "lib.rs": False,
        "other.rs": False,
        "planted.rs": True,
    }
    assert (laid / "other.rs").read_text() == "// nothing\n"
    (tree / "core/toy/src/other.rs").unlink()
    planted(tree, "lay")
    assert not (laid / "other.rs").exists()


def test_a_patch_that_does_not_apply_is_named_with_the_commands_that_mend_it(tree: Path) -> None:
    change(tree, "counts(by: u32)", "counts(by: u32, _: ())")
    said = planted(tree, "lay", code=1)
    assert "do not apply to core/: core/planted/patches/toy.patch" in said
    assert "run scripts/planted.sh edit, change what it lists, run scripts/planted.sh save" in said


def test_an_edit_merges_a_patch_with_code_that_has_changed_around_it(tree: Path) -> None:
    change(tree, "pub fn first() {}", "pub fn last() {}")
    change(tree, "    sum\n", "    sum * 2\n")
    shutil.rmtree(tree / "core/target")
    planted(tree, "lay", code=1)
    assert "has conflicts" not in planted(tree, "edit")
    planted(tree, "save")
    laid = (tree / LAID / "toy/src/lib.rs").read_text()
    assert BUG in laid
    assert "sum * 2" in laid


def test_a_conflict_is_listed_and_nothing_is_saved_until_it_is_mended(tree: Path) -> None:
    change(tree, "counts(by: u32)", "counts(by: u32, _: ())")
    change(tree, "    let sum", "    let mut sum")
    said = planted(tree, "edit")
    assert "toy/src/lib.rs: has conflicts" in said
    before = files(tree / "core/planted")
    assert "toy/src/lib.rs: has conflicts" in planted(tree, "save", code=1)
    assert files(tree / "core/planted") == before
    code = (tree / "core/toy/src/lib.rs").read_text()
    (tree / EDIT / "toy/src/lib.rs").write_text(code.replace("    let", BUG + "    let"))
    planted(tree, "save")
    assert BUG in (tree / LAID / "toy/src/lib.rs").read_text()


@pytest.mark.parametrize("moved", [False, True])
def test_what_does_not_apply_without_history_or_to_a_moved_file_stays_beside_it(tree: Path, moved: bool) -> None:
    if moved:
        (tree / "core/toy/src/lib.rs").rename(tree / "core/toy/src/main.rs")
    else:
        without_history(tree)
        change(tree, "    let sum", "    let mut sum")
    rejected = tree / EDIT / "toy/src/lib.rs.rej"
    assert "toy/src/lib.rs.rej: do by hand" in planted(tree, "edit")
    assert "+    if crate::planted::IS {" in rejected.read_text()
    assert "toy/src/lib.rs.rej" in planted(tree, "save", code=1)
    rejected.unlink()
    planted(tree, "save")


def test_an_edit_is_not_overwritten_and_not_saved_twice(tree: Path) -> None:
    planted(tree, "edit")
    assert "run scripts/planted.sh save, or remove the folder" in planted(tree, "edit", code=1)
    planted(tree, "save")
    assert "run scripts/planted.sh edit first" in planted(tree, "save", code=1)
