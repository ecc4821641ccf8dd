"""The prober's counts as metrics: of all paths together, and of each of the worst ones."""

import time
from itertools import zip_longest
from typing import Final

from muster_server.systems.probes.prober import Prober

WORST: Final = 20
"""Number of paths with metrics of their own; failing ones come first."""

Figure = tuple[str, str, float]


class ProbeCounts:
    """The present counts."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._worst = list(prober.worst(time.monotonic(), WORST))
        self._names = prober.names()

    def counters(self) -> list[Figure]:
        """Counters since the start."""
        ledger = self._prober.ledger
        return [
            ("probes_sent", "Probes sent, each to members at all gateways", ledger.probes),
            ("probe_samples_seen", "Probes seen in time, each counted at every gateway", ledger.samples_seen),
            ("probe_samples_failed", "Probes not seen in time, each counted at every gateway", ledger.samples_failed),
            ("probe_alarms", "Paths that began to fail", ledger.alarms),
        ]

    def gauges(self) -> list[Figure]:
        """The present gauges."""
        ledger = self._prober.ledger
        found: list[Figure] = [
            ("probe_paths", "Probed paths of a proxy, a broker and a gateway", self._prober.paths),
            ("probe_paths_left_out", "Paths that are not probed, because there are too many", self._prober.left_out),
            ("probe_paths_failing", "Paths with an alarm, after that many failed probes in a row", ledger.failing),
        ]
        for figures in self._worst:
            path = figures.path
            ends = path._asdict().items()
            way = ",".join(f'{role}="{node}",{role}_name="{self._names.get(node, "")}"' for role, node in ends)
            labels = f"{{{way}}}"
            found += [
                (
                    f"probe_path_failing{labels}",
                    "1 while the path fails; of the worst 20 paths",
                    float(figures.failing),
                ),
                (
                    f"probe_path_loss_ratio{labels}",
                    "Share of the last probes that failed; of the worst 20",
                    figures.loss,
                ),
                (
                    f"probe_path_availability_ratio{labels}",
                    "Share of all probes that did not fail; of the worst 20 paths",
                    figures.availability,
                ),
                (
                    f"probe_path_p99_seconds{labels}",
                    "Time from publishing to the member, p99 of the last probes; of the worst 20 paths",
                    (figures.p99_ms or 0.0) / 1000,
                ),
            ]
            for hop, times in zip_longest(("broker", "gateway"), figures.hops):
                text = (
                    "Time until this hop answered the previous node, p50 of the last requests, 0 before the first; "
                    "of the worst 20"
                )
                found.append(
                    (f'probe_path_hop_seconds{{{way},hop="{hop}"}}', text, times.p50_ms / 1000 if times else 0.0)
                )
        return found
