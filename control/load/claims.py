"""Claims about a run that its exit code judges: `p99<50ms`, `lost=0`, `sent_per_s>=1000`.

Owns their form and their judgement.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from muster_server.control.errors import USAGE, UserError

FORM: Final = "NAME, a comparison (< <= = >= >) and a number, for example p99<50ms or lost=0"
_CLAIM: Final = re.compile(
    r"\s*(?P<name>[a-z][a-z0-9_.]*)\s*(?P<how><=|>=|==|<|>|=)\s*(?P<number>[0-9.]+)\s*(?P<unit>us|ms|s|k|M|%)?\s*"
)
_HOW: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
_FACTOR: Final = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3, "k": 1e3, "M": 1e6, "%": 1e-2}


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the summary, compared with a number; latencies are in ms."""

    text: str
    name: str
    how: str
    number: float

    def holds(self, figures: Mapping[str, float | None]) -> bool:
        """Whether it holds. A figure without a value fails. Raises `UserError` if there is no such figure."""
        if self.name not in figures:
            raise UserError(f"--assert {self.text}: unknown figure {self.name} (expected {', '.join(figures)})", USAGE)
        value = figures[self.name]
        return value is not None and _HOW[self.how](value, self.number)


def parse(text: str) -> Claim:
    """Read one claim. Raises `UserError`."""
    found = _CLAIM.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        number = float(found["number"]) * _FACTOR[found["unit"] or ""]
    except ValueError:
        raise UserError(f"--assert {text!r}: invalid (expected {FORM})", USAGE) from None
    return Claim(text=text, name=found["name"], how=found["how"], number=number)
