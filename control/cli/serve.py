"""`muster serve ROLE[,ROLE…]`: one node of a cluster on this host, or several in one process, in the foreground, until a
signal."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster_server.control.config import load as config
from muster_server.control.errors import USAGE, UserError
from muster_server.control.host.openfiles import enough_files
from muster_server.plane.kinds import kind, kinds


def serve(config_file: Path | None, roles: str, flags: Mapping[str, tuple[Any, str]]) -> int:
    """Run the nodes. SIGTERM and SIGINT drain them, SIGHUP reloads the configuration."""
    from muster_server.control.cluster.daemon import run

    wanted = parsed(roles)
    if "serve.cluster" in flags and not any(kind(role).clustered for role in wanted):
        raise UserError(f"--cluster: a {wanted[0]} serves all clusters; leave out --cluster", USAGE)
    if "serve.partition" in flags and not any(kind(role).partitioned for role in wanted):
        raise UserError(f"--partition: a {wanted[0]} has no partition; leave out --partition", USAGE)
    read = functools.partial(config.load, config_file, flags=flags, roles=wanted)
    loaded = read()
    enough_files()
    return run(loaded, wanted, read)


def parsed(text: str) -> tuple[str, ...]:
    """The roles of `gateway,proxy`, each once. Raises `UserError`."""
    roles = tuple(text.split(","))
    for role in roles:
        if role not in kinds():
            raise UserError(f"invalid role {role!r} (expected one of {', '.join(kinds())})", USAGE)
        if roles.count(role) > 1:
            raise UserError(f"{role} is named twice; run a second node of a role in a process of its own", USAGE)
        if len(roles) > 1 and not kind(role).linked:
            machines = ", ".join(each.name for each in kinds().values() if each.linked)
            raise UserError(f"a {role} needs a process of its own; these roles may share one: {machines}", USAGE)
    return roles
