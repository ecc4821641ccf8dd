"""Every key of the configuration: type, bounds, default, unit, and the reason for the default.

Owns the shape only. It must not know files, environment or flags (`control/config/load.py`), nor the processes that use
the values (`control/cluster/supervisor.py`). `docs/configuration.md` is generated from here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

Role = Literal["router", "broker", "gateway", "proxy"]
Served = Literal["router", "broker", "gateway", "proxy", "prober"]
"""The words after `muster serve`: a role, or the prober."""
ROLES: Final[tuple[Role, ...]] = ("router", "broker", "gateway", "proxy")

# All links, by sender. Faults can be set for each direction.
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
    """Describe one key: its meaning, the reason for its default, its unit, its bounds."""
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
    """The name of this installation, and the folder of its run-time files."""

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
    """The secrets that all nodes share. `muster serve` makes none: each host has the same."""

    secret_file: Annotated[
        str,
        key(
            "File with the secret of links between roles, 32 bytes in hex",
            "empty: `cluster.secret` in `instance.dir`, made once",
        ),
    ] = ""
    names_file: Annotated[
        str,
        key(
            "File with the key of the hash that spreads room names, 16 bytes in hex",
            "empty: `names.key` in `instance.dir`, made once",
        ),
    ] = ""
    token_file: Annotated[
        str,
        key(
            "File with the shared token of clients, one line, for gateways and proxies",
            "empty: `token` in `instance.dir`, made once",
        ),
    ] = ""
    jwt_secret_file: Annotated[
        str,
        key(
            "File with one or two secrets that sign users' tokens, one line of at least 32 bytes each; gateways and proxies"
            " accept both, `muster token` signs with the first",
            "empty: `jwt.secret` in `instance.dir`, made once by `muster up`; `muster serve` takes no user's token then",
        ),
    ] = ""
    key_id: Annotated[
        int,
        key("Id of the secret in `secret_file`, which new links use", "each secret has its own id", ge=0, le=255),
    ] = 1
    other_secret_file: Annotated[
        str,
        key(
            "File with a second accepted secret, while one secret replaces another: first the next one, then the former",
            "empty: none; `operations.md` has the steps",
        ),
    ] = ""
    other_key_id: Annotated[
        int, key("Id of the secret in `other_secret_file`, if there is one", "the next one after 1", ge=0, le=255)
    ] = 2
    identity: Annotated[
        Literal["off", "accepted", "offered", "required"],
        key(
            "Whether `muster serve` nodes prove their identity on links, with keys listed in `nodes_file`",
            "off: every holder of the secret may link; `operations.md` has the steps to `required`",
        ),
    ] = "off"
    nodes_file: Annotated[
        str,
        key(
            "List of the nodes that may link, one a line: number, role and public key in hex",
            "its writer decides which nodes are in: keep it out of the nodes' reach",
        ),
    ] = ""
    node_key_file: Annotated[
        str,
        key(
            "File with the node's private key, 32 bytes in hex",
            "empty: `node.key` in the node's folder in `serve.dir`, made at the first start with an `identity`",
        ),
    ] = ""


class Up(Section, frozen=True):
    """The number of nodes of each role that `muster up` starts. If a `bind` names a port, the second node has the next
    one."""

    gateways: Annotated[int, key("Number of gateways", "members spread over them", ge=1, le=64)] = 1
    brokers: Annotated[
        str,
        key(
            "Brokers, as PARTITIONSxREPLICAS (`2x2`) or PARTITIONS: a power of two up to 256, with up to 16 replicas each",
            "partitions share the memberships; the replicas of a partition share its messages",
        ),
    ] = "1"
    routers: Annotated[
        str,
        key(
            "Routers, in the form of `brokers`",
            "partitions share the memberships, independently of the brokers'; replicas share the brokers",
        ),
    ] = "1"
    proxies: Annotated[int, key("Number of proxies", "publishers spread over them", ge=1, le=64)] = 1


class Serve(Section, frozen=True):
    """A `muster serve` node's own values: from flags or the environment, where hosts share a file."""

    name: Annotated[
        str,
        key(
            "Name of the node in the registry, to which its number belongs",
            "empty: HOST-ROLE; a second node of a role on a host needs a name",
            pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$",
        ),
    ] = ""
    dir: Annotated[
        str,
        key("Folder with a folder for each node's keys", "clients know a server by its key: keep it"),
    ] = "/var/lib/muster"
    cluster: Annotated[
        str,
        key(
            "Cluster of a broker or proxy",
            "routers and gateways serve all clusters",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        ),
    ] = "main"
    partition: Annotated[int, key("Partition of a broker or router", "", ge=0, le=255)] = 0
    broker_partitions: Annotated[
        int,
        key(
            "Partitions of the cluster's brokers at its first start",
            "a power of two; later the registry's number holds",
            ge=1,
            le=256,
        ),
    ] = 1
    router_partitions: Annotated[
        int,
        key(
            "Partitions of routers at the first start",
            "a power of two; later the registry's number holds",
            ge=1,
            le=256,
        ),
    ] = 1
    weight: Annotated[
        int,
        key(
            "Share of a gateway or proxy in new clients: a server of 2 is drawn twice as often as one of 1",
            "equal shares; 0: no client learns of it, and open sessions stay",
            ge=0,
            le=1_000,
        ),
    ] = 1
    admin: Annotated[
        str,
        key(
            "Address of the HTTP for operators, `host:port`",
            "it has no login: on a reachable address, let only probes and Prometheus through",
        ),
    ] = "127.0.0.1:0"


class Registry(Section, frozen=True):
    """Where nodes register and find each other. Without a registry each node gets all addresses at its start, for
    good."""

    url: Annotated[
        str,
        key(
            "`embedded`: inside `muster up`; `zk://HOST:PORT,HOST:PORT/PATH`: ZooKeeper, below this path; or `none`",
            "empty: none; without a registry no node comes or goes while the others run",
        ),
    ] = ""
    session_ms: Annotated[
        int,
        key(
            "Silence after which a node leaves the map",
            "longer than a short stop of the machine; dead nodes are bypassed much earlier",
            "ms",
            ge=1_000,
            le=60_000,
        ),
    ] = 10_000
    cut_off_ms: Annotated[
        int,
        key(
            "Time a gateway or proxy keeps its clients while a whole partition of brokers or routers is out of its reach; "
            "then it sends them to others, if at least half of these serve; up to twice as long; 0: for ever",
            "longer than the registry needs to drop dead nodes, which no other server reaches either",
            "ms",
            ge=0,
            le=600_000,
        ),
    ] = 20_000
    auth: Annotated[
        Literal["none", "digest", "sasl"],
        key(
            "Authentication at ZooKeeper: `digest` sends the password in the clear, `sasl` (DIGEST-MD5) does not",
            "with either, only this user may write the nodes' entries",
        ),
    ] = "none"
    user: Annotated[str, key("User at ZooKeeper", "", pattern=r"^[A-Za-z0-9._@-]*$")] = ""
    password_file: Annotated[
        str, key("File with the user's password, one line", "the configuration itself holds no secret")
    ] = ""


SQLITE: Final = "sqlite"
"""The database that needs no URL: a file of its own."""


class Database(Section, frozen=True):
    """Where routers store which gateway wants which room, so that a starting router knows it before all gateways
    report.

    All but SQLite need the extra `database` of `muster-server`. No traffic waits for the database, and nothing else
    changes without it.
    """

    url: Annotated[
        str,
        key(
            "`sqlite`: the file `memberships.db` in the folder of the instance, or of the node; `sqlite:///PATH` (four "
            "slashes for an absolute path), `mysql://USER@HOST:PORT/NAME`, `postgresql://USER@HOST:PORT/NAME`; or `none`",
            "empty: none; gateways report their rooms anyway",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with the user's password, one line", "the configuration itself holds no secret")
    ] = ""


class RoleOptions(Section, frozen=True):
    """Keys of every role's process."""

    bind: Address = "127.0.0.1:0"
    recv_buffer_bytes: Annotated[
        int,
        key(
            "Requested size of the socket's receive buffer; 0: the kernel's default",
            "Linux's default holds about 256 small datagrams; `muster status` shows the size given",
            "bytes",
            ge=0,
            le=1 << 30,
        ),
    ] = 4 << 20
    send_buffer_bytes: Annotated[
        int,
        key(
            "Requested size of the socket's send buffer; 0: the kernel's default",
            "two slices",
            "bytes",
            ge=0,
            le=1 << 30,
        ),
    ] = 4 << 20
    payload_bytes: Annotated[
        int,
        key("Largest datagram", "passes every usual network without fragments", "bytes", ge=1200, le=1472),
    ] = 1200


class ClientOptions(RoleOptions, frozen=True):
    """Keys of the roles that clients connect to."""

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
            "Most sessions at once; further clients get no answer and try another server; open sessions stay",
            "about 1 KB each: 1 GB, the most for one process",
            "sessions",
            ge=1,
            le=1 << 20,
        ),
    ] = 1 << 20
    accept_rate: Annotated[
        int,
        key(
            "Handshakes a second from one network (an IPv4 /24 or an IPv6 /56); twice as many at once",
            "one network cannot keep the others out; raise it if many clients share a translated address",
            "1/s",
            ge=1,
            le=1_000_000,
        ),
    ] = 1_000


class Clients(Section, frozen=True):
    """Values that gateways and proxies send to each client at the start of its session."""

    backoff_ms: Annotated[
        int,
        key(
            "Longest random pause of a client before it opens a lost session again; doubled after each failed attempt",
            "for few clients; 100,000 that come back within 10 s are 10,000 handshakes a second",
            "ms",
            ge=10,
            le=60_000,
        ),
    ] = 100
    backoff_max_ms: Annotated[
        int,
        key("Upper limit of that pause", "at least `backoff_ms`", "ms", ge=10, le=600_000),
    ] = 5_000


class Gateway(ClientOptions, frozen=True):
    """Carries rooms to members: clients join here."""

    arena_mib: ArenaMib = 256
    history_max: Annotated[
        int,
        key("Most messages of history for a join", "one fetch from a broker", "messages", ge=0, le=65_536),
    ] = 1_024
    membership_again_ms: Annotated[
        int,
        key(
            "Time after which a room's first join, or last leave, is sent to the router again unless acknowledged; 0: only"
            " when it may be lost",
            "sooner than a loss can be detected; when many rooms change at once, nothing is sent twice",
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
            "One of this many publish frames carries its messages' age, for the latency of real messages; 0: none",
            "costs 33 bytes per link each, and is frequent enough for percentiles of a minute",
            "frames",
            ge=0,
            le=1 << 30,
        ),
    ] = 1_024
    command_rate: Annotated[
        int,
        key(
            "Commands of one user, over all its sessions here; with the shared token, of one session",
            "commands are for rare events: each costs an answer per member and per hop",
            "1/s",
            ge=1,
            le=10_000,
        ),
    ] = 1
    command_burst: Annotated[
        int, key("Commands of one user at once, after a pause", "one by one", "commands", ge=1, le=10_000)
    ] = 1


class Broker(RoleOptions, frozen=True):
    """Numbers a room's messages and keeps the recent ones. `bind` is for links: no client connects to it."""

    arena_mib: ArenaMib = 256


class Router(RoleOptions, frozen=True):
    """Tells brokers which gateway wants which room. `bind` is for links: no client connects to it."""

    memberships_max: Annotated[
        int,
        key(
            "Most memberships (rooms wanted, once per gateway); further ones are refused; memory is taken at start",
            "64 B each: 1 GiB; changes that wait for peers take up to 66 B each more",
            "memberships",
            ge=1,
            le=1 << 25,
        ),
    ] = 16 << 20


class Namespace(Section, frozen=True):
    """Settings of the rooms whose names begin with this namespace (`NAME:room`)."""

    flow: Annotated[
        Literal["live", "paced"],
        key(
            "`live`: a slow member slows nobody; `paced`: publishers wait for it up to 5 s, and repair has 3 s",
            "a live room must not stand still for one reader; `paced` is for files and feeds, which should arrive whole",
        ),
    ] = "live"


class Links(Section, frozen=True):
    """The limits of `muster links`. Nothing else uses them."""

    latency_ms: Annotated[
        int,
        key("Longest round trip", "one data centre and a busy machine; more between regions", "ms", ge=1, le=60_000),
    ] = 100
    loss: Annotated[
        float, key("Largest recent loss of datagrams", "repair is cheap up to here", "fraction", ge=0.0, le=1.0)
    ] = 0.01
    availability: Annotated[
        float,
        key("Smallest share of the observed time with a link", "0: no limit", "fraction", ge=0.0, le=1.0),
    ] = 0.99
    failures: Annotated[
        int,
        key(
            "Readings in a row, a second apart, that break a limit before `--check` fails",
            "one may be chance",
            ge=1,
            le=3600,
        ),
    ] = 3


class Probes(Section, frozen=True):
    """Small messages over every path of proxy, broker and gateway, to measure whether it works and how long it
    takes."""

    every_ms: Annotated[
        int,
        key(
            "Time between two probes from a proxy to a broker; members at all gateways should receive each",
            "a node that stands still is reported within seconds; 0: no probes, except by `muster links --probe`",
            "ms",
            ge=0,
            le=3_600_000,
        ),
    ] = 1_000
    ask: Annotated[
        str,
        key("Admin address of a `muster serve prober`, for `muster links`", "empty: the prober of `muster up`"),
    ] = ""
    timeout_ms: Annotated[
        int,
        key("Time after which a probe has failed", "a busy machine is no failure", "ms", ge=10, le=60_000),
    ] = 1_000
    failures: Annotated[
        int, key("Failed probes in a row that raise a path's alarm", "one may be chance", "", ge=1, le=3600)
    ] = 3
    successes: Annotated[
        int, key("Successful probes in a row that clear it", "an unstable path stays alarmed", "", ge=1, le=3600)
    ] = 5
    window: Annotated[
        int,
        key("Recent probes that a path's loss and latencies cover", "enough for a p99", "", ge=10, le=1_000),
    ] = 100
    per_s_max: Annotated[
        int,
        key(
            "Most probes a second; with many proxies times brokers, a round then takes longer than `every_ms`",
            "bounds the cost of probes for any number of paths: each is delivered at every gateway",
            "1/s",
            ge=1,
            le=10_000,
        ),
    ] = 20


class LinkFaults(Section, frozen=True):
    """Overrides for one link and direction; missing keys are as in `[faults]`."""

    loss: Chance | None = None
    duplicate: Chance | None = None
    reorder: Chance | None = None
    reorder_hold_ms: Annotated[int, key("", "", "ms", ge=0, le=10_000)] | None = None
    delay_ms: Annotated[int, key("", "", "ms", ge=0, le=10_000)] | None = None
    jitter_ms: Annotated[int, key("", "", "ms", ge=0, le=10_000)] | None = None
    corrupt: Chance | None = None
    burst: Annotated[float, key("", "", ge=1.0, le=1000.0)] | None = None


class Faults(Section, frozen=True):
    """Faults that the drivers inject on purpose into every link, in both directions. For tests: a running node logs a
    warning."""

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
            "Mean number of a peer's datagrams lost in a row",
            "`loss` stays the share lost",
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

    level: Annotated[Literal["debug", "info", "warning", "error"], key("Lowest level that is logged")] = "info"
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


# The values of `muster up`: everything is on one machine, restarts must be noticed in a second, nodes may come and go.
UP: Final[Mapping[str, int | str]] = {
    "registry.url": "embedded",
    "database.url": "sqlite",
    "gateway.arena_mib": 64,
    "broker.arena_mib": 64,
    **{f"{role}.keepalive_ms": 400 for role in ("gateway", "proxy")},
    **{f"{role}.idle_timeout_ms": 10_000 for role in ("gateway", "proxy")},
}
