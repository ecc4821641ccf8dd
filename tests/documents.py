"""Reads the project's Markdown: fenced blocks, rows of tables, code spans."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def fenced(page: str, language: str = "") -> list[str]:
    """The contents of the blocks in this language, in order."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for named, text in blocks if named == language]


def cells(page: str, *head: str) -> Iterator[list[str]]:
    """The rows of all tables with this head, cell by cell."""
    inside = False
    for line in page.splitlines():
        row = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if row == list(head):
            inside = True
        elif not row:
            inside = False
        elif inside and not all(set(cell) <= {"-", ":"} for cell in row):
            yield row


def spans(page: str) -> set[str]:
    """All texts between back-ticks outside fenced blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)))
