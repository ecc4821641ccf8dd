"""The part of likes in `muster size`: nodes for changes and for what they keep. No I/O."""

from collections.abc import Sequence
from math import ceil, log2
from typing import Annotated, Final

import msgspec

from muster_server.control.size.measure import Work
from muster_server.control.size.plan import FULL, Bytes, Machine, Part, Planned, Us, needed

RUNS: Final = (("likes", "--rate", "10000", "--for", "15s"),)
PARTITIONS_MAX: Final = 256
BASE_B: Final = 100 * 2**20


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What users like."""

    likes: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Changes a second."""
    liked: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Likes that are kept; 0: those of 30 days at this rate."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of one core, or bytes."""

    like_us: Us = 20.0
    """A node, for a change that comes alone and is on disk before its answer."""
    like_bytes: Bytes = 3.5


def measured(works: Sequence[Work]) -> dict[str, float]:
    """The costs that follow from `RUNS`."""
    (run,) = works
    return {"like_us": run.cpu_us.get("likes", 0.0) / run.sent}


def plan(demand: Demand, costs: Costs, machine: Machine) -> Planned:
    """The nodes for this demand. Empty without likes."""
    if not demand.likes and not demand.liked:
        return Planned()
    kept = demand.liked or demand.likes * 30 * 86_400
    shares = {
        "CPU": demand.likes * costs.like_us / 1e6,
        "memory": kept * costs.like_bytes / max(1.0, machine.memory_bytes - BASE_B),
    }
    nodes = needed(shares)
    partitions = 1 if nodes == 1 else min(PARTITIONS_MAX, max(16, 1 << ceil(log2(4 * nodes))))
    notes = []
    if nodes == 1:
        notes.append("One node of likes: start with `likes.partitions = 16` if it may need a second one later.")
    part = Part(
        role="likes",
        nodes=nodes,
        layout=f"{partitions} partitions",
        cores=shares["CPU"],
        memory_bytes=kept * costs.like_bytes / nodes + BASE_B,
        network_bps=0.0,
        limits={name: share / nodes for name, share in shares.items()},
        carries="likes/s" if demand.likes else "likes",
        more=(demand.likes or kept) / max(1e-9, max(shares.values()) / FULL),
    )
    return Planned(parts=[part], notes=notes, config={"up": {"likes": nodes}, "likes": {"partitions": partitions}})
