"""The descriptor of the role `online-writer`; its engine is made in `build.py`."""

from typing import Final

from muster_server.plane.kind import Pods, RoleKind, numbers
from muster_server.systems.presence.lacks import STORES, lacks
from muster_server.systems.presence.options import OnlineWriter, PresenceSettings, per_shard, settle

WRITER: Final = RoleKind(
    name="online-writer",
    section="online_writer",
    process="machine",
    numbers=numbers(21),
    about="keeps one shard of a site's store true",
    options=OnlineWriter,
    settings=PresenceSettings,
    settle=settle,
    build="muster_server.systems.presence.build:writer",
    companion="muster_server.systems.presence.keeper:companion",
    dials=("gateway", "edge"),
    secrets=frozenset({"cluster"}),
    wanted=per_shard,
    ends=36,
    row=61,
    pods=Pods(port=7440, replicas=1, memory_max="4Gi", disk="16Gi", keys={"presence.redis": STORES}),
    received="muster_presence_events_total",
    sent="muster_presence_users_written_total",
    carried="muster_presence_events_total",
    check=lacks,
)
