"""`muster serve ROLE`: one node of a cluster on this host, in the foreground, until a signal."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control.config import load as config
from control.errors import USAGE, UserError
from control.host.openfiles import enough_files
from plane.kinds import kind


def serve(config_file: Path | None, role: str, flags: Mapping[str, tuple[Any, str]]) -> int:
    """Run the node. SIGTERM and SIGINT drain it, SIGHUP reads the configuration again."""
    from control.cluster.daemon import run

    if "serve.cluster" in flags and not kind(role).clustered:
        raise UserError(f"--cluster: a {role} belongs to no cluster, it serves all", USAGE)
    if "serve.partition" in flags and not kind(role).partitioned:
        raise UserError(f"--partition: a {role} has no partition", USAGE)
    read = functools.partial(config.load, config_file, flags=flags, roles=(role,))
    loaded = read()
    enough_files()
    return run(loaded, role, read)
