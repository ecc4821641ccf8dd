"""The part of presence in `muster size`: writers, readers and stores for users who are online. No I/O."""

from math import ceil
from typing import Annotated, Final

import msgspec

from muster_server.control.size.plan import FULL, Bytes, Machine, Part, Planned, Us, needed

SITES: Final = 2
BASE_B: Final = 60 * 2**20
STORE_BASE_B: Final = 10 * 2**20


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What users do."""

    online: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Users online at a time."""
    stay_s: Annotated[float, msgspec.Meta(gt=0)] = 1_800
    """Time for which a user stays: each arrival and each end is a change."""
    asked: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Users that are looked up a second."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of one core, or bytes."""

    change_us: Us = 11.0
    """A writer, for a change from a gateway until it is in its store."""
    store_change_us: Us = 8.0
    """The store, for the same."""
    asked_us: Us = 3.0
    """A reader, for a user that is looked up among others."""
    writer_bytes: Bytes = 400
    """A user with one device at each writer that has it."""
    store_bytes: Bytes = 90
    copy_bytes: Bytes = 60
    """The same at each reader, in its copy."""


def plan(demand: Demand, costs: Costs, machine: Machine) -> Planned:
    """The nodes for this demand. Empty without users."""
    if not demand.online and not demand.asked:
        return Planned()
    changes = 2 * demand.online / demand.stay_s
    writer = {
        "CPU": changes * costs.change_us / 1e6,
        "memory": demand.online * costs.writer_bytes / max(1.0, machine.memory_bytes - BASE_B),
    }
    store = {
        "CPU": changes * costs.store_change_us / 1e6,
        "memory": demand.online * costs.store_bytes / max(1.0, machine.memory_bytes - STORE_BASE_B),
    }
    shards = max(needed(writer), needed(store))
    readers = max(1, ceil(demand.asked * costs.asked_us / 1e6 / FULL / SITES))
    nodes = SITES * shards
    parts = [
        Part(
            role="online-writer",
            nodes=nodes,
            layout=f"{SITES} sites x {shards}",
            cores=SITES * writer["CPU"],
            memory_bytes=demand.online * costs.writer_bytes / shards + BASE_B,
            network_bps=0.0,
            limits={name: share / shards for name, share in writer.items()},
            carries="users online",
            more=demand.online / max(1e-9, max(writer.values()) / FULL) / SITES,
        ),
        Part(
            role="Redis of presence",
            nodes=nodes,
            layout=f"{SITES} sites x {shards}",
            cores=SITES * store["CPU"],
            memory_bytes=demand.online * costs.store_bytes / shards + STORE_BASE_B,
            network_bps=0.0,
            limits={name: share / shards for name, share in store.items()},
            carries="users online",
            more=demand.online / max(1e-9, max(store.values()) / FULL) / SITES,
        ),
        Part(
            role="online-reader",
            nodes=SITES * readers,
            cores=demand.asked * costs.asked_us / 1e6,
            memory_bytes=BASE_B + demand.online * costs.copy_bytes,
            network_bps=0.0,
            limits={"CPU": demand.asked * costs.asked_us / 1e6 / SITES / readers},
            carries="users looked up/s",
            more=1e6 * FULL / costs.asked_us,
        ),
    ]
    return Planned(
        parts=parts,
        notes=[f"Each of the {SITES} sites has the whole view, so one of them may fail."],
        config={"presence": {"sites": SITES, "writers": str(shards)}},
    )
