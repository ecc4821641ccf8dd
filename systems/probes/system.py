"""The system of probes: one worker, a client like others, that tests every path through the nodes."""

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from muster_server.plane.kind import Around, Pods, RoleKind, System, numbers
from muster_server.plane.options import Section, key
from muster_server.plane.trust import PROBE_TOKEN

NAME: Final = "prober"


class Probes(Section, frozen=True):
    """Small messages over every path of proxy, broker and gateway, to measure whether it works and how long it takes."""

    every_ms: Annotated[
        int,
        key(
            "Interval of probes from a proxy to a broker; members at all gateways should receive each",
            "a stalled node is reported within seconds; 0: no probes, except by `muster links --probe`",
            "ms",
            ge=0,
            le=3_600_000,
        ),
    ] = 1_000
    ask: Annotated[
        str,
        key("Admin address of a `muster serve prober`, for `muster links`", "empty: the prober of `muster up`"),
    ] = ""
    token_file: Annotated[
        str,
        key(
            "File with the prober's own token, which opens only the rooms of probes; `muster cluster probe-token` derives it"
            " from the shared token, which the prober does not need",
            "empty: `probe.token` in `instance.dir`, which `muster up` makes at each start",
        ),
    ] = ""
    timeout_ms: Annotated[
        int,
        key("Time after which a probe has failed", "longer than the stalls of a busy machine", "ms", ge=10, le=60_000),
    ] = 1_000
    failures: Annotated[
        int, key("Consecutive failed probes that raise a path's alarm", "a single one may be chance", "", ge=1, le=3600)
    ] = 3
    successes: Annotated[
        int, key("Consecutive successful probes that clear it", "an unstable path stays alarmed", "", ge=1, le=3600)
    ] = 5
    window: Annotated[
        int,
        key("Recent probes that a path's loss and latencies cover", "enough for a p99", "", ge=10, le=1_000),
    ] = 100
    per_s_max: Annotated[
        int,
        key(
            "Limit of probes per second; with many proxies and brokers, a round then takes longer than `every_ms`",
            "bounds the cost of probes for any number of paths: each is delivered at every gateway",
            "1/s",
            ge=1,
            le=10_000,
        ),
    ] = 20


class ProberSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a prober."""

    folder: str
    """The folder of the instance, if there is no registry."""
    token_file: str
    """The file of its own token."""
    probes: Probes


def settle(options: Probes, around: Around) -> ProberSettings:
    """Make the settings from the configuration."""
    file = around.absolute(options.token_file) or str(around.folder / PROBE_TOKEN)
    return ProberSettings(folder=str(around.folder), token_file=file, probes=options)


def wanted(section: Callable[[str], Any]) -> int:
    """One prober if paths are probed steadily, else none."""
    return 1 if section("probes").every_ms else 0


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why no prober can run; None: nothing is missing."""
    if not section("probes").every_ms:
        return "probes.every_ms: missing; muster serve prober needs the interval of probes"
    if not section("probes").token_file:
        return "probes.token_file: missing; make it with muster cluster probe-token, where cluster.token_file is"
    return None


PROBER: Final = RoleKind(
    name=NAME,
    process="worker",
    numbers=numbers(0),
    about="sends probes through every proxy, broker and gateway",
    options=Probes,
    section="probes",
    settings=ProberSettings,
    settle=settle,
    build="muster_server.systems.probes.worker:build",
    secrets=frozenset({"names", "probe"}),
    awaited=False,
    wanted=wanted,
    ends=0,
    row=90,
    pods=Pods(
        replicas=1,
        cpu="100m",
        memory="128Mi",
        memory_max="256Mi",
        keys={
            "probes.ask": "$(POD_IP):7490",  # for `muster links` in the pod
            "probes.every_ms": "1000",
        },
    ),
    reloads={
        f"probes.{name}": f"probes.{name}" for name in Probes.__struct_fields__ if name not in {"ask", "token_file"}
    },
    check=lacks,
)

SYSTEM: Final = System(
    name="probes",
    title="Watch",
    about="probes of every path through the nodes",
    always=True,
    kinds=(PROBER,),
    command_keys=("probes.ask",),
    commands="muster_server.systems.probes.cli.words:add",
    check="muster_server.systems.probes.check:wrong",
)
