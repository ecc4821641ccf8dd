"""The console's own routes: sessions, the nodes, findings, keys, the audit log. Systems bring the others."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Response, Router, delete, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, QueryParameter
from litestar.types import ControllerRouterHandler

from muster_server.control.cluster import requests
from muster_server.control.cluster.requests import Add, Remove
from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.control.errors import TRY_LATER, UserError
from muster_server.plane import systems
from muster_server.plane.kinds import kinds, partitioned
from muster_server.plane.systems import actions
from muster_server.systems.console.http import pages
from muster_server.systems.console.http.entry import STATE, ConsoleEntry
from muster_server.systems.console.http.streams import PageStream
from muster_server.systems.console.layers import layers_of
from muster_server.systems.console.sampler import LINKS_MAX, SORTS, Seen
from muster_server.systems.console.sessions import Session
from muster_server.systems.http import keys, uses
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.face import AnyRequest
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import EventStream

LIMIT: Final = 50
NODES_DRAWN: Final = 300
"""Limit of nodes in the picture; its answer stays below 256 KiB."""
Entry = NamedDependency[ConsoleEntry]
Search = Annotated[str, QueryParameter(max_length=200, description="Text that a row contains")]
Offset = Annotated[int, QueryParameter(ge=0, le=1 << 32)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proof of a login: a name with its password, an API key, or the code of a one-time login."""

    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    password: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""
    code: Annotated[str, msgspec.Meta(max_length=200)] = ""


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make."""

    name: Annotated[str, msgspec.Meta(max_length=100)]
    scopes: Annotated[tuple[str, ...], msgspec.Meta(max_length=keys.SCOPES_MAX)]


class Doubling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of partitions that the layer will have: twice the present one."""

    to: Annotated[int, msgspec.Meta(ge=2, le=PARTITIONS_MAX)]


class NewNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node to start."""

    role: Annotated[str, msgspec.Meta(max_length=40)]
    partition: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0


@post("/session", status_code=200, opt={"body": Body((Login,))})
async def login(request: AnyRequest, entry: Entry) -> Response[bytes]:
    """Log in."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem("unsupported_media_type", "send the login as application/json")
    asked = decoded(await request.body(), Login)
    if asked.code:
        session = entry.login_by_link(_scope(request), asked.code)
    elif asked.key:
        session = entry.login_by_key(_scope(request), asked.key)
    else:
        session = await entry.login(_scope(request), asked.name, asked.password)
    return _session(entry, session, fresh=True)


@get("/session")
async def session(request: AnyRequest, entry: Entry) -> Response[bytes]:
    """The present session, with the token of its requests."""
    found = entry.session(_scope(request))
    if found is not None:
        return _session(entry, found)
    made = entry.proxied(_scope(request))
    if made is None:
        raise Problem("no_credential", "log in first")
    return _session(entry, made, fresh=True)


@delete("/session", status_code=200)
async def logout(request: AnyRequest, entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """Log out."""
    entry.logout(_own(request), _scope(request))
    gone = Cookie(key=entry.cookie, value="", max_age=0, path="/", secure=True, httponly=True, samesite="strict")
    return Response(b"{}", media_type="application/json", cookies=[gone])


@get("/overview")
async def overview(entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """The summary of the last reading."""
    _seen(entry)
    return _json(entry.sampler.overview())


@get("/events")
async def events(request: AnyRequest, entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """The summaries of all readings as they come."""
    if entry.draining:
        raise Problem("draining")
    return EventStream(PageStream(entry, caller, _own(request)))


@get("/history")
async def history(entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """The sums of the last hour, by columns."""
    points = entry.sampler.history
    names = [each.name for each in msgspec.structs.fields(points[0])] if points else []
    return _json({name: [getattr(point, name) for point in points] for name in names})


@get("/nodes")
async def nodes(
    entry: Entry,
    caller: NamedDependency[Caller],
    search: Search = "",
    sort: Annotated[str, QueryParameter(max_length=20)] = "role",
    offset: Offset = 0,
    limit: Limit = LIMIT,
) -> Response[bytes]:
    """The nodes."""
    if sort not in SORTS:
        raise Problem("bad_request", f"sort: unknown order {sort!r:.40} (expected one of {', '.join(SORTS)})")
    words = search.casefold().split()
    rows = [
        row
        for row in _seen(entry).rows
        if all(word in f"{row.name} {row.role} {row.system} {row.state} {row.version}".casefold() for word in words)
    ]
    rows.sort(key=SORTS[sort])
    return _json({"total": len(rows), "rows": rows[offset : offset + limit]})


@get("/nodes/{name:str}")
async def node(entry: Entry, caller: NamedDependency[Caller], name: FromPath[str]) -> Response[bytes]:
    """One node: its state as it tells it, its figures, its links."""
    seen = _seen(entry)
    process = next((each for each in seen.record.processes if each.name == name), None)
    if process is None:
        raise Problem("not_found", f"no node {name!r:.80}")
    reading = seen.readings[process.node]
    status = msgspec.json.encode(reading.status)
    shown = dict(reading.status) if len(status) <= 65_536 else {"state": reading.state, "cut": "the status is too long"}
    row = next(each for each in seen.rows if each.name == name)
    links = [line for line in seen.links if name in {line.sender, line.receiver}][:100]
    metrics = dict(sorted(reading.values.items())[:1_000])
    error = "" if reading.error is None else str(reading.error)
    return _json({"row": row, "status": shown, "metrics": metrics, "links": links, "error": error})


@get("/topology")
async def topology(entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """The nodes by role, and the worst links between them."""
    seen = _seen(entry)
    rows = sorted(seen.rows, key=lambda row: (kinds()[row.role].row if row.role in kinds() else 99, row.name))[
        :NODES_DRAWN
    ]
    names = {row.name for row in rows}
    links = [line for line in seen.links if line.sender in names and line.receiver in names][:LINKS_MAX]
    made = seen.record.pid != 0
    addable = [of.name for of in kinds().values() if of.plural] if made else []
    return _json(
        {
            "nodes": rows,
            "links": links,
            "all_links": len(seen.links),
            "all_nodes": len(seen.rows),
            "addable": addable,
            "partitioned": sorted(partitioned()),
            "layers": await asyncio.to_thread(layers_of, seen),
            "growths": [growth for name in sorted(partitioned()) if (growth := entry.growths.last(name))],
        }
    )


@post("/topology/layers/{layer:str}", status_code=202, opt={"body": Body((Doubling,))})
async def double_layer(
    request: AnyRequest, entry: Entry, caller: NamedDependency[Caller], layer: FromPath[str]
) -> Response[bytes]:
    """Begin to double the partitions of a layer of the instance of `muster up`."""
    asked = decoded(await request.body(), Doubling)
    request.scope["state"]["note"] = f"to {asked.to} partitions"
    known = await asyncio.to_thread(layers_of, _seen(entry))
    row = next((each for each in known if each.layer == layer), None)
    if row is None:
        raise Problem("not_found", f"no layer {layer!r:.80}")
    if not row.grows:
        raise Problem("conflict", f"{layer} is not doubled from here: muster cluster grow {layer}"[:400])
    if asked.to != 2 * row.partitions:
        raise Problem("conflict", f"{layer} has {row.partitions} partitions now; reload the page")
    return _json(await entry.growths.begin(layer, asked.to), 202)


@post("/topology/nodes", status_code=200, opt={"body": Body((NewNode,))})
async def add_node(request: AnyRequest, entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """Start one more node of the instance of `muster up`."""
    asked = decoded(await request.body(), NewNode)
    if asked.role not in kinds() or not kinds()[asked.role].plural:
        raise Problem("bad_request", f"no node of the role {asked.role!r:.40} can be added")
    request.scope["state"]["note"] = f"{asked.role}, partition {asked.partition}"
    return _json(await _asked(entry, Add(role=asked.role, partition=asked.partition)))


@delete("/topology/nodes/{name:str}", status_code=200)
async def drain_node(entry: Entry, caller: NamedDependency[Caller], name: FromPath[str]) -> Response[bytes]:
    """Drain a node of the instance of `muster up`, and end it permanently. It may be named as in the registry."""
    record = _seen(entry).record
    process = next((each for each in record.processes if name in {each.name, f"{record.name}-{each.name}"}), None)
    if process is None:
        raise Problem("not_found", f"no node {name!r:.80}")
    return _json(await _asked(entry, Remove(node=process.node)))


@get("/doctor")
async def doctor(entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """The findings of the last examination."""
    return _json(await entry.examiner.last())


@post("/doctor", status_code=200)
async def examine(entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """Examine this machine, the configuration and the instance again."""
    return _json(await entry.examiner.again())


@get("/keys")
async def listed_keys(
    entry: Entry, caller: NamedDependency[Caller], search: Search = "", offset: Offset = 0, limit: Limit = LIMIT
) -> Response[bytes]:
    """The API keys, without their secrets."""
    try:
        found = (await asyncio.to_thread(keys.read, entry.keys_file)).keys
        used = await asyncio.to_thread(uses.read, entry.keys_file)
    except UserError as error:
        raise Problem("unavailable", str(error)) from None
    wanted = search.casefold()
    rows = [
        {"id": key.id, "name": key.name, "scopes": key.scopes, "created": key.created, "used": used.get(key.id)}
        for key in sorted(found, key=lambda key: -key.created)
        if wanted in f"{key.name} {' '.join(key.scopes)}".casefold()
    ]
    scopes = [{"name": each.name, "text": each.text} for each in actions().values()]
    return _json({"total": len(rows), "rows": rows[offset : offset + limit], "actions": scopes})


@post("/keys", status_code=201, opt={"body": Body((NewKey,))})
async def create_key(request: AnyRequest, entry: Entry, caller: NamedDependency[Caller]) -> Response[bytes]:
    """Make a key; the answer is the only one that has its secret."""
    asked = decoded(await request.body(), NewKey)
    known = {action.name: action.text for action in actions().values()}
    request.scope["state"]["note"] = f"{asked.name}: {' '.join(asked.scopes)}"
    try:
        key, secret = await asyncio.to_thread(keys.create, entry.keys_file, asked.name, asked.scopes, known)
    except UserError as error:
        raise Problem("bad_body", str(error)) from None
    return _json({"id": key.id, "name": key.name, "scopes": key.scopes, "key": secret}, 201)


@delete("/keys/{which:str}", status_code=200)
async def revoke_key(entry: Entry, caller: NamedDependency[Caller], which: FromPath[str]) -> Response[bytes]:
    """Revoke a key, by its name or id."""
    try:
        key = await asyncio.to_thread(keys.revoke, entry.keys_file, which)
    except UserError as error:
        raise Problem("not_found", str(error)) from None
    return _json({"id": key.id, "name": key.name})


@get("/audit")
async def audit_log(
    entry: Entry, caller: NamedDependency[Caller], search: Search = "", offset: Offset = 0, limit: Limit = LIMIT
) -> Response[bytes]:
    """Who did what when, the newest first."""
    rows, more = await asyncio.to_thread(entry.audit.read, search, offset, limit)
    return _json({"total": offset + len(rows) + more, "rows": rows, "more": more})


def handlers(entry: ConsoleEntry) -> Sequence[ControllerRouterHandler]:
    """The handlers of one console."""

    def provided() -> ConsoleEntry:
        return entry

    own: list[ControllerRouterHandler] = [login, session, logout, overview, events, history, nodes, node, topology]
    own += [double_layer, add_node, drain_node, doctor, examine, listed_keys, create_key, revoke_key, audit_log]
    dependencies = {"entry": Provide(provided, sync_to_thread=False)}
    router = Router("/api/v1/console", route_handlers=own, dependencies=dependencies, include_in_schema=False)
    return [pages.page, pages.asset, router]


async def _asked(entry: ConsoleEntry, request: requests.Request) -> list[requests.Seated]:
    try:
        return await requests.ask(entry.folder, request)
    except UserError as error:
        code: Literal["unavailable", "conflict"] = "unavailable" if error.exit_code == TRY_LATER else "conflict"
        raise Problem(code, str(error)) from None


def _seen(entry: ConsoleEntry) -> Seen:
    if entry.sampler.seen is None:
        raise Problem("unavailable", entry.sampler.error or "the first reading of the nodes has not ended; try again")
    return entry.sampler.seen


def _scope(request: AnyRequest) -> Any:
    return request.scope


def _own(request: AnyRequest) -> Session:
    """The session of a request that the entry has let pass."""
    found: Session = request.scope["state"][STATE]
    return found


def _session(entry: ConsoleEntry, session: Session, *, fresh: bool = False) -> Response[bytes]:
    running = {each.name for each in entry.sampler.seen.overview.systems} if entry.sampler.seen else set[str]()
    document = {
        "user": session.user,
        "role": session.role,
        "csrf": session.csrf,
        "until": session.began + entry.options.session_s,
        "now": time.time(),
        "systems": {name: name in running for name in systems.named()},
    }
    made = Cookie(
        key=entry.cookie,
        value=session.id,
        max_age=entry.options.session_s,
        path="/",
        secure=True,
        httponly=True,
        samesite="strict",
    )
    return Response(msgspec.json.encode(document), media_type="application/json", cookies=[made] if fresh else [])


def _json(document: Any, status: int = 200) -> Response[bytes]:
    return Response(msgspec.json.encode(document) + b"\n", status_code=status, media_type="application/json")
