"""The checks of the fleet: its broker, Redis and programs, the files that clients need, and its nodes' own reports."""

import asyncio
import os
import resource
import shutil
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Record
from muster_server.control.cluster.programs import FOLDERS
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.control.doctor.finding import Finding, fail, ok, warn
from muster_server.control.errors import UserError
from muster_server.control.host.addresses import address_text
from muster_server.control.host.openfiles import FILES
from muster_server.control.terminal import common
from muster_server.plane.kind import Program
from muster_server.plane.spec import SpecError, password
from muster_server.systems.fleet.asking import INDEX, SCHEDULER
from muster_server.systems.fleet.broker import AUTHORITY
from muster_server.systems.fleet.broker import PROGRAM as MOSQUITTO
from muster_server.systems.fleet.keeper import PROGRAM as REDIS
from muster_server.systems.fleet.options import NONE, Fleet, redis_url, url

CHECK: Final = "fleet"
ANSWERS_S: Final = 2.0
DIFFERS: Final = 0.01
"""An index node that knows fewer clients than another one by this share lacks something."""
BEHIND_MINUTES: Final = 1
FULL: Final = 0.9
SOON_S: Final = 14 * 86_400


def examined(config: Config, record: Record | None) -> list[Finding]:
    """All findings."""
    if not (find_spec("gmqtt") and find_spec("pyroaring") and find_spec("redis")):
        return [fail(CHECK, "its libraries are missing", "pip install 'muster-server[fleet]'")]
    fleet: Fleet = config.section("fleet")
    statuses: dict[str, dict[str, dict[str, Any]]] = {INDEX: {}, SCHEDULER: {}}
    found: list[Finding] = []
    for role, said in statuses.items():
        for process in record.of(role) if record is not None else []:
            try:
                said[process.name] = common.get(process, "/api/v1/status")[1]
            except UserError as error:
                found.append(warn(CHECK, str(error), "see its log"))
    clients = max((int(each.get("clients", 0)) for each in statuses[INDEX].values()), default=0)
    found += [] if fleet.mqtt else [*_program(MOSQUITTO), files(_hard(record), clients)]
    found += [] if fleet.redis else _program(REDIS)
    if fleet.tls_bind and not fleet.mqtt:
        found += certificates(instance.folder(config).program(MOSQUITTO.name), time.time())
    found += asyncio.run(_servers(fleet, config))
    if record is not None and record.of(SCHEDULER):
        found += nodes(statuses[INDEX], statuses[SCHEDULER], int(time.time() // 60))
    return found


def files(most: int | None, clients: int) -> Finding:
    """`most`: limit of files that mosquitto may have open; None: no limit. A client takes one."""
    if most is None:
        return ok(CHECK, f"any number of clients may connect to mosquitto; {clients:,} are connected")
    room = max(0, most - FILES)
    text = f"{room:,} clients may connect to mosquitto; {clients:,} are connected"
    mend = f"ulimit -n {max(2 * most, 65_536)} before muster up, or a broker cluster: fleet.mqtt"
    return warn(CHECK, text, mend) if clients >= FULL * room else ok(CHECK, text)


def certificates(folder: Path, now_s: float) -> list[Finding]:
    """Clients whose last certificate ends soon; `folder`: that of mosquitto."""
    from muster_server.systems.fleet.authority import Authority, AuthorityError

    try:
        records = Authority(folder / AUTHORITY).records()
    except AuthorityError as error:
        return [fail(CHECK, str(error), "restore the folder of the instance from its backup")]
    ends: dict[str, int] = {}
    for each in records:
        if not each.revoked_ms:
            ends[each.client] = max(ends.get(each.client, 0), each.until_ms)
    soon = sorted(client for client, until_ms in ends.items() if until_ms < (now_s + SOON_S) * 1000)
    if not soon:
        return [ok(CHECK, f"{len(ends):,} clients have certificates")] if ends else []
    text = f"certificates of {len(soon)} clients end within 14 days, for example {', '.join(soon[:3])}"
    return [warn(CHECK, text, f"muster fleet cert issue {soon[0]}, and bring it to the client")]


def nodes(
    index: Mapping[str, Mapping[str, Any]], schedulers: Mapping[str, Mapping[str, Any]], minute: int
) -> list[Finding]:
    """The nodes' own statuses, by name; `minute`: now, since 1970."""
    found: list[Finding] = []
    most = max((int(each["clients"]) for each in index.values()), default=0)
    for name, said in index.items():
        if said["broker"] != "connected":
            found.append(
                fail(
                    CHECK,
                    f"{name} has no connection to an MQTT broker",
                    "check the broker, fleet.mqtt and its password",
                )
            )
        if said["clients"] < (1 - DIFFERS) * most:
            text = f"{name} knows {said['clients']:,} clients, but another node {most:,}"
            found.append(
                warn(CHECK, text, "wait for a heartbeat of the clients (fleet.beat_ms); otherwise see its log")
            )
        if str(said["sessions"]).endswith("wait"):
            found.append(warn(CHECK, f"{name}: Redis does not answer, {said['sessions']}", "check fleet.redis"))
    for name, said in index.items():
        if clients := said.get("clients_ahead", 0):
            text = f"{name}: {clients} clients have epochs in the future, for example {', '.join(said['ahead'][:3])}"
            mend = "correct their clocks and restart them; muster fleet heal CLIENT admits one at once"
            found.append(warn(CHECK, text, mend))
            break
    leads = [name for name, said in schedulers.items() if said["leads"]]
    for name, said in schedulers.items():
        if said["store"] != "answers":
            found.append(fail(CHECK, f"{name}: {said['store']}", "correct the database: database.url"))
    if len(leads) != 1:
        text = f"{len(leads)} schedulers lead; one takes over within 4 s"
        found.append(fail(CHECK, text, "run muster doctor again; otherwise see the schedulers' logs"))
    for name in leads:
        found += _lead(name, schedulers[name], minute, len(index))
    return found or [ok(CHECK, f"{leads[0]} leads, {most:,} clients are online")]


def _lead(name: str, said: Mapping[str, Any], minute: int, nodes_there: int) -> list[Finding]:
    found: list[Finding] = []
    if said["broker"] != "connected":
        found.append(
            fail(
                CHECK,
                f"{name} leads without a connection to an MQTT broker",
                "check the broker, fleet.mqtt and its password",
            )
        )
    if (why := said.get("results", "go out")) != "go out":
        found.append(warn(CHECK, f"{name}: results wait: {why}", "run muster topic ls, and see fleet.results_topic"))
    refused: Mapping[str, str] = said.get("refused", {})
    if refused:
        name_of, why = next(iter(refused.items()))
        text = f"{said['tasks_refused']} tasks cannot be scheduled, for example {name_of}: {why}"
        found.append(
            warn(CHECK, text, "muster fleet task ls lists them; correct their rows, then run muster fleet refresh")
        )
    behind = minute - int(said["last_minute"])
    if behind > BEHIND_MINUTES:
        found.append(
            warn(CHECK, f"{name} is {behind} minutes behind the clock", "see its log, and the log of the database")
        )
    if behind < 0:
        text = f"the clock was set back: no task runs for {-behind} minutes"
        found.append(warn(CHECK, text, "if the clock is correct now: muster fleet heal; keep it steady (chrony)"))
    if len(said["index_nodes"]) < nodes_there:
        text = f"{name} gets answers of {len(said['index_nodes'])} of {nodes_there} index nodes"
        found.append(warn(CHECK, text, "see the logs of the other nodes"))
    return found


def _program(program: Program) -> list[Finding]:
    where = shutil.which(program.binary, path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))
    if where is None:
        return [
            fail(CHECK, f"{program.binary} is not installed; {program.about}", program.mend.removeprefix("to mend: "))
        ]
    return [ok(CHECK, f"{where}: {program.about}")]


def _hard(record: Record | None) -> int | None:
    """The limit of open files of the running mosquitto, else of this process."""
    pids = [each.pid for each in (record.programs or () if record is not None else ()) if each.name == MOSQUITTO.name]
    try:
        _, hard = resource.prlimit(pids[0] if pids else 0, resource.RLIMIT_NOFILE)
    except (OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


async def _servers(fleet: Fleet, config: Config) -> list[Finding]:
    """Check other servers, all at once."""
    brokers = _brokers(fleet) if fleet.mqtt else _nothing()
    redis = _redis(fleet, config) if fleet.redis not in {"", NONE} else _nothing()
    return [each for found in await asyncio.gather(brokers, redis) for each in found]


async def _nothing() -> list[Finding]:
    return []


async def _brokers(fleet: Fleet) -> list[Finding]:
    """Check whether each broker accepts the plane's user."""
    from muster_server.systems.fleet import schema
    from muster_server.systems.fleet.mqtt import Link, LinkError

    try:
        told, word = url(fleet.mqtt), password(absolute(fleet.password_file))
    except SpecError as error:
        return [fail(CHECK, str(error), "run muster config check")]

    async def tried(number: int, place: tuple[str, int]) -> Finding:
        where, name = address_text(*place), f"muster-doctor-{os.getpid()}-{number}"
        link = Link([place], told.user, word, schema.ANSWERS, lambda _topic, _payload: None, name=name, tls=told.tls)
        try:
            async with asyncio.timeout(ANSWERS_S):
                await link.open()
        except (LinkError, TimeoutError) as error:
            text = str(error) or f"broker {where}: no answer in {ANSWERS_S:g} s"
            return fail(CHECK, text, "check the broker, the network, fleet.mqtt and fleet.password_file")
        finally:
            await link.close()
        return ok(CHECK, f"broker {where} takes {told.user}")

    return list(await asyncio.gather(*(tried(*each) for each in enumerate(told.places))))


async def _redis(fleet: Fleet, config: Config) -> list[Finding]:
    from muster.redis.connections import opened
    from muster_server.systems.fleet.redis import FAILURES

    try:
        word = password(absolute(fleet.redis_password_file))
        async with AsyncExitStack() as stack, asyncio.timeout(ANSWERS_S):
            one, close = opened(redis_url(fleet.redis), word, ANSWERS_S)
            stack.push_async_callback(close)
            await one.get(f"muster:{{{config.instance.name}}}:fleet:life")
    except (*FAILURES, SpecError) as error:
        text = " ".join(str(error).split())[:200] or f"no answer in {ANSWERS_S:g} s"
        return [
            fail(
                CHECK,
                f"Redis: {text}",
                "check Redis, fleet.redis and fleet.redis_password_file; or set fleet.redis = none",
            )
        ]
    return [ok(CHECK, "Redis answers: sessions and counts are stored")]
