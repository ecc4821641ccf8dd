"""`docs/metrics.md` is what the roles of a real instance expose: nothing more, nothing less, in the same words."""

import asyncio
import re
from collections import Counter
from typing import Final

from control.cli.metrics_docs import markdown
from control.console import common
from plane.kinds import kind
from tests.documents import ROOT, spans
from tests.faults.conftest import Make
from tests.faults.instance import ROLES, Instance

PAGE: Final = ROOT / "docs" / "metrics.md"
SAMPLE: Final = re.compile(r"(\w+(?:\{[^}]*\})?) \S+")


def test_what_operators_are_told_to_watch_exists() -> None:
    told = {span for span in spans((ROOT / "docs" / "operations.md").read_text()) if span.startswith("muster_")}
    assert len(told) > 10
    assert told <= spans(PAGE.read_text())


async def probed(instance: Instance) -> str:
    """The metrics of the prober, once it has paths."""
    async with asyncio.timeout(30):
        while True:
            if (probers := instance.record().of("prober")) and probers[0].ready:
                page = common.fetch(probers[0], "/metrics")[1].decode()
                if "muster_probe_path_failing{" in page:
                    return page
            await asyncio.sleep(0.05)


async def test_every_metric_of_every_role_is_in_the_documents_and_no_other(make: Make) -> None:
    instance = make(database={}, probes={"every_ms": 100})
    with instance.running():
        pages = {role: instance.get(role, "/metrics") for role in ROLES}
        nodes = {role: instance.process(role).node for role in ROLES} | {"prober": kind("prober").numbers[0]}
        prober = await probed(instance)
    for role, page in (*pages.items(), ("prober", prober)):
        samples = [SAMPLE.fullmatch(line) for line in page.splitlines() if not line.startswith("#")]
        names = Counter(sample[1] for sample in samples if sample is not None)
        assert len(names) == len(samples), f"{role} exposes a metric twice"
        for name in names:
            mine = f'role="{role}"' in name and f'node="{nodes[role]}"' in name
            assert mine or name.startswith(("muster_process_", "muster_build_info{")), name
    assert PAGE.read_text() == markdown(pages, prober), (
        "while MUSTER_PROBES__EVERY_MS=200 muster up runs: .venv/bin/python -m control.cli.metrics_docs > docs/metrics.md"
    )
