"""Every key of the configuration: type, bounds, default, unit and why the default is what it is.

Owns the shape only. It must not know files, environment or flags (`control/config/load.py`), nor what starts with the
values (`control/cluster/supervisor.py`). `docs/configuration.md` is generated from here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

Role = Literal["router", "broker", "gateway", "proxy"]
Served = Literal["router", "broker", "gateway", "proxy", "prober"]
"""What `muster serve` runs: a role, or what probes them."""
ROLES: Final[tuple[Role, ...]] = ("router", "broker", "gateway", "proxy")

# The links that exist, by who sends. Faults can be set for each direction apart.
LINKS: Final = frozenset(
    f"{one}->{other}"
    for pair in (
        ("client", "proxy"),
        ("client", "gateway"),
        ("proxy", "broker"),
        ("broker", "gateway"),
        ("gateway", "router"),
        ("router", "broker"),
        ("router", "router"),
    )
    for one, other in (pair, pair[::-1])
)


def key(text: str, why: str = "", unit: str = "", **bounds: Any) -> Meta:
    """Describe one key: what it sets, why its default is what it is, its unit, its bounds."""
    return Meta(description=text, extra={"why": why, "unit": unit}, **bounds)


Address = Annotated[
    str,
    key(
        "UDP address, `host:port`, an IPv6 host in brackets",
        "port 0: a free one is chosen once and kept across restarts",
    ),
]
LinkAddress = Annotated[
    str,
    key(
        "UDP address for links to the other roles, `host:port`; all IPv4 or all IPv6",
        "apart from clients: a flood there cannot fill it",
    ),
]
Chance = Annotated[float, key("", "faults are off unless asked for", "fraction", ge=0.0, le=1.0)]
ArenaMib = Annotated[
    int,
    key("Memory for the rings of recent messages", "what can still be repaired; taken at start", "MiB", ge=1, le=65536),
]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class Instance(Section, frozen=True):
    """Who this installation is and where it keeps its run-time files."""

    name: Annotated[
        str, key("Name in logs and `muster status`", "tells instances apart", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    ] = "muster"
    dir: Annotated[
        str,
        key(
            "Folder of keys, tokens and `instance.json`, mode 0700; clients on this machine find the instance by it",
            "empty: `$XDG_RUNTIME_DIR/muster`, else `/tmp/muster-UID`",
        ),
    ] = ""


class Cluster(Section, frozen=True):
    """The secrets that all nodes share. `muster serve` makes none: they are the same on each host."""

    secret_file: Annotated[
        str,
        key(
            "File with the 32-byte secret in hex that links between roles are keyed with",
            "empty: `cluster.secret` in `instance.dir`, made once",
        ),
    ] = ""
    names_file: Annotated[
        str,
        key(
            "File with the 16-byte key in hex of the hash that spreads room names",
            "empty: `names.key` in `instance.dir`, made once",
        ),
    ] = ""
    token_file: Annotated[
        str,
        key(
            "File with the credential of clients, a line, for gateways and proxies",
            "empty: `token` in `instance.dir`, made once",
        ),
    ] = ""
    jwt_secret_file: Annotated[
        str,
        key(
            "File with one or two secrets, a line of at least 32 bytes each, that users' tokens are signed with: gateways"
            " and proxies accept both, `muster token` signs with the first",
            "empty: `jwt.secret` in `instance.dir`, made once by `muster up`; `muster serve` takes no user's token then",
        ),
    ] = ""
    key_id: Annotated[
        int,
        key("Which secret `secret_file` is: new links are made with it", "another secret has another id", ge=0, le=255),
    ] = 1
    other_secret_file: Annotated[
        str,
        key(
            "File with another secret that links are accepted with, while one replaces the other: the next, then the former",
            "empty: none; `operations.md` has the steps",
        ),
    ] = ""
    other_key_id: Annotated[
        int, key("Which secret `other_secret_file` is; nothing without that", "the next one after 1", ge=0, le=255)
    ] = 2
    identity: Annotated[
        Literal["off", "accepted", "offered", "required"],
        key(
            "Whether nodes of `muster serve` prove on links which one they are, by keys that `nodes_file` lists",
            "off: who has the secret may link; `operations.md` has the steps to `required`",
        ),
    ] = "off"
    nodes_file: Annotated[
        str,
        key(
            "List of the nodes that may link, a line each: number, role and public key in hex",
            "whoever writes it decides who is in: keep it out of the reach of the nodes themselves",
        ),
    ] = ""
    node_key_file: Annotated[
        str,
        key(
            "File with the 32-byte private key in hex that the node proves itself by",
            "empty: `node.key` in the node's folder in `serve.dir`, made at the first start with an `identity`",
        ),
    ] = ""


class Up(Section, frozen=True):
    """How many nodes of each role `muster up` starts. Where a `bind` names a port, the second node has the next one."""

    gateways: Annotated[int, key("Gateways", "members spread over them", ge=1, le=64)] = 1
    brokers: Annotated[
        str,
        key(
            "Brokers, PARTITIONSxREPLICAS as `2x2`, or PARTITIONS: a power of two up to 256, each of up to 16 replicas",
            "partitions divide the memberships, the replicas of one its messages",
        ),
    ] = "1"
    routers: Annotated[
        str,
        key(
            "Routers, as `brokers`",
            "partitions divide the memberships, whatever those of the brokers; replicas, who is told",
        ),
    ] = "1"
    proxies: Annotated[int, key("Proxies", "publishers spread over them", ge=1, le=64)] = 1


class Serve(Section, frozen=True):
    """What a node of `muster serve` has for itself: from flags or the environment, where hosts share a file."""

    name: Annotated[
        str,
        key(
            "Name of the node in the registry, where its number goes with it",
            "empty: HOST-ROLE; a second node of a role on a host needs one",
            pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$",
        ),
    ] = ""
    dir: Annotated[
        str,
        key("Folder in which each node has one of its own, for its keys", "clients know a server by its key: keep it"),
    ] = "/var/lib/muster"
    cluster: Annotated[
        str,
        key(
            "Which cluster of brokers a broker or proxy is of",
            "routers and gateways serve all of them",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        ),
    ] = "main"
    partition: Annotated[int, key("Which partition a broker or router is of", "", ge=0, le=255)] = 0
    broker_partitions: Annotated[
        int,
        key(
            "Partitions of its brokers to begin with",
            "a power of two; what the registry says later holds",
            ge=1,
            le=256,
        ),
    ] = 1
    router_partitions: Annotated[
        int,
        key("Partitions of routers to begin with", "a power of two; what the registry says later holds", ge=1, le=256),
    ] = 1
    weight: Annotated[
        int,
        key(
            "Share of the clients that learn of a gateway or proxy: one of 2 is drawn twice as often as one of 1",
            "all alike; 0: no client is told of it, who is there stays",
            ge=0,
            le=1_000,
        ),
    ] = 1
    admin: Annotated[
        str,
        key(
            "Address of the HTTP for operators, `host:port`",
            "it has no login: on an address that others reach, let only probes and Prometheus through",
        ),
    ] = "127.0.0.1:0"


class Registry(Section, frozen=True):
    """Where nodes register and find each other. Without one each is told at its start where all others are, for good."""

    url: Annotated[
        str,
        key(
            "`embedded`: held by `muster up` itself; `zk://HOST:PORT,HOST:PORT/PATH`: ZooKeeper, below this path; or `none`",
            "empty: none; without one no node comes or goes while the others run",
        ),
    ] = ""
    session_ms: Annotated[
        int,
        key(
            "A node that was not heard for so long is taken off the map",
            "longer than a stop of the machine; dead nodes are gone round much earlier",
            "ms",
            ge=1_000,
            le=60_000,
        ),
    ] = 10_000
    cut_off_ms: Annotated[
        int,
        key(
            "A gateway or a proxy that for so long, up to twice as long, reaches no broker or router of a partition that "
            "has some sends its clients to others, where at least half of these serve; 0: it keeps them",
            "longer than the registry and its hold-down take to drop who died, since of those nobody does better",
            "ms",
            ge=0,
            le=600_000,
        ),
    ] = 20_000
    auth: Annotated[
        Literal["none", "digest", "sasl"],
        key(
            "How ZooKeeper knows us: `digest` sends the password in the clear, `sasl` (DIGEST-MD5) does not",
            "with either, what is registered is for this user alone",
        ),
    ] = "none"
    user: Annotated[str, key("User at ZooKeeper", "", pattern=r"^[A-Za-z0-9._@-]*$")] = ""
    password_file: Annotated[
        str, key("File with the password of that user, one line", "no secret is in a list of keys")
    ] = ""


SQLITE: Final = "sqlite"
"""A database in a file that needs no name."""


class Database(Section, frozen=True):
    """Where routers keep which gateway wants which room, so that one that starts knows it before all gateways told it.

    All but SQLite need the extra `database` of `muster-server`. Nothing waits for it, and without it nothing else changes.
    """

    url: Annotated[
        str,
        key(
            "`sqlite`: the file `memberships.db` in the folder of the instance, or of the node; `sqlite:///PATH` (a second "
            "slash before an absolute one), `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`; or `none`",
            "empty: none; gateways tell their rooms anyhow",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with the password of that user, one line", "no secret is in a list of keys")
    ] = ""


class RoleOptions(Section, frozen=True):
    """What every role's process has."""

    bind: Address = "127.0.0.1:0"
    recv_buffer_bytes: Annotated[
        int,
        key(
            "Socket receive buffer to ask for; 0 leaves the kernel's default",
            "the default of Linux holds some 256 small datagrams; what was really given is in `muster status`",
            "bytes",
            ge=0,
            le=1 << 30,
        ),
    ] = 4 << 20
    send_buffer_bytes: Annotated[
        int,
        key("Socket send buffer to ask for; 0 leaves the kernel's default", "two slices", "bytes", ge=0, le=1 << 30),
    ] = 4 << 20
    payload_bytes: Annotated[
        int,
        key("Largest datagram", "passes every usual path without fragments", "bytes", ge=1200, le=1472),
    ] = 1200


class ClientOptions(RoleOptions, frozen=True):
    """What the roles have that clients speak to."""

    link_bind: LinkAddress = "127.0.0.1:0"
    keepalive_ms: Annotated[
        int, key("Silence after which a keepalive is sent", "NAT bindings live 30 s", "ms", ge=100, le=600_000)
    ] = 15_000
    idle_timeout_ms: Annotated[
        int, key("Silence after which a peer counts as gone", "three lost keepalives", "ms", ge=300, le=3_600_000)
    ] = 45_000
    sessions_max: Annotated[
        int,
        key(
            "Sessions at once; beyond, who comes is not answered and looks for another server, who is there stays",
            "some 1 KB each: 1 GB, the most that a process should hold",
            "sessions",
            ge=1,
            le=1 << 20,
        ),
    ] = 1 << 20
    accept_rate: Annotated[
        int,
        key(
            "Handshakes taken from one network, an IPv4 /24 or an IPv6 /56; twice as many at once",
            "one network alone keeps nobody out; more where many clients come by one translated address",
            "1/s",
            ge=1,
            le=1_000_000,
        ),
    ] = 1_000


class Clients(Section, frozen=True):
    """What gateways and proxies tell the clients that come to them, each at the start of its session."""

    backoff_ms: Annotated[
        int,
        key(
            "Who loses a session opens another within this, at random; twice as long after each attempt that failed",
            "of few clients; 100,000 that come back within 10 s are 10,000 handshakes a second",
            "ms",
            ge=10,
            le=60_000,
        ),
    ] = 100
    backoff_max_ms: Annotated[
        int,
        key("The longest that becomes", "no less than the first", "ms", ge=10, le=600_000),
    ] = 5_000


class Gateway(ClientOptions, frozen=True):
    """Carries rooms to members: clients join here."""

    arena_mib: ArenaMib = 256
    history_max: Annotated[
        int,
        key(
            "Messages that a join may ask to come first", "fetched from a broker at a time", "messages", ge=0, le=65_536
        ),
    ] = 1_024
    membership_again_ms: Annotated[
        int,
        key(
            "A room that got its first member, or lost its last, is told the router once more after this, where no"
            " acknowledgement came; 0: only once it may be lost",
            "sooner than a loss can be found; where many change at once nothing is told twice",
            "ms",
            ge=0,
            le=1_000,
        ),
    ] = 10


class Proxy(ClientOptions, frozen=True):
    """Takes what clients publish to the room's broker."""

    age_every: Annotated[
        int,
        key(
            "Of so many publish frames one carries the age of its messages, by which their latency is known; 0: none",
            "costs 33 bytes on a link each, and is often enough for percentiles of a minute",
            "frames",
            ge=0,
            le=1 << 30,
        ),
    ] = 1_024
    command_rate: Annotated[
        int,
        key(
            "Commands of one user, whatever sessions it has here; with the shared token of one session",
            "they are for what is seldom, and cost each member and each hop an answer",
            "1/s",
            ge=1,
            le=10_000,
        ),
    ] = 1
    command_burst: Annotated[
        int, key("The same at once, after a pause", "one after the other", "commands", ge=1, le=10_000)
    ] = 1


class Broker(RoleOptions, frozen=True):
    """Numbers a room's messages and keeps the recent ones. `bind` is for links: no client speaks to it."""

    arena_mib: ArenaMib = 256


class Router(RoleOptions, frozen=True):
    """Tells brokers which gateway wants which room. `bind` is for links: no client speaks to it."""

    memberships_max: Annotated[
        int,
        key(
            "Memberships (rooms wanted, once per gateway) that it holds; more are refused; taken at start",
            "64 B each: 1 GiB; what peers are not told yet takes up to 66 B each besides",
            "memberships",
            ge=1,
            le=1 << 25,
        ),
    ] = 16 << 20


class Namespace(Section, frozen=True):
    """What holds for the rooms whose name begins with this namespace (`NAME:room`)."""

    flow: Annotated[
        Literal["live", "paced"],
        key(
            "`live`: a slow member slows nobody; `paced`: publishers wait for it for up to 5 s, and repair has 3 s",
            "a live room must not stand still for one reader; files and feeds should arrive whole",
        ),
    ] = "live"


class Links(Section, frozen=True):
    """What `muster links` calls beyond the limits. Nothing else goes by it."""

    latency_ms: Annotated[
        int,
        key("Longest round trip", "one data centre and a busy machine; more between regions", "ms", ge=1, le=60_000),
    ] = 100
    loss: Annotated[
        float, key("Largest share of datagrams lost of late", "repair is cheap up to here", "fraction", ge=0.0, le=1.0)
    ] = 0.01
    availability: Annotated[
        float,
        key("Smallest share of the observed time in which the link was there", "0: none", "fraction", ge=0.0, le=1.0),
    ] = 0.99
    failures: Annotated[
        int,
        key(
            "Readings in a row, a second apart, beyond a limit before `--check` fails",
            "one may be chance",
            ge=1,
            le=3600,
        ),
    ] = 3


class Probes(Section, frozen=True):
    """Small messages by every proxy, broker and gateway, to see whether each hash path holds and how long it takes."""

    every_ms: Annotated[
        int,
        key(
            "Each proxy sends one to each broker in so long; all gateways have members that should see it",
            "who stands still is told of within seconds; 0: none, but by `muster links --probe`",
            "ms",
            ge=0,
            le=3_600_000,
        ),
    ] = 1_000
    ask: Annotated[
        str,
        key("Where `muster links` asks a `muster serve prober`, `host:port`", "empty: it asks that of `muster up`"),
    ] = ""
    timeout_ms: Annotated[
        int,
        key("What is not seen in so long has failed", "a busy machine is no failure", "ms", ge=10, le=60_000),
    ] = 1_000
    failures: Annotated[
        int, key("Failed ones in a row that raise the alarm of a path", "one may be chance", "", ge=1, le=3600)
    ] = 3
    successes: Annotated[
        int, key("Seen ones in a row that clear it", "a path that comes and goes stays alarmed", "", ge=1, le=3600)
    ] = 5
    window: Annotated[
        int,
        key("Last samples of a path that its loss and latencies are of", "p99 means something", "", ge=10, le=1_000),
    ] = 100
    per_s_max: Annotated[
        int,
        key(
            "Most that are sent; with more proxies times brokers it takes longer than `every_ms` to go round",
            "bounds what probes cost however many paths there are: each is delivered at every gateway",
            "1/s",
            ge=1,
            le=10_000,
        ),
    ] = 20


class LinkFaults(Section, frozen=True):
    """Overrides for one link and direction; what is left out is as in `[faults]`."""

    loss: Chance | None = None
    duplicate: Chance | None = None
    reorder: Chance | None = None
    reorder_hold_ms: Annotated[int, key("", "", "ms", ge=0, le=10_000)] | None = None
    delay_ms: Annotated[int, key("", "", "ms", ge=0, le=10_000)] | None = None
    jitter_ms: Annotated[int, key("", "", "ms", ge=0, le=10_000)] | None = None
    corrupt: Chance | None = None
    burst: Annotated[float, key("", "", ge=1.0, le=1000.0)] | None = None


class Faults(Section, frozen=True):
    """Faults that the drivers inject on purpose into every link, both directions. For tests: logged loudly when on."""

    loss: Annotated[Chance, key("Datagrams dropped", "", "fraction")] = 0.0
    duplicate: Annotated[Chance, key("Datagrams sent twice", "", "fraction")] = 0.0
    reorder: Annotated[Chance, key("Datagrams held back for `reorder_hold_ms`", "", "fraction")] = 0.0
    reorder_hold_ms: Annotated[
        int, key("How long a reordered datagram is held", "later ones overtake it", "ms", ge=0, le=10_000)
    ] = 2
    delay_ms: Annotated[int, key("Delay of every datagram", "", "ms", ge=0, le=10_000)] = 0
    jitter_ms: Annotated[int, key("Random delay on top, from 0 to this", "", "ms", ge=0, le=10_000)] = 0
    corrupt: Annotated[Chance, key("Datagrams with one bit flipped", "", "fraction")] = 0.0
    burst: Annotated[
        float,
        key(
            "Datagrams to or from one peer lost in a row, in the mean",
            "`loss` is the share lost as before",
            ge=1.0,
            le=1000.0,
        ),
    ] = 1.0
    seed: Annotated[int, key("Seed of the choices", "0: a new one each start", ge=0, le=(1 << 63) - 1)] = 0
    links: Mapping[str, LinkFaults] = msgspec.field(default_factory=dict[str, LinkFaults])

    def active(self) -> bool:
        """Whether anything is injected anywhere."""
        every: list[Faults | LinkFaults] = [self, *self.links.values()]
        chances = any(each.loss or each.duplicate or each.reorder or each.corrupt for each in every)
        return chances or any(each.delay_ms or each.jitter_ms for each in every)


class Admin(Section, frozen=True):
    """HTTP for operators under `muster up`, one port per process: `/healthz`, `/readyz`, `/metrics`, `/api/v1/…`."""

    host: Annotated[
        Literal["127.0.0.1", "::1"], key("Address to listen on", "it has no login, so it never leaves this machine")
    ] = "127.0.0.1"


class Log(Section, frozen=True):
    """Logs of the roles and the supervisor, on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], key("Least level that is written")] = "info"
    format: Annotated[Literal["json", "text"], key("One JSON object per line, or text for eyes")] = "json"


DEMO_ROOM: Final = "demo"


class Demo(Section, frozen=True):
    """The room `demo` of `muster up --demo`."""

    members: Annotated[int, key("Sessions that join it", "enough to see fan-out", ge=1, le=10_000)] = 100
    rate: Annotated[int, key("Messages published", "10,000 deliveries a second", "1/s", ge=1, le=100_000)] = 100
    payload_bytes: Annotated[int, key("Size of a message", "a chat line", "bytes", ge=24, le=65_536)] = 200


class Config(Section, frozen=True):
    """The whole configuration, checked and frozen."""

    instance: Instance = Instance()
    cluster: Cluster = Cluster()
    up: Up = Up()
    serve: Serve = Serve()
    registry: Registry = Registry()
    database: Database = Database()
    clients: Clients = Clients()
    gateway: Gateway = Gateway()
    proxy: Proxy = Proxy()
    broker: Broker = Broker()
    router: Router = Router()
    namespaces: Mapping[str, Namespace] = msgspec.field(default_factory=dict[str, Namespace])
    links: Links = Links()
    probes: Probes = Probes()
    faults: Faults = Faults()
    admin: Admin = Admin()
    log: Log = Log()
    demo: Demo = Demo()

    def role(self, role: Role) -> Gateway | Proxy | Broker | Router:
        """The section of one role."""
        sections: dict[str, Gateway | Proxy | Broker | Router] = {
            "gateway": self.gateway,
            "proxy": self.proxy,
            "broker": self.broker,
            "router": self.router,
        }
        return sections[role]


# Where `muster up` differs: everything on one machine, restarts must be noticed in a second, nodes may come and go.
UP: Final[Mapping[str, int | str]] = {
    "registry.url": "embedded",
    "database.url": "sqlite",
    "gateway.arena_mib": 64,
    "broker.arena_mib": 64,
    **{f"{role}.keepalive_ms": 400 for role in ("gateway", "proxy")},
    **{f"{role}.idle_timeout_ms": 10_000 for role in ("gateway", "proxy")},
}
