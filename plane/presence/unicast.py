"""The descriptor of the role `unicast`; its engine is made in `build.py`."""

from typing import Final

from plane.kind import Pods, RoleKind, numbers
from plane.presence.options import PresenceSettings, Unicast, settle

UNICAST: Final = RoleKind(
    name="unicast",
    process="machine",
    numbers=numbers(23),
    about="takes messages to the devices of one user",
    options=Unicast,
    settings=PresenceSettings,
    settle=settle,
    build="plane.presence.build:unicast",
    dials=("gateway",),
    secrets=frozenset({"cluster"}),
    wanted=lambda section: 0,  # per_site, once it is built
    ends=34,
    row=63,
    pods=Pods(port=7442),
    received="muster_unicast_messages_total",
    sent="muster_unicast_delivered_total",
    carried="muster_unicast_messages_total",
)
