"""The sweeps of a report: its cases whose names differ in one number, as curves over that number.

Owns the reading of the names. Systems that stand side by side in a name are the curves of one sweep. Draws nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bench.report import Case, Report

NUMBER: Final = re.compile(r"(?<![\w.,-])x?(?P<number>\d[\d,]*)(?![\d.])")
"""A size in a name: 100, x100, 50,000; no p99 and no 99.9."""
PLACE: Final = "N"
"""The place of the size in the name of a sweep."""
OVER: Final = (
    re.compile(r"(?P<head>\w+: )?(?P<own>muster[^,:]*) over (?P<peer>[^,:]+), (?P<rest>.*)"),
    re.compile(r"(?P<rest>.*), over (?P<peer>[^,:]+)"),
    re.compile(r"(?P<head>\w+: )?(?P<own>muster[^,:]*), (?P<rest>.*)"),
)
TOGETHER: Final = " in one process"
OWN: Final = "Muster"
NAMES: Final = {"redis": "Redis", "nats": "NATS", "mosquitto": "Mosquitto", "centrifugo": "Centrifugo"}


@dataclass(frozen=True)
class Sweep:
    """One figure over a size. Each curve has at least two points, ordered by the size."""

    bench: str
    name: str
    """The name of its cases with `PLACE` for the size."""
    curves: Mapping[str, Mapping[float, float]]

    @property
    def title(self) -> str:
        """A heading."""
        return f"{self.bench}: {self.name}"

    @property
    def file(self) -> str:
        """The name of its file, without an ending."""
        return "sweep-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def sweeps(report: Report) -> list[Sweep]:
    """All sweeps of a report, in the order of its cases. Figures that are 0 everywhere show nothing and are left out."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for case in (each for each in report.cases if not each.void):
        for rest, system, value in _figures(case):
            for number in NUMBER.finditer(rest):
                name = rest[: number.start("number")] + PLACE + rest[number.end("number") :]
                curve = found.setdefault(name, {}).setdefault(system, {})
                curve[float(number["number"].replace(",", ""))] = value
    made = []
    for name, curves in found.items():
        lines = {system: dict(sorted(curve.items())) for system, curve in curves.items() if len(curve) > 1}
        if any(value for curve in lines.values() for value in curve.values()):
            made.append(Sweep(report.bench, name, lines))
    return made


def _figures(case: Case) -> Iterator[tuple[str, str, float]]:
    """The values of a case: what remains of its name without systems, the system, and the value."""
    parts = next((match.groupdict() for over in OVER if (match := over.fullmatch(case.name))), {"rest": case.name})
    rest = (parts.get("head") or "") + parts["rest"]
    own = OWN + (parts.get("own") or "").removeprefix("muster").rstrip()
    if TOGETHER in rest:
        rest, own = rest.replace(TOGETHER, ""), OWN + TOGETHER
    yield rest, own, case.value
    if case.reference is not None:
        peer = parts.get("peer") or "against"
        yield rest, NAMES.get(peer, peer), case.reference
