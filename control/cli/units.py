"""Writes the units in `deploy/systemd/`: one template, with the name of each role.

Owns the text of a unit. It must not know any role.
"""

from typing import Final

TEMPLATE: Final = """\
# Written by `muster config unit {role}`; edit control/cli/units.py.
# muster-{role}@NAME is the node HOST-{role}-NAME. All nodes read /etc/muster/muster.toml; each also reads its own file,
# /etc/muster/{role}-NAME.env, with its addresses. See docs/operations.md.

[Unit]
Description=Muster {role} %i
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/env muster serve {role} --name %H-{role}-%i --config /etc/muster/muster.toml
ExecReload=/bin/kill -HUP $MAINPID
EnvironmentFile=-/etc/muster/{role}-%i.env
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


def unit(role: str) -> str:
    """Return the unit of a role, `muster-ROLE@.service`."""
    return TEMPLATE.format(role=role)
