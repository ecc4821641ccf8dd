"""Writes the units in `deploy/systemd/`, one for each role, and units for processes of several roles: one template.

Owns the text of a unit. It must not know any role.
"""

from collections.abc import Sequence
from typing import Final

TEMPLATE: Final = """\
# Written by `muster config unit {roles}`; edit control/cli/units.py.
# muster-{name}@NAME is {nodes}. All nodes read /etc/muster/muster.toml; each also reads its own file,
# /etc/muster/{name}-NAME.env, with its addresses. See docs/install.md.

[Unit]
Description=Muster {name} %i
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/env muster serve {roles} --name %H-{name}-%i --config /etc/muster/muster.toml
ExecReload=/bin/kill -HUP $MAINPID
EnvironmentFile=-/etc/muster/{name}-%i.env
Environment=PATH=/opt/muster/bin:/usr/local/bin:/usr/bin:/bin

# The node waits for the registry, and for the nodes that it needs, without a limit.
TimeoutStartSec=infinity
# Longer than a drain, which takes 15 s at most.
TimeoutStopSec=30
WatchdogSec=10
Restart=on-failure
# For a reload in the first moments of its start.
RestartForceExitStatus=SIGHUP
RestartSec=1
# Wrong arguments and a wrong configuration do not mend themselves.
RestartPreventExitStatus=2 78

User=muster
Group=muster
StateDirectory=muster
StateDirectoryMode=0700
UMask=0077
LimitNOFILE=65536

NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def unit(roles: Sequence[str]) -> str:
    """Return the unit of a role, `muster-ROLE@.service`, or of several in one process, `muster-ROLE-ROLE@.service`."""
    name = "-".join(roles)
    nodes = f"the node HOST-{name}-NAME" if len(roles) == 1 else f"one process of the nodes HOST-{name}-NAME-ROLE"
    return TEMPLATE.format(roles=",".join(roles), name=name, nodes=nodes)
