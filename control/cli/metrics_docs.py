"""Writes `docs/metrics.md` from the metrics of a running instance: `python -m muster_server.control.cli.metrics_docs`.

The instance must have a registry, a database and a node of every role (`--with all`, `[probes] every_ms`), so that no
metric is missing.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from muster_server.control.terminal import common
from muster_server.control.terminal.readings import REASON
from muster_server.plane.kinds import kinds

HEAD: Final = """\
# Metrics

<!-- Written by `control/cli/metrics_docs.py` while `muster up --with all` runs; edit core/ and the systems. -->

Every node serves `/metrics` for Prometheus on its admin port, on loopback; `muster status` names the ports. Counters count
from the start of the process and are 0 where nothing happened. The meaning names the unit of a count that has none here.
What was dropped, refused, withheld or given up is counted by the reason in its name. `muster_process_…` and
`muster_build_info` have no labels `role`, `node` and `name`; nodes that share a process all say its figures. Only where
nodes register are there `muster_registry_…` and `muster_placement_epoch`, only where there is a database
`muster_database_…`. Each section names its roles.
"""
PART: Final = re.compile(r"_(total|bucket|sum)$")
"""Endings of names that are not units."""
UNITS: Final = {"bytes": "bytes", "seconds": "seconds", "fds": "descriptors", "ratio": "share, 0 to 1"}


@dataclass(frozen=True)
class Row:
    """One metric of a role."""

    name: str
    type: str
    labels: str
    meaning: str

    def cells(self) -> tuple[str, ...]:
        """The cells of its row."""
        what = PART.sub("", self.name)
        reason = REASON.search(what)
        return (
            f"`{self.name}`",
            self.type,
            UNITS.get(what.rpartition("_")[2], ""),
            self.labels,
            f"`{reason[1]}`" if reason else "",
            self.meaning.removesuffix(".").replace("|", "\\|"),
        )


def markdown(pages: Mapping[str, str]) -> str:
    """Return the whole page, from the `/metrics` of a node of each role."""
    exposed = {role: list(rows(page)) for role, page in pages.items()}
    found: dict[Row, tuple[str, ...]] = {}
    for row in (row for each in exposed.values() for row in each):
        found[row] = tuple(role for role in pages if row in exposed[role])
    groups = sorted(set(found.values()), key=lambda group: (-len(group), [list(pages).index(role) for role in group]))
    sections = [_section(group, len(pages), [row for row in found if found[row] == group]) for group in groups]
    return "\n".join([HEAD, *sections])


def rows(page: str) -> Iterator[Row]:
    """The metrics of one role, in its order."""
    for family in text_string_to_metric_families(page):
        names = {sample.name: ", ".join(f"`{label}`" for label in sample.labels) for sample in family.samples}
        for name, labels in names.items():
            yield Row(name, family.type, labels, family.documentation)


def _section(group: tuple[str, ...], roles: int, metrics: list[Row]) -> str:
    title = "Every role" if len(group) == roles else ", ".join(group).capitalize()
    lines = [f"## {title}\n", "| name | type | unit | labels | reason | meaning |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in metrics]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the page."""
    record = common.running(None)
    processes = {process.role: process for process in record.processes}
    missing = kinds().keys() - processes.keys()
    assert not missing, f"the metrics of {', '.join(missing)} are missing; see the head of this file"
    sys.stdout.write(markdown({role: common.fetch(processes[role], "/metrics")[1].decode() for role in kinds()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
