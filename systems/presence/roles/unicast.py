"""The descriptor of the role `unicast`; it is made in `systems/presence/unicast.py`."""

from typing import Final

from muster_server.plane.kind import Pods, RoleKind, numbers
from muster_server.systems.presence.options import PresenceSettings, Unicast, per_site, settle

UNICAST: Final = RoleKind(
    name="unicast",
    process="machine",
    numbers=numbers(23),
    about="takes messages to the devices of one user",
    options=Unicast,
    settings=PresenceSettings,
    settle=settle,
    build="muster_server.systems.presence.unicast:build",
    dials=("gateway", "edge", "proxy"),
    secrets=frozenset({"cluster"}),
    wanted=per_site,
    ends=34,
    row=63,
    pods=Pods(port=7442),
    received="muster_unicast_messages_total",
    sent="muster_unicast_delivered_total",
    carried="muster_unicast_messages_total",
)
