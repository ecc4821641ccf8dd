"""A finding: the subject, its level, and the remedy."""

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """`fail`: Muster does not run or does not serve; `warn`: it runs worse. `mend`: the remedy, may be empty."""

    check: str
    level: Level
    text: str
    mend: str = ""


def ok(check: str, text: str, mend: str = "") -> Finding:
    """All is well."""
    return Finding(check, "ok", text, mend)


def warn(check: str, text: str, mend: str) -> Finding:
    """It runs, but less well."""
    return Finding(check, "warn", text, mend)


def fail(check: str, text: str, mend: str) -> Finding:
    """It does not run."""
    return Finding(check, "fail", text, mend)


def mib(count: float) -> str:
    """Format bytes as MiB."""
    return f"{count / (1 << 20):,.0f} MiB" if count >= 1 << 20 else f"{count / 1024:,.0f} KiB"
