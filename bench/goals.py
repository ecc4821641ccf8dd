"""The performance goals in words, as `docs/rules.md` defines them. Knows no figures."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

RULES: Final = Path(__file__).parents[1] / "docs" / "rules.md"


@dataclass(frozen=True)
class Words:
    """What a goal measures, and its bound."""

    what: str
    bound: str


@cache
def goals() -> dict[str, Words]:
    """All goals by their id, in the order of the page."""
    rows = re.findall(r"^\| (PF-\d+) \| (.+?) \| (.+?) \|$", RULES.read_text(), re.MULTILINE)
    return {name: Words(what, bound) for name, what, bound in rows}
