"""`docs/metrics.md` is what the roles of a real instance expose: nothing more, nothing less, in the same words."""

import asyncio
import re
from collections import Counter
from typing import Final

from muster_server.control.cli.metrics_docs import markdown
from muster_server.control.config.layout import instance_name
from muster_server.control.terminal import common
from muster_server.plane.kinds import kind, kinds
from tests.documents import ROOT, spans
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.waiting import PATIENT_S

PAGE: Final = ROOT / "docs" / "metrics.md"
SAMPLE: Final = re.compile(r'(\w+(?:\{(?:[^"}]|"[^"]*")*\})?) \S+')


def test_what_operators_are_told_to_watch_exists() -> None:
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("install", "grow", "secure", "watch", "alarms")]
    told = [{span for span in spans(page) if span.startswith("muster_")} for page in pages]
    assert all(told)
    assert set.union(*told) <= spans(PAGE.read_text())


async def page_of(instance: Instance, role: str) -> str:
    """The metrics of a node of this role, once it serves; of the prober, once it has paths."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            if (nodes := instance.record().of(role)) and nodes[0].ready:
                page = common.fetch(nodes[0], "/metrics")[1].decode()
                if role != "prober" or "muster_probe_path_failing{" in page:
                    return page
            await asyncio.sleep(0.05)


async def test_every_metric_of_every_role_is_in_the_documents_and_no_other(make: Make) -> None:
    instance = make(database={}, probes={"every_ms": 100}, archive={"rooms": "*"}, systems={"enabled": "all"})
    with instance.running():
        pages = {role: await page_of(instance, role) for role in kinds()}
    for role, page in pages.items():
        samples = [SAMPLE.fullmatch(line) for line in page.splitlines() if not line.startswith("#")]
        names = Counter(sample[1] for sample in samples if sample is not None)
        assert len(names) == len(samples), f"{role} exposes a metric twice"
        node = kind(role).numbers[0]
        own = {"role": role, "node": node, "name": instance_name("muster", node)}
        for name in names:
            mine = all(f'{label}="{value}"' in name for label, value in own.items())
            assert mine or name.startswith(("muster_process_", "muster_build_info{")), name
    assert PAGE.read_text() == markdown(pages), (
        "while MUSTER_PROBES__EVERY_MS=200 MUSTER_ARCHIVE__ROOMS=* muster up --with all runs: "
        ".venv/bin/python -m muster_server.control.cli.metrics_docs > docs/metrics.md"
    )
