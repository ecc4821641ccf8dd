"""The descriptor of the role `online-reader`; its service is made in `systems/presence/reader.py`."""

from typing import Final

from muster_server.plane.kind import Pods, RoleKind, numbers
from muster_server.systems.presence.lacks import STORES, lacks
from muster_server.systems.presence.options import OnlineReader, PresenceSettings, per_site, settle

READER: Final = RoleKind(
    name="online-reader",
    section="online_reader",
    process="face",
    numbers=numbers(22),
    about="looks up who is online, in its own site",
    options=OnlineReader,
    settings=PresenceSettings,
    settle=settle,
    build="muster_server.systems.presence.reader:build",
    secrets=frozenset({"cluster"}),
    registers="serving",
    wanted=per_site,
    scheme="tcp",
    ends=33,
    row=62,
    pods=Pods(port=7443, keys={"presence.redis": STORES}),
    received="muster_presence_lookups_total",
    sent="muster_presence_users_found_total",
    carried="muster_presence_lookups_total",
    check=lacks,
)
