"""Judges whether `muster serve` nodes prove their identity, and whether the list contains the nodes of this machine."""

from collections.abc import Mapping
from pathlib import Path

from muster_server.control.config.options import Cluster
from muster_server.control.doctor.finding import Finding, fail, ok, warn
from muster_server.plane.keys import listed
from muster_server.plane.spec import SpecError

CHECK = "identity"


def judged(cluster: Cluster, keys: Mapping[str, str], known: Mapping[str, tuple[int, str]]) -> list[Finding]:
    """Return all findings. `keys`: public keys of this machine's nodes, by name; `known`: number and role of running
    nodes."""
    demand, file = cluster.identity, cluster.nodes_file
    if demand == "off":
        return [ok(CHECK, "off: any process with the cluster's secret may link as any node")]
    try:
        if not file:
            raise SpecError("cluster.nodes_file: missing; cluster.identity needs the list of nodes and their keys")
        lines = {key.hex(): (number, role) for number, role, key in listed(Path(file).expanduser())}
    except SpecError as error:
        return [
            fail(CHECK, str(error), "write a line for each node, NUMBER ROLE PUBLIC-KEY; no node can start without it")
        ]
    found: list[Finding] = []
    for name, key in keys.items():
        number, role = known.get(name, ("NUMBER", "ROLE"))
        mend = f"add this line to it on every host, then send SIGHUP: {number} {role} {key} {name}"
        if key not in lines:
            found.append(fail(CHECK, f"the key of {name} is not in {file}", mend))
        elif name in known and lines[key] != known[name]:
            there = " ".join(map(str, lines[key]))
            found.append(fail(CHECK, f"{name} is {number} {role}, but {file} lists its key as {there}", mend))
    if demand != "required":
        text = f"{demand}: any process with the cluster's secret may still link as any node"
        found.append(warn(CHECK, text, 'set identity = "required" once each link in /api/v1/status has an identity'))
    here = f"{len(keys)} with a key here" if keys else "none with a key here"
    return found or [ok(CHECK, f"required: {len(lines)} nodes in {file}, {here}")]
