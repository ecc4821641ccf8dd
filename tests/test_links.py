"""Every link of the project's pages leads to a file, and to a heading where it names one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.documents import ROOT

PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("core/*/*.md")])
LINK: Final = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"")


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    text = page.read_text()
    for link in (one or other for one, other in LINK.findall(prose(text))):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert list(dead(page)) == []


@pytest.mark.parametrize("link", ["[a](none.md)", "[a](page.md#none)", "[a](#none)", '<img src="none.svg">'])
def test_a_link_that_leads_nowhere_is_found(link: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# One heading\n\n[here](#one-heading) [there](page.md#one-heading)\n{link}\n")
    assert len(list(dead(page))) == 1
