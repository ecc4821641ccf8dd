"""The result of a run: what it was, its points, its totals, and which claims hold. As JSON, as text, as a page."""

from collections.abc import Mapping, Sequence

import msgspec

from muster_server.control.load.series import Names, Point, Series, percentiles


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and whether it holds."""

    text: str
    holds: bool
    value: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    system: str
    command: str
    """The words that ran it."""
    began: str
    """Local time with the zone, ISO 8601."""
    took_s: float
    hosts: int
    connected: str
    ended: str
    """`complete`, `interrupted`, or `late`: something was still on its way when the time to wait for it was over."""
    names: Names
    counts: Mapping[str, int]
    latency_ms: Mapping[str, float | None]
    late_p99_ms: float | None
    cpu_s: Mapping[str, float]
    """CPU seconds of the servers by role, a shared process by all its roles; empty where their metrics were not read."""
    claims: Sequence[Judged]
    points: Sequence[Point]

    @property
    def whole(self) -> bool:
        """Whether nothing was lost or went wrong, and nothing is missing."""
        return self.ended != "late" and not any(self.counts.get(name, 0) for name in self.names.wrong)

    @property
    def exit_code(self) -> int:
        """0, or 1: a claim does not hold; no claim was made and something went wrong; or not all arrived, so that no claim
        about losses can be judged."""
        if self.ended == "late":
            return 1
        return int(not all(claim.holds for claim in self.claims) if self.claims else not self.whole)


def figures(series: Series, took_s: float) -> dict[str, float | None]:
    """The figures that claims may name: percentiles in ms, counts, and rates of the whole run."""
    made: dict[str, float | None] = dict(percentiles(series.latency))
    made["late_p99"] = percentiles(series.late)["p99"]
    made |= {name: float(count) for name, count in sorted(series.counts.items())}
    for name, count in (("sent_per_s", series.names.sent), ("done_per_s", series.names.done)):
        made[name] = round(series.counts.get(count, 0) / max(took_s, 1e-6), 1)
    return made


def summary(report: Report) -> list[str]:
    """The report in a few lines for people."""
    counts = ", ".join(
        f"{count:,} {name}" for name, count in report.counts.items() if count or name in report.names.wrong
    )
    times = ", ".join(f"{name} {_ms(value)}" for name, value in report.latency_ms.items())
    lines = [f"{report.connected}; {report.took_s:.1f} s on {report.hosts} host{'s' * (report.hosts > 1)}: {counts}"]
    lines.append(
        f"latency from when each was due: {times}; the generator itself was late by {_ms(report.late_p99_ms)} (p99)"
    )
    if report.cpu_s:
        used = ", ".join(f"{role} {seconds:.2f}" for role, seconds in sorted(report.cpu_s.items()))
        lines.append(f"CPU seconds of the servers: {used}")
    lines += [f"{'holds' if claim.holds else 'FAILS'}: {claim.text} ({claim.value})" for claim in report.claims]
    if report.ended == "late":
        lines.append("NOT ALL ARRIVED: some were still on their way when the time to wait for them was over")
    elif not report.claims:
        lines.append("nothing was lost" if report.whole else "SOMETHING WAS LOST OR FAILED")
    return lines


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g} ms" if value < 100 else f"{value:,.0f} ms"
