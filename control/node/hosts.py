"""Whether a request's header Host names this server.

A page of another site, in a browser of this machine, must not read pages without a login by a domain that it points at
this address. Owns the rule. Knows no address of this node: it may be reached by several.
"""

import ipaddress
from typing import Final

LOCAL: Final = (".localhost", ".local", ".internal", ".svc")
"""Suffixes of names that nobody can register: of one machine, of a network, of a cluster."""


def is_ours(host: str) -> bool:
    """Whether the header is absent, an IP address, a name without a dot, or a name that is not public."""
    name = host.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.rstrip(".").lower()
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(LOCAL)
    return True
