"""The command `muster`: its subcommands and options.

`control/cli/` and `systems/<system>/cli/` do the work of a subcommand; they are imported when it is used.
Conventions: data on stdout, everything else on stderr; a mistake is one line and an exit code (`control/errors.py`).
"""

import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster_server.control.errors import FAILURE, USAGE, UserError
from muster_server.control.terminal.choices import Addable, Column, Layer, Served
from muster_server.control.terminal.options import (
    ConfigFile,
    Json,
    NodeAddress,
    RegistryUrl,
    Svg,
    alone,
    chance,
    unused,
)
from muster_server.control.terminal.words import say
from muster_server.plane import systems
from muster_server.plane.kind import System, named
from muster_server.plane.kinds import kind, kinds

if TYPE_CHECKING:
    from muster_server.control.cli.grow import LayerRef

RUN, USERS, WATCH = "Run", "Users", "Watch"
"""Headings of the subcommands that belong to no system."""

app: Final = typer.Typer(
    name="muster",
    help="Deliver in real time: rooms, presence, likes, delayed messages, and fleets of devices. Each system is a word or"
    " a few below, and `muster up` runs them on this machine.",
    epilog="Example: muster up --demo",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
cluster_app: Final = typer.Typer(
    help="Show, add and remove nodes; double partitions.",
    epilog="Example: muster cluster show",
    no_args_is_help=True,
)
replica_app: Final = typer.Typer(
    help="Add and remove replicas of a partition of brokers or routers, while messages flow.",
    epilog="Example: muster cluster replica add broker 1",
    no_args_is_help=True,
)
load_app: Final = typer.Typer(
    help="Load a deployment by an open schedule, check everything, and report: rates, latencies, losses.",
    epilog="Example: muster load rooms --members 1000 --rate 1000 --for 30s --assert lost=0",
    no_args_is_help=True,
    invoke_without_command=True,
)
config_app: Final = typer.Typer(
    help="Check, show and document the configuration; print units and manifests.",
    epilog="Example: muster config check",
    no_args_is_help=True,
)
app.add_typer(cluster_app, name="cluster", rich_help_panel=RUN)
cluster_app.add_typer(replica_app, name="replica")
app.add_typer(config_app, name="config", rich_help_panel=RUN)
app.add_typer(load_app, name="load", rich_help_panel=WATCH)

Chance = Annotated[str | None, typer.Option(metavar="CHANCE", help="Fault on every link, a probability: 0.02 or 2%.")]
TokenRights = Annotated[
    str, typer.Option("--rights", metavar="WORDS", help="Rights of a user's token: read, publish, or read,publish.")
]
TokenTime = Annotated[str, typer.Option("--expires", metavar="TIME", help="Lifetime of the token: 90s, 15m, 1h, 7d.")]
Ms = Annotated[int | None, typer.Option(min=0, help="Fault on every link, in ms.")]
Role = Annotated[Served, typer.Argument(metavar="ROLE", help=f"One of {', '.join(Served)}.")]


def amount(text: str) -> Any:
    """An option that is a number of anything, as 2000000 or 2e6. `text`: its help."""
    return typer.Option(min=0.0, max=1e12, metavar="NUMBER", help=text)


Roles = Annotated[
    str,
    typer.Argument(
        metavar="ROLE[,ROLE...]",
        help=f"One of {', '.join(Served)}; or several that share a process: gateway,proxy.",
        autocompletion=lambda: [str(each) for each in Served],
    ),
]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, max=255)]
Cluster = Annotated[str, typer.Option(metavar="NAME", help="Cluster of the brokers.")]
Node = Annotated[str, typer.Argument(metavar="ID", help="The node's number, or its name.")]


FLAGS: Final = {"systems.enabled": "--with"}
"""Flags whose names differ from their keys."""


def stores(redis: str | None) -> dict[str, str | None]:
    """The keys that `--redis` sets. A list of several stores applies only to presence; `none` only to the fleet."""
    if redis is None:
        return {}
    if redis.count("://") > 1:
        return {"presence.redis": redis}
    one = redis if redis.startswith(("redis://", "rediss://")) else None
    return {"fleet.redis": redis, "likes.redis": one, "presence.redis": redis if "://" in redis else None}


def counts(word: Callable[..., int]) -> Callable[..., int]:
    """Give a subcommand an option for each key of `[up]`, from the descriptors: the number of nodes of a role."""
    nodes = Annotated[int | None, typer.Option(metavar="NODES", help="Number of nodes.")]
    grid = Annotated[
        str | None, typer.Option(metavar="PARTITIONSxREPLICAS", help="Number of nodes: 2x2, or 2 for 2x1.")
    ]
    signature = inspect.signature(word)
    fixed = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            of.plural.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=grid if of.partitioned else nodes,
        )
        for of in kinds().values()
        if of.plural
    ]
    vars(word)["__signature__"] = signature.replace(parameters=[*fixed, *more])
    return word


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _options(
    wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version, as `muster version` does."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command(epilog="Example: muster up --demo --gateways 2 --brokers 2x2", rich_help_panel=RUN)
@counts
def up(
    config: ConfigFile = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run a checked load and the room demo, and print a line per second.")
    ] = False,
    tour: Annotated[bool, typer.Option("--tour", help="With --demo: first run a few commands of each system.")] = False,
    for_: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="SECONDS", help="Stop after this time.")
    ] = None,
    members: Annotated[int | None, typer.Option(min=1, help="Members of the load's room.")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Messages per second of the load.")] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where nodes register: embedded (default), zk://HOST:PORT,HOST:PORT/PATH, or none."
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where routers store memberships: sqlite (default), sqlite:///PATH, mysql://USER@HOST/NAME, "
            "postgresql://USER@HOST/NAME, or none.",
        ),
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of the fleet's MQTT brokers, mqtt://USER@HOST,HOST or mqtts://… [run mosquitto here].",
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Redis of the fleet's sessions and of presence: redis://HOST:PORT/DB, redis+sentinel://…, or "
            "redis+cluster://…; none: no sessions [run redis-server here]. Likes write a copy to a redis:// store. "
            "Presence accepts a list, one store for each site.",
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Log of likes and of presence's changes, kafka://HOST:PORT,HOST:PORT/PREFIX [in the instance's "
            "folder].",
        ),
    ] = None,
    sites: Annotated[int | None, typer.Option(min=1, max=4, help="Number of presence sites [2].")] = None,
    writers: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Number of presence shards at each site, for example 2 or 2,3 [1]."),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,…", help="Kafka for presence's changes only [as --log].")
    ] = None,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--apart",
            help="Let all routers, brokers, gateways and proxies share one process, or none [the first of each "
            "share one].",
        ),
    ] = None,
    loss: Chance = None,
    duplicate: Chance = None,
    reorder: Chance = None,
    corrupt: Chance = None,
    delay_ms: Ms = None,
    jitter_ms: Ms = None,
    with_: Annotated[
        str | None,
        typer.Option("--with", metavar="SYSTEM,…", help="Run these systems besides rooms; all: every system."),
    ] = None,
    json: Json = False,
    **nodes: int | str | None,
) -> int:
    """Run proxies, brokers, routers and gateways on this machine, one of each by default, until Ctrl-C."""
    from muster_server.control.cli.up import up as run
    from muster_server.control.terminal import common

    if not demo:
        unused({"--members": members is not None, "--rate": rate is not None, "--json": json, "--tour": tour}, "--demo")
    processes = None if together is None else "together" if together else "apart"
    wanted: dict[str, Any] = {
        "demo.members": members,
        "demo.rate": rate,
        **{f"up.{plural}": count for plural, count in nodes.items()},
        "up.processes": processes,
        "systems.enabled": with_,
        "registry.url": registry,
        "database.url": database,
        "fleet.mqtt": mqtt,
        **stores(redis),
        "likes.log": log,
        "presence.sites": sites,
        "presence.writers": writers,
        "presence.log": f"kafka://{kafka}" if kafka else log,
        "faults.loss": chance("--loss", loss),
        "faults.duplicate": chance("--duplicate", duplicate),
        "faults.reorder": chance("--reorder", reorder),
        "faults.corrupt": chance("--corrupt", corrupt),
        "faults.delay_ms": delay_ms,
        "faults.jitter_ms": jitter_ms,
    }
    names = FLAGS | {"up.processes": f"--{processes}"} | ({"presence.log": "--kafka"} if kafka else {})
    flags = {
        key: (value, names.get(key) or "--" + key.removesuffix(".url").rpartition(".")[2].replace("_", "-"))
        for key, value in wanted.items()
        if value is not None
    }
    return common.run(run(config, flags, demo=demo, tour=tour, seconds=for_, as_json=json), endless=True)


@app.command(epilog="Example: muster serve broker --partition 1 --config /etc/muster/muster.toml", rich_help_panel=RUN)
def serve(
    roles: Roles,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Cluster of a broker or proxy [main].")] = None,
    partition: Annotated[int | None, typer.Option(min=0, max=255, help="Partition of a broker or router [0].")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the node in the registry [HOST-ROLE].")
    ] = None,
    config: ConfigFile = None,
) -> int:
    """Run one node of a cluster on this host, in the foreground, or one of each of several roles. It finds other nodes
    in the registry.

    SIGTERM and Ctrl-C drain it; SIGHUP reloads its configuration. It reports its state to systemd.

    The nodes of several roles share the process: they start and end together, and messages between them go through
    memory. Each registers separately, as NAME-ROLE.
    """
    from muster_server.control.cli.serve import serve as run

    wanted = {"serve.cluster": cluster, "serve.partition": partition, "serve.name": name}
    flags = {key: (value, "--" + key.rpartition(".")[2]) for key, value in wanted.items() if value is not None}
    return run(config, roles, flags)


@app.command(
    epilog="Example: muster token 7 --cap 'sports:*=read,publish' --cap chat:7=read --expires 15m",
    rich_help_panel=USERS,
)
def token(
    user: Annotated[str, typer.Argument(metavar="USER", help="A number from 2 to 2^64-1, or text of up to 64 bytes.")],
    rights: TokenRights = "read",
    expires: TokenTime = "1h",
    cap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROOMS=WORDS",
            help="Rights in some rooms, instead of --rights; repeat it for more. ROOMS is a room, the beginning of a name"
            " followed by *, or *. WORDS are read, publish, command, members, history.",
        ),
    ] = None,
    token_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the token (jti), by which it can be revoked.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Device of the user for presence, for example phone or phone:3f.")
    ] = None,
    send: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USERS",
            help="Users to whom it may send, with presence on; repeat it for more. USERS is a user, the first digits of"
            " numbers followed by *, or *.",
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="The user wants this device now: it may come although another one has replaced it in the last 30 s.",
        ),
    ] = False,
    room: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROOM",
            help="An edge subscribes the client to this room as it connects; repeat it for more, up to 64.",
        ),
    ] = None,
    config: ConfigFile = None,
) -> int:
    """Print a token for a user, signed with `cluster.jwt_secret_file` or with the local instance's secret."""
    from muster_server.control.cli.token import Wanted, show

    wanted = Wanted(user, rights, expires, cap or (), token_id, device, send or (), take_over, room or ())
    return show(config, wanted)


@app.command(epilog="Example: muster url 7 --rights read,publish --expires 1d", rich_help_panel=USERS)
def url(
    user: Annotated[
        str | None,
        typer.Argument(metavar="[USER]", help="Include a token of this user [the shared token].", show_default=False),
    ] = None,
    rights: TokenRights = "read",
    expires: TokenTime = "1h",
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Print muster://HOST:PORT/KEY?token=… for muster.connect and --url, on this or another machine."""
    from muster_server.control.cli.token import Wanted
    from muster_server.control.cli.url import show
    from muster_server.control.terminal.found import Target

    return show(Target(config, registry), Wanted(user, rights, expires) if user is not None else None)


@app.command(epilog="Example: muster status --json", rich_help_panel=WATCH)
def status(
    json: Json = False, node: NodeAddress = None, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Show the nodes of the local instance, or of a registry.

    Exit code 1 if a node does not serve, or if a partition of brokers or routers has no node that serves.
    """
    from muster_server.control.cli.status import show
    from muster_server.control.terminal.found import Target

    return show(Target(config, registry, node=node), json)


@app.command(epilog="Example: muster doctor", rich_help_panel=WATCH)
def doctor(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Check this machine, the configuration, and the local instance or the nodes of a registry.

    Each finding has its fix. Exit code 1 if a check fails; warnings do not change it.
    """
    from muster_server.control.cli.doctor import show
    from muster_server.control.terminal.found import Target

    return show(Target(config, registry), json)


SystemName = Annotated[
    str | None,
    typer.Argument(metavar="[SYSTEM]", help="Name of a system, for example likes [all].", show_default=False),
]


@app.command(epilog="Example: muster check likes", rich_help_panel=WATCH)
def check(
    system: SystemName = None, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Read all stores in files of this machine, and list each fault: file, byte, what is lost.

    Nothing is changed. Exit code 1 if a store is damaged.
    """
    from muster_server.control.cli.stores import check as run
    from muster_server.control.terminal.found import Target

    return run(Target(config, registry), system, json)


@app.command(epilog="Example: muster repair messages", rich_help_panel=WATCH)
def repair(
    system: SystemName = None, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Keep the intact part of damaged stores, move the rest aside, and list what was done. The instance must not run."""
    from muster_server.control.cli.stores import repair as run
    from muster_server.control.terminal.found import Target

    return run(Target(config, registry), system, json)


@cluster_app.command("show", epilog="Example: muster cluster show --watch")
def cluster_show(
    json: Json = False,
    svg: Svg = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")] = False,
    node: NodeAddress = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show every node by layer and partition: state, epoch, rooms, members, traffic, and due growth."""
    from muster_server.control.cli.cluster import show
    from muster_server.control.cli.cluster_picture import picture
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target

    alone(svg, {"--json": json, "--watch": watch})
    work = show(Target(config, registry, node=node), json, watch, picture if svg else None)
    return common.run(work, endless=watch, streams=watch)


@replica_app.command("add", epilog="Example: muster cluster replica add broker 1")
def replica_add(
    role: Layer,
    partition: Partition,
    cluster: Cluster = "main",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Start one more replica of a partition, and wait until it runs and has its share of the rooms.

    For nodes of muster serve, print what to start on its host, and wait until it runs.
    """
    from muster_server.control.cli import hosted
    from muster_server.control.cli.replica import add
    from muster_server.control.terminal import common

    of = layer_of(role, cluster)
    where = hosted.registry(config, registry, of)
    work = add(config, of.role, partition, json) if where is None else hosted.add(where, of, partition, json)
    return common.run(work)


@replica_app.command("remove", epilog="Example: muster cluster replica remove broker 1 6")
def replica_remove(
    role: Layer,
    partition: Partition,
    replica: Node,
    cluster: Cluster = "main",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Stop a replica after it has handed its rooms to the others. The last running replica stays.

    For nodes of muster serve, print what to stop on its host, and wait until it has ended.
    """
    from muster_server.control.cli import hosted
    from muster_server.control.cli.replica import remove
    from muster_server.control.terminal import common

    of = layer_of(role, cluster)
    where = hosted.registry(config, registry, of)
    if where is not None:
        return common.run(hosted.remove(where, of, partition, replica, json))
    return common.run(remove(config, replica, of.role, partition, json))


@cluster_app.command("grow", epilog="Example: muster cluster grow broker --to 4")
def cluster_grow(
    role: Layer,
    to: Annotated[int | None, typer.Option(min=1, max=256, help="Final number of partitions, a power of two.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted growth.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Undo a growth that has not switched yet.")] = False,
    cluster: Cluster = "main",
    grace: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Seconds to keep old routes after all nodes have switched [5]."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Give up waiting for a step after this many seconds.")
    ] = 300.0,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Double the partitions of brokers or routers, while messages flow, until there are --to of them.

    Prints the nodes that it waits for. An interrupted growth stays as it is: --resume continues it, --abort undoes it
    before the switch.
    """
    from muster_server.control.cli import grow as growing
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target

    if abort and (resume or to is not None):
        raise UserError("--abort excludes --resume and --to", USAGE)
    if abort and grace is not None:
        raise UserError("--abort excludes --grace, because it switches nothing", USAGE)
    if not (abort or resume) and to is None:
        raise UserError("missing one of --to, --resume and --abort; see muster cluster grow --help", USAGE)
    if to is not None and to.bit_count() != 1:
        raise UserError(f"--to: {to} is not a power of two", USAGE)
    of, where = layer_of(role, cluster), Target(config, registry)
    if abort:
        return common.run(growing.abort(where, of, wait, json))
    return common.run(
        growing.grow(where, of, to, resume=resume, grace_s=5.0 if grace is None else grace, wait_s=wait, as_json=json)
    )


@cluster_app.command("add", epilog="Example: muster cluster add gateway")
def cluster_add(role: Addable, json: Json = False, config: ConfigFile = None) -> int:
    """Start one more gateway or proxy, and wait until it runs."""
    from muster_server.control.cli.replica import add
    from muster_server.control.terminal import common

    return common.run(add(config, role.value, 0, json))


@cluster_app.command("remove", epilog="Example: muster cluster remove gateway-1")
def cluster_remove(node: Node, json: Json = False, config: ConfigFile = None) -> int:
    """Drain and stop a gateway or proxy. The last running one stays."""
    from muster_server.control.cli.replica import remove
    from muster_server.control.terminal import common

    return common.run(remove(config, node, None, 0, json))


@cluster_app.command("node-key", epilog="Example: muster cluster node-key /etc/muster/node.key")
def cluster_node_key(file: Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")]) -> int:
    """Print a node's public key, as cluster.nodes_file lists it. Makes the private key if it is missing."""
    from muster_server.control.cli.keys import node_key

    return node_key(file)


@cluster_app.command("signing-key", epilog="Example: muster cluster signing-key /etc/muster/signing.key")
def cluster_signing_key(file: Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")]) -> int:
    """Print the public key that certifies servers, for cluster.signing_keys. Makes the private key if it is missing."""
    from muster_server.control.cli.keys import signing_key

    return signing_key(file)


@cluster_app.command("certify", epilog="Example: muster cluster certify gateway 7 10.0.0.1:7400 KEY > gateway.json")
def cluster_certify(
    role: Role,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Number of the node.")],
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Address for its clients.")],
    key: Annotated[
        str,
        typer.Argument(
            metavar="[KEY]", help="Public key that clients check at a gateway or proxy.", show_default=False
        ),
    ] = "",
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Cluster of a proxy.")] = "main",
    hours: Annotated[int, typer.Option(min=1, max=720, help="Hours until it expires.")] = 12,
    config: ConfigFile = None,
) -> int:
    """Print a server's certificate for its serve.certificate_file. Run it where cluster.signing_key_file is.

    A node without a certificate logs this command.
    """
    from muster_server.control.cli.keys import certify

    return certify(config, role.value, number, address, key, cluster, hours)


@cluster_app.command("probe-token", epilog="Example: muster cluster probe-token > probe.token")
def cluster_probe_token(config: ConfigFile = None) -> int:
    """Print the prober's own token, for probes.token_file. It is derived from the shared token and opens only the rooms
    of probes."""
    from muster_server.control.cli.keys import probe_token

    return probe_token(config)


@app.command(epilog="Example: muster top --sort cpu", rich_help_panel=WATCH)
def top(
    sort: Annotated[Column, typer.Option("--sort", help="Sort the nodes by this column, highest first.")] = Column.none,
    once: Annotated[bool, typer.Option("--once", help="Print one sample of a second, and exit.")] = False,
    for_: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="SECONDS", help="Stop after this time.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: one sample; with --for, one per line.")] = False,
    node: NodeAddress = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Watch every node: CPU, memory, rooms, members, messages, repairs, drops, delay. Press q or Ctrl-C to quit."""
    from muster_server.control.cli.top import show
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target

    single = once or (json and for_ is None)
    work = show(Target(config, registry, node=node), sort, single=single, seconds=for_, as_json=json)
    return common.run(work, endless=not single, streams=not single)


@app.command(
    epilog="Example: muster size --members 2e6 --rooms 5e5 --rate 2e4 --payload 300 --online 1e7", rich_help_panel=RUN
)
def size(
    members: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Clients connected as members.")
    ] = 0.0,
    rooms: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Rooms. Default: one for 100 memberships.")
    ] = 0.0,
    each: Annotated[float, typer.Option(min=0.001, help="Rooms that a client is a member of.")] = 1.0,
    rate: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Messages published per second, in all rooms.")
    ] = 0.0,
    payload: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes of a message.")] = 200,
    online: Annotated[float, amount("Users online at a time.")] = 0.0,
    stay: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="Time for which a user stays.")] = 1_800.0,
    asked: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Users whose presence is looked up per second.")
    ] = 0.0,
    likes: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Likes and unlikes per second.")
    ] = 0.0,
    liked: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Likes that are kept. Default: those of 30 days.")
    ] = 0.0,
    delayed: Annotated[
        float, typer.Option(min=0.0, max=1e12, metavar="NUMBER", help="Delayed messages per second.")
    ] = 0.0,
    pending: Annotated[
        float,
        typer.Option(
            min=0.0, max=1e12, metavar="NUMBER", help="Delayed messages that wait. Default: those of an hour."
        ),
    ] = 0.0,
    memory: Annotated[float, typer.Option(min=0.25, metavar="GIB", help="Memory of a node.")] = 8.0,
    network: Annotated[float, typer.Option(min=0.01, metavar="GBIT", help="Network of a node.")] = 10.0,
    cpu: Annotated[
        Path | None, typer.Option("--cpu", metavar="FILE", help="Costs by --measure; default: a shipped set.")
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option("--measure", metavar="FILE", help="Measure the costs of this machine into FILE, in 2 minutes."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print the configuration for it.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Say how many nodes of each role a demand needs, what limits them, and what one more adds.

    --measure loads the instance that runs here, which needs a process for each role: muster up --apart --with
    likes,messages. Numbers may be written as 2e6.
    """
    from muster_server.control.cli.size import measure as measured
    from muster_server.control.cli.size import size as sized
    from muster_server.control.size.plan import Machine

    if measure is not None:
        return measured(measure, config)
    if toml and json:
        raise UserError("--toml and --json exclude each other", USAGE)
    demand = {
        "members": members,
        "rooms": rooms,
        "each": each,
        "rate": rate,
        "payload": payload,
        "online": online,
        "stay_s": stay,
        "asked": asked,
        "likes": likes,
        "liked": liked,
        "delayed": delayed,
        "pending": pending,
    }
    return sized(demand, Machine(memory_bytes=memory * 2**30, network_bps=network * 1e9), cpu, json, toml)


@config_app.command("check", epilog="Example: muster config check --config muster.toml")
def config_check(config: ConfigFile = None) -> int:
    """Read file and environment, and print the first mistake. Exit code 78 if there is one."""
    from muster_server.control.cli.config import check

    return check(config)


@config_app.command("show", epilog="Example: muster config show --origin")
def config_show(
    origin: Annotated[bool, typer.Option("--origin", help="Also print where each value comes from.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Show every key with the value that `muster up` uses."""
    from muster_server.control.cli.config import show

    return show(config, origin, json)


@config_app.command("docs", epilog="Example: muster config docs > configuration.md")
def config_docs() -> int:
    """Print the page of all keys as Markdown."""
    from muster_server.control.cli.config import docs

    return docs()


@config_app.command("unit", epilog="Example: muster config unit gateway > muster-gateway@.service")
def config_unit(roles: Roles) -> int:
    """Print the systemd unit of a role, as in deploy/systemd, or of several that share a process."""
    from muster_server.control.cli.config import unit

    return unit(roles)


@config_app.command("manifest", epilog="Example: muster config manifest gateway > gateway.yaml")
def config_manifest(role: Role) -> int:
    """Print the Kubernetes manifest of a role, as in deploy/kubernetes."""
    from muster_server.control.cli.config import manifest

    return manifest(role.value)


@app.command(epilog="Example: muster version --json", rich_help_panel=RUN)
def version(json: Json = False) -> int:
    """Print the release and the versions of the protocol that it speaks. Two ends need a common version."""
    from muster import __version__
    from muster._core import PROTOCOLS

    lowest, highest = PROTOCOLS
    document = f'{{"muster": "{__version__}", "protocol": {highest}, "protocol_lowest": {lowest}}}'
    spoken = f"{highest}" if lowest == highest else f"{lowest} to {highest}"
    print(document if json else f"{__version__}, protocol {spoken}")
    return 0


def _add(system: System) -> None:
    """Add the subcommands of a system, below the system's title in the help."""
    more = typer.Typer()
    named(system.commands)(more)
    for group in more.registered_groups:
        group.rich_help_panel = system.title
        if not isinstance(group.name, str) and group.typer_instance:  # its subcommands belong directly to the command
            for word in group.typer_instance.registered_commands:
                word.rich_help_panel = system.title
    for word in more.registered_commands:
        word.rich_help_panel = system.title
    app.registered_groups.extend(more.registered_groups)
    app.registered_commands.extend(more.registered_commands)


for _system in systems.named().values():
    if _system.commands:
        _add(_system)
    if _system.load_word:
        named(_system.load_word)(load_app)


@load_app.callback()
def load(
    context: typer.Context,
    join: Annotated[
        str, typer.Option("--join", metavar="HOST:PORT/WORD", help="Join the run of another host, which prints this.")
    ] = "",
) -> int:
    """Load a deployment by an open schedule, check everything, and report: rates, latencies, losses."""
    if not join:
        return 0
    if context.invoked_subcommand:
        raise UserError("--join takes all settings from the host that leads; give no word", USAGE)
    from muster_server.control.load.words import join_run
    from muster_server.control.terminal import common

    return common.run(join_run(join))


@app.command(
    rich_help_panel=RUN,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def bench(context: typer.Context) -> int:
    """Measure this machine, Muster and its peers. Runs from the source tree."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "__main__.py").exists():
        raise UserError(
            "muster bench runs from the source tree: clone it, then make setup and .venv/bin/muster bench", USAGE
        )
    sys.stdout.flush()
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    os.execve(sys.executable, [sys.executable, "-m", "bench", *context.args], {**os.environ, "PYTHONPATH": paths})


@app.command(
    rich_help_panel=WATCH,
    epilog="Example: muster cache show share:7 --redis redis://127.0.0.1:6379/0",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def cache(context: typer.Context) -> int:
    """Show a cache of `muster.cache`, drop keys, watch drops: show, drop, watch."""
    from muster.cache import __main__ as program

    return program.main(context.args, prog="muster cache")


@app.command(
    rich_help_panel=RUN,
    epilog="Example: muster work portal.jobs:tasks --at-once 8",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def work(context: typer.Context) -> int:
    """Run the tasks of a program that `muster.tasks` declares: leases them, calls their handlers."""
    from muster import work as program

    return program.main(context.args, prog="muster work")


@app.command(
    rich_help_panel=RUN,
    epilog="Example: muster agent mqtt://mqtt.example.org --name probe-7 --mark CN_520000_522200_1",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def agent(context: typer.Context) -> int:
    """Measure for a fleet from where this machine is: ping, TCP, DNS, HTTP."""
    from muster.agent import __main__ as program

    return program.main(context.args, prog="muster agent")


def layer_of(role: Layer, cluster: str) -> "LayerRef":
    """Return the layer of these arguments. Raises `UserError`."""
    from muster_server.control.cli.grow import LayerRef
    from muster_server.control.registry.places import NAME

    if cluster != "main" and not kind(role.value).clustered:
        plurals = " and ".join(of.plural for of in kinds().values() if of.clustered and of.partitioned)
        raise UserError(f"--cluster is for {plurals} only: {kind(role.value).plural} serve all clusters", USAGE)
    if not re.fullmatch(NAME, cluster):
        raise UserError(f"--cluster: invalid name {cluster!r}", USAGE)
    return LayerRef(role.value, cluster)


def chosen(words: Sequence[str]) -> typer.Typer:
    """Build the command with only the subcommand that `words` begin with, since typer takes 0.1 s to prepare all.
    Unknown: all."""
    commands = [each for each in app.registered_commands if words[:1] == [_named(each)]]
    groups = [each for each in app.registered_groups if words[:1] == [each.name]]
    if not commands and not groups:
        return app
    one = copy(app)
    one.registered_commands, one.registered_groups = commands, groups
    return one


MARKUP: Final = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")
"""Text in a help that rich takes for markup and removes, for example a default such as `[all]`."""


def verbatim(command: Any) -> Any:
    """Make the command's help show text in brackets."""
    for of, name in (
        (command, "help"),
        (command, "epilog"),
        (command, "short_help"),
        *((each, "help") for each in command.params),
    ):
        text = getattr(of, name, None)
        if text:
            setattr(of, name, MARKUP.sub(r"\1\1\\\2", text))
    for inner in getattr(command, "commands", {}).values():
        verbatim(inner)
    return command


def _named(command: typer.models.CommandInfo) -> str | None:
    """The name of a subcommand."""
    return command.name or (command.callback and command.callback.__name__.replace("_", "-"))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    prepare_streams()
    code = 0
    try:
        try:
            words = sys.argv[1:] if arguments is None else arguments
            command = verbatim(typer.main.get_command(chosen(words)))
            code = command(words, prog_name="muster", standalone_mode=False) or 0
        except UserError as error:
            code = fail(str(error), error.exit_code)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has closed it; the exit code stays
        sys.stdout = None
        return code
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich turns it into SystemExit
            return 0
        raise
    except OSError as error:
        sys.stdout = None  # otherwise Python tries again to write its buffer
        where = f"{error.filename}: " if error.filename else ""
        return fail(f"{where}{error.strerror or error}", FAILURE)
    except MemoryError:
        return fail("not enough memory, or the limit `ulimit -v` is too low", FAILURE)
    except ImportError as error:  # raised too when there is no memory to map the module
        return fail(f"cannot load: {error}", FAILURE)
    except typer.Abort:
        return 130
    except Exception as error:
        # Raised by typer for a wrong subcommand or option; it does not export the class.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            getattr(error, "show")()  # noqa: B009
            return USAGE
        where = getattr(getattr(error, "ctx", None), "command_path", "muster")
        return fail(f"{show().rstrip('.')}; see {where} --help", USAGE)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # otherwise Python raises it again at its end, with another exit code
            sys.stderr = None


def prepare_streams() -> None:
    """Open /dev/null for a closed standard stream: otherwise another file gets its number, and libuv aborts.

    Names of rooms are printed in every locale, with escapes for characters that it lacks.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it gets the lowest number: its own
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def fail(message: str, code: int) -> int:
    """Print one line on stderr, if it is open, and return the code."""
    say(f"muster: {' '.join(message.split())}")
    return code


if __name__ == "__main__":
    sys.exit(main())
