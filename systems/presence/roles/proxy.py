"""The descriptor of the role `online-proxy`; its engine is made in `build.py`."""

from typing import Final

from muster_server.plane.kind import Pods, RoleKind, numbers
from muster_server.systems.presence.options import OnlineProxy, PresenceSettings, per_site, settle

PROXY: Final = RoleKind(
    name="online-proxy",
    section="online_proxy",
    process="machine",
    numbers=numbers(20),
    about="takes gateways' packets to every writer of every site",
    options=OnlineProxy,
    settings=PresenceSettings,
    settle=settle,
    build="muster_server.systems.presence.build:proxy",
    dials=("gateway", "edge", "online-writer"),
    secrets=frozenset({"cluster"}),
    wanted=per_site,
    ends=35,
    row=60,
    pods=Pods(port=7441),
    received="muster_presence_reports_total",
    sent="muster_presence_shares_total",
    carried="muster_presence_shares_total",
)
