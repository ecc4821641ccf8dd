"""`muster status`: the instance and each of its nodes."""

import re
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from muster_server.control.cluster.instance import Record
from muster_server.control.errors import UserError
from muster_server.control.host.addresses import address_text
from muster_server.control.terminal import common, tables
from muster_server.control.terminal.found import Target, once
from muster_server.control.terminal.readings import FAILS, releases, silent, uncovered
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import kind, kinds, partitioned, system_of

LEAST: Final = ("epoch", "node", "pid", "partition", "admin")
"""Columns of the table that a narrow terminal drops, the first of them first."""


def show(where: Target, as_json: bool) -> int:
    """Print every node's status. Exit code 1 if a node does not serve, or a partition has no node that serves.

    A starting prober does not count, because no command waits for it.
    """
    record = once(where)
    roles: list[dict[str, Any]] = []
    processes = record.processes
    said = common.together(lambda process: common.tried(process, "/api/v1/status"), processes)
    for process, each in zip(processes, said, strict=True):
        if isinstance(each, UserError):
            state, why = silent(process), str(process.waits or each)
            answer = {"role": process.role, "node": process.node, "state": state, "error": why}
            say(f"muster: {process.name} {state}: {why}" if process.waits else f"muster: {why}")
        else:
            _, answer = each
            if "waits" in answer:
                answer = {**answer, "node": process.node, "state": f"waits for {answer['waits']}"}
        known: dict[str, Any] = {"name": process.name, "partition": process.partition}
        known |= {"restarts": process.restarts} if record.pid else {"registered": process.registered}
        roles.append({**answer, **known, "admin": process.admin_url})
    missing = uncovered(record, roles)
    programs = record.programs or []
    serve = all(role["state"] == "ready" or _only_begins(role) for role in roles)
    healthy = serve and not missing and all(program.ready for program in programs)
    with common.verdict_after():
        if as_json:
            registry = {"registry": record.registry, "uncovered": missing} if record.registry else {}
            about = {"instance": record.name, "version": record.version, "faults": record.faults}
            beside = {"programs": programs} if programs else {}
            common.print_json({**about, **registry, **beside, "systems": systems(record), "nodes": roles})
        else:
            _print(record, roles, missing)
    return 0 if healthy else 1


def _print(record: Record, roles: list[dict[str, Any]], missing: dict[str, list[int]]) -> None:
    console = common.out()
    by = f"process {record.pid}" if record.pid else f"{common.counted(len(roles), 'node')} of muster serve"
    console.print(Text.assemble((record.name, "bold"), f" {record.version}, {by}"))
    if record.faults:
        console.print(Text.assemble(("FAULTS ARE INJECTED ON PURPOSE", "bold red"), ", as configured"))
    if record.registry:
        console.print(f"registry {record.registry}: {_connected(roles)}")
    for line in releases({role["name"]: role for role in roles}):
        console.print(f"release {line}", soft_wrap=True)
    for of, partition in ((of, partition) for of, partitions in missing.items() for partition in partitions):
        console.print(Text.assemble((f"partition {partition} of {of} has no running replica", "bold red")))
    for role in roles:
        if database := role.get("database"):
            console.print(f"database {database['url']}, {role['name']}: {_kept(database)}", soft_wrap=True)
        for note in role.get("notes", []):
            console.print(f"{role['name']}: {note}", soft_wrap=True)
    for program in record.programs or []:
        state = f"process {program.pid}, {common.counted(program.restarts, 'restart')}"
        if not program.ready:
            state = f"{FAILS}: {program.waits}" if program.waits else "not ready"
        console.print(f"program {program.name}, {address_text(*program.bind)}: {state}")
    table = Table(box=None, pad_edge=False)
    more = "restarts" if record.pid else "registered"
    for column in ("name", "partition", "node", "state", more, "epoch", "pid", "address", "admin"):
        table.add_column(column)
    for role in sorted(roles, key=lambda role: (_row(role["role"]), role["partition"], _natural(role["name"]))):
        addresses = ", ".join(address_text(*each) for each in role.get("addresses", []))
        cells = (
            role["name"],
            role["partition"] if role["role"] in partitioned() else "",
            role["node"],
            role["state"],
            role[more],
            role.get("epoch", ""),
            role.get("pid", ""),
        )
        style = None if role["state"] == "ready" else "yellow" if _only_begins(role) else "red"
        table.add_row(*(str(cell) for cell in cells), addresses, role["admin"], style=style)
    tables.show(console, table, LEAST)


def _row(role: str) -> tuple[int, str]:
    """Sort key of a role."""
    return (kind(role).row if role in kinds() else len(kinds()), role)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that orders the numbers in names by value: broker-2 before broker-10."""
    return [(int(each), "") if each.isdigit() else (0, each) for each in re.split(r"(\d+)", name)]


def _kept(database: dict[str, Any]) -> str:
    """Describe the state of a router's database."""
    start = database["warm_start"]
    if database["connected"]:
        return f"{start}; {database['written']} changes written, {database['waiting']} wait"
    return f"{start}; cannot write, {database['waiting']} changes wait: {database['error'] or 'no answer yet'}"


def _connected(roles: list[dict[str, Any]]) -> str:
    """Describe the nodes' connections to the registry."""
    without = [role["name"] for role in roles if role.get("registry", {}).get("session") != "connected"]
    if not without:
        return "all are connected"
    return f"not connected: {', '.join(without)}; they use the last map"


def _only_begins(role: dict[str, Any]) -> bool:
    return role["role"] in kinds() and not kind(role["role"]).awaited and role["state"] == "starting"


def systems(record: Record) -> dict[str, dict[str, Any]]:
    """The address of the first face of each system that has one."""
    found: dict[str, dict[str, Any]] = {}
    for process in record.processes:
        if process.bind:
            host, port = process.bind
            said = {"url": kind(process.role).url(host, port, process.secure), "host": host, "port": port}
            found.setdefault(system_of(process.role), said)
    return found
