"""`docs/rules.md` defines every rule and requirement that the code and the other documents cite, each once; tests that
`docs/testing.md` names exist; a release has each of its headings once in `CHANGELOG.md`."""

import re
import subprocess
from collections import Counter
from typing import Final

import pytest

from tests.documents import ROOT

RULES: Final = ROOT / "docs" / "rules.md"
NUMBER: Final = re.compile(r"\b(?:I|C|ROOM|PRES|LIKE|SITE|FLEET|DELAY|PF)-[1-9]\d*\b")
"""A number as it is cited. `PF-0` stands for no goal in tests."""
READ: Final = ("*.py", "*.pyi", "*.pyx", "*.rs", "*.md", "*.sh", "*.yml", "*.yaml")


def cited() -> dict[str, str]:
    """Every number that the repository cites, with one file that cites it."""
    listed = subprocess.run(["git", "ls-files", *READ], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name != "CHANGELOG.md"]
    return {
        number: str(file.relative_to(ROOT))
        for file in files
        if file != RULES and file.exists()
        for number in NUMBER.findall(file.read_text())
    }


def defined() -> list[str]:
    """The first cell of every row of the page."""
    return re.findall(r"^\| ([A-Z]+-\d+) \|", RULES.read_text(), re.MULTILINE)


def test_every_number_that_is_cited_is_defined() -> None:
    found = cited()
    assert "I-1" in found
    assert {number: file for number, file in found.items() if number not in defined()} == {}


def test_a_number_is_defined_once() -> None:
    assert [number for number, times in Counter(defined()).items() if times > 1] == []


@pytest.mark.parametrize(("family", "last"), [("ROOM", 27), ("PRES", 18), ("LIKE", 7), ("FLEET", 10), ("DELAY", 13)])
def test_the_requirements_of_a_system_have_no_hole(family: str, last: int) -> None:
    numbers = [int(number) for name in defined() for of, _, number in [name.partition("-")] if of == family]
    assert numbers == list(range(1, last + 1))


def test_every_test_that_the_documents_name_exists() -> None:
    named = re.findall(r"`([\w/.]+)::(\w+)`", (ROOT / "docs" / "testing.md").read_text())
    assert len(named) > 30
    gone = [
        f"{file}::{name}" for file, name in named if not re.search(rf"\b(def|fn) {name}\(", (ROOT / file).read_text())
    ]
    assert not gone


def test_a_release_has_each_heading_once_in_the_changelog() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(releases) > 1
    for release in releases:
        headings = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert len(headings) == len(set(headings)), (release.splitlines()[0], headings)


def test_a_line_of_a_released_changelog_is_short_and_has_a_link() -> None:
    _, _, released = (ROOT / "CHANGELOG.md").read_text().partition("\n## [0.2.0]")
    entries = re.findall(r"^- (?:.+\n)(?:  .+\n)*", released, re.MULTILINE)
    assert len(entries) > 50
    assert [entry for entry in entries if entry.count("\n") > 2 or "](" not in entry] == []
