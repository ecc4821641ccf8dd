"""The part of delayed messages in `muster size`: who accepts, keeps and calls back. No I/O."""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, Final

import msgspec

from muster_server.control.size.measure import Work
from muster_server.control.size.plan import FULL, Bytes, Machine, Part, Planned, Us

RUNS: Final = (("messages", "--rate", "1000", "--for", "15s"),)
BASE_B: Final = 70 * 2**20


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What programs send."""

    delayed: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Messages sent, and fired, a second."""
    pending: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Messages that wait; 0: those of an hour at this rate."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of one core, or bytes."""

    accept_http_us: Us = 8.0
    """An HTTP face, for a message of a batch: its parsing."""
    accept_receive_us: Us = 8.0
    """The same face, or a receiver: the checks, and the request to the center."""
    accept_center_us: Us = 3.0
    fire_center_us: Us = 17.0
    """The center, for a message that fires and its result."""
    fire_worker_us: Us = 24.0
    """A callback worker, for a callback among others."""
    pending_bytes: Bytes = 39
    """A message beyond the near window, in the center's memory."""


def measured(works: Sequence[Work]) -> dict[str, float]:
    """The costs that follow from `RUNS`. The center's time is divided as in the shipped costs."""
    (run,) = works
    each = {role: busy / run.sent for role, busy in run.cpu_us.items()}
    shipped = Costs()
    share = shipped.accept_center_us / (shipped.accept_center_us + shipped.fire_center_us)
    return {
        "accept_http_us": each.get("http", 0.0),
        "accept_receive_us": each.get("receive", 0.0),
        "accept_center_us": each.get("center", 0.0) * share,
        "fire_center_us": each.get("center", 0.0) * (1 - share),
        "fire_worker_us": each.get("messages-worker", 0.0),
    }


def plan(demand: Demand, costs: Costs, machine: Machine) -> Planned:
    """The nodes for this demand. Empty without messages."""
    if not demand.delayed and not demand.pending:
        return Planned()
    pending = demand.pending or demand.delayed * 3_600
    center_us = costs.accept_center_us + costs.fire_center_us
    held = pending * costs.pending_bytes + BASE_B
    center = {"CPU": demand.delayed * center_us / 1e6, "memory": held / machine.memory_bytes}
    notes = []
    if max(center.values()) > FULL:
        most = min(FULL / center_us * 1e6, FULL * (machine.memory_bytes - BASE_B) / costs.pending_bytes)
        notes.append(
            f"One center leads a schedule with all its topics, and this demand is above it (about {most:,.0f} messages a "
            "second, or as many pending as its memory holds): split the topics over several instances."
        )
    parts = [
        _spread("http", demand.delayed * (costs.accept_http_us + costs.accept_receive_us) / 1e6, demand),
        Part(
            role="center",
            nodes=2,
            layout="1 leads, 1 waits",
            cores=center["CPU"],
            memory_bytes=held,
            network_bps=0.0,
            limits=center,
            carries="messages/s",
            more=0.0,
        ),
        _spread("messages-worker", demand.delayed * costs.fire_worker_us / 1e6, demand),
    ]
    counts = {part.role: part.nodes for part in parts}
    return Planned(
        parts=parts,
        notes=notes,
        config={
            "up": {
                "http": counts["http"],
                "callback_workers": counts["messages-worker"],
            }
        },
    )


def _spread(role: str, cores: float, demand: Demand) -> Part:
    """Nodes of a role that any number may do side by side; two, as one of them may die."""
    nodes = max(2, ceil(cores / FULL))
    return Part(
        role=role,
        nodes=nodes,
        cores=cores,
        memory_bytes=BASE_B,
        network_bps=0.0,
        limits={"CPU": cores / nodes},
        carries="messages/s",
        more=demand.delayed / max(1e-9, cores / FULL),
    )
