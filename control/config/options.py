"""Every key of the configuration that no system owns, and the whole that the systems' sections make with them.

Owns the shape only: type, bounds, default, unit and why the default is what it is. It must not know files, environment or
flags (`control/config/load.py`), nor what starts with the values (`control/cluster/`). A role's keys stand in the folder of
its system. `docs/configuration.md` is generated from all of them.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from muster_server.plane import systems
from muster_server.plane.kind import O, RoleKind
from muster_server.plane.kinds import clustered, kind, kinds, linked, partitioned
from muster_server.plane.options import Section, key

Chance = Annotated[float, key("", "faults are off unless asked for", "fraction", ge=0.0, le=1.0)]


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
    jwks: Annotated[
        str,
        key(
            "JSON Web Key Set of those who sign users' tokens with a private key (EdDSA, ES256, RS256): a file, or a URL"
            " that is fetched again every 5 minutes and for unknown keys",
            "empty: none; a key that can only check lets no gateway sign",
        ),
    ] = ""
    revoked_file: Annotated[
        str,
        key(
            "File of revoked users and tokens, a line each: `user USER`, or `token ID` with the token's `jti`",
            "empty: none; SIGHUP reads it again and ends their sessions",
        ),
    ] = ""
    signing_key_file: Annotated[
        str,
        key(
            "File with the private key that certifies gateways, proxies and faces in the registry, 32 bytes in hex; read by"
            " `muster up`, `muster cluster certify`, and `muster serve` of a server without `serve.certificate_file`",
            "empty: `signing.key` in `instance.dir`, made once",
        ),
    ] = ""
    signing_keys: Annotated[
        str,
        key(
            "Public halves of that key, one, or two with a comma while one replaces the other: credentials are shown only to"
            " servers that one of them certifies",
            "empty: that of `signing_key_file`, where it can be read",
            pattern=r"^(?:[0-9a-f]{64}(?:,[0-9a-f]{64})?)?\s*$",
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
            "empty: none; `secure.md` has the steps",
        ),
    ] = ""
    other_key_id: Annotated[
        int, key("Id of the secret in `other_secret_file`, if there is one", "the next one after 1", ge=0, le=255)
    ] = 2
    identity: Annotated[
        Literal["off", "accepted", "offered", "required"],
        key(
            "Proof of identity on links of `muster serve` nodes, with keys listed in `nodes_file`",
            "off: every holder of the secret may link; `secure.md` has the steps to `required`",
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


class Systems(Section, frozen=True):
    """Which systems run beside rooms."""

    enabled: Annotated[
        str,
        key(
            "Systems that `muster up` also starts, with commas between, or `all`; gateways and proxies take part in them",
            "empty: rooms alone; `--with` adds",
        ),
    ] = ""


class Up(Section, frozen=True):
    """The number of nodes of each role that `muster up` starts, and their processes. If a `bind` names a port, the second
    node has the next one."""

    processes: Annotated[
        str,
        key(
            "Machines that share a process: `first` (the first router, broker, gateway and proxy), `together` (all of these"
            " roles), `apart` (none), or groups of roles, as `gateway+proxy,broker+router`",
            "first: less memory and quicker single messages; further nodes work on further processors, and die alone",
        ),
    ] = "first"

    def wanted(self, role: str) -> int | str:
        """What the key of a role says: a number of nodes, or PARTITIONSxREPLICAS."""
        return cast(int | str, getattr(self, kind(role).plural))


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
    certificate_file: Annotated[
        str,
        key(
            "File with the certificate of a gateway, proxy or face, which `muster cluster certify` makes where the key is;"
            " it is looked at every 5 s",
            "empty: the node reads `cluster.signing_key_file` and certifies itself",
        ),
    ] = ""
    partition: Annotated[int, key("Partition of a broker or router", "", ge=0, le=255)] = 0
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
            "another address than loopback needs `admin.token_file` and `admin.tls_cert_file`",
        ),
    ] = "127.0.0.1:0"

    def partitions(self, role: str) -> int:
        """How many partitions the layer of a role begins with."""
        return cast(int, getattr(self, f"{role}_partitions"))


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
            "Authentication at ZooKeeper: `digest` sends the password in the clear unless `tls_ca_file` is set, `sasl`"
            " (DIGEST-MD5) does not",
            "with either, only this user may write the nodes' entries; `muster doctor` warns without",
        ),
    ] = "none"
    user: Annotated[str, key("User at ZooKeeper", "", pattern=r"^[A-Za-z0-9._@-]*$")] = ""
    password_file: Annotated[
        str, key("File with the user's password, one line", "the configuration itself holds no secret")
    ] = ""
    tls_ca_file: Annotated[
        str,
        key(
            "File of the authority that signed ZooKeeper's certificates (PEM); with it every connection is TLS",
            "empty: no TLS, so `digest` shows the password to the network",
        ),
    ] = ""
    tls_cert_file: Annotated[
        str, key("File of the node's own certificate at ZooKeeper (PEM)", "empty: none, as ZooKeeper asks for none")
    ] = ""
    tls_key_file: Annotated[str, key("File of that certificate's private key (PEM)")] = ""


class Loop(Section, frozen=True):
    """The loop of each process whose roles have links."""

    linger_us: Annotated[
        int,
        key(
            "Time for which a turn that begins within 500 us of the last one waits for the next datagram itself; the loop's"
            " other work, such as administration, waits meanwhile; 0: never",
            "where datagrams follow each other closely the loop passes once in 2 ms, not once for each",
            "us",
            ge=0,
            le=20_000,
        ),
    ] = 2_000


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
    """HTTP for operators, one port per process: `/healthz`, `/readyz`, `/metrics`, `/api/v1/…`. The same values for all
    nodes, and for commands that ask them."""

    host: Annotated[
        Literal["127.0.0.1", "::1"],
        key(
            "Address to listen on under `muster up`; for `muster serve`: `serve.admin`", "it never leaves this machine"
        ),
    ] = "127.0.0.1"
    token_file: Annotated[
        str,
        key(
            "File with a token, one line, that opens every page but `/healthz` and `/readyz` (`Authorization: Bearer …`)",
            "empty: none; needed where `serve.admin` is no loopback address",
        ),
    ] = ""
    tls_cert_file: Annotated[
        str,
        key(
            "File of the certificate that admin ports show (PEM); commands trust it, whatever address shows it",
            "empty: no TLS; needed where `serve.admin` is no loopback address",
        ),
    ] = ""
    tls_key_file: Annotated[str, key("File of that certificate's private key (PEM)", "only nodes read it")] = ""


class Log(Section, frozen=True):
    """Logs of the roles and the supervisor, on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], key("Lowest level that is logged")] = "info"
    format: Annotated[Literal["json", "text"], key("One JSON object per line, or text for eyes")] = "json"


class Config(Section, frozen=True):
    """The whole configuration, checked and frozen. The sections of roles and systems are added by `whole`."""

    instance: Instance = Instance()
    cluster: Cluster = Cluster()
    systems: Systems = Systems()
    up: Up = Up()
    serve: Serve = Serve()
    registry: Registry = Registry()
    loop: Loop = Loop()
    links: Links = Links()
    faults: Faults = Faults()
    admin: Admin = Admin()
    log: Log = Log()

    def section(self, name: str) -> Any:
        """A section by its name."""
        return getattr(self, name)

    def sections(self) -> list[Any]:
        """All of them."""
        return [getattr(self, name) for name in self.__struct_fields__]

    def options(self, of: RoleKind[O, Any]) -> O:
        """The section of a role."""
        return cast(O, getattr(self, of.key))

    def role(self, role: str) -> Any:
        """The section of a role by its name."""
        return self.options(kind(role))

    def runs(self, system: str) -> bool:
        """Whether `muster up` starts this system."""
        wanted = {word.strip() for word in self.systems.enabled.split(",")}
        return systems.named()[system].always or system in wanted or "all" in wanted


def _serve() -> type[Serve]:
    fields: list[tuple[str, Any, Any]] = []
    for role in sorted(partitioned()):
        text = f"Partitions of {'its ' if role in clustered() else ''}{kind(role).plural} at the first start"
        why = "a power of two; later the registry's number holds"
        fields.append((f"{role}_partitions", Annotated[int, key(text, why, ge=1, le=256)], 1))
    made = msgspec.defstruct("Serve", fields, bases=(Serve,), frozen=True, forbid_unknown_fields=True, kw_only=True)
    made.__doc__ = Serve.__doc__
    return cast(type[Serve], made)


def _up() -> type[Up]:
    fields: list[tuple[str, Any, Any]] = []
    for each in kinds().values():
        if each.plural and each.partitioned:
            text = f"{each.plural.capitalize()}, as PARTITIONSxREPLICAS (`2x2`) or PARTITIONS: a power of two up to 256"
            hint: Any = Annotated[str, key(f"{text}, with up to 16 replicas each", each.count_why)]
            fields.append((each.plural, hint, str(each.count)))
        elif each.plural:
            hint = Annotated[int, key(f"Number of {each.plural}", each.count_why, ge=1, le=64)]
            fields.append((each.plural, hint, each.count))
    made = msgspec.defstruct("Up", fields, bases=(Up,), frozen=True, forbid_unknown_fields=True, kw_only=True)
    made.__doc__ = Up.__doc__
    return cast(type[Up], made)


@functools.cache
def whole() -> type[Config]:
    """The configuration with the sections of all systems."""
    up, serve = _up(), _serve()
    fields: list[tuple[str, Any, Any]] = [("up", up, up()), ("serve", serve, serve())]
    for system in systems.named().values():
        for name, hint in system.sections.items():
            default = hint() if isinstance(hint, type) else msgspec.field(default_factory=dict)
            fields.append((name, hint, default))
        fields += [(each.key, each.options, each.options()) for each in system.kinds if each.key not in system.sections]
    made = msgspec.defstruct("Config", fields, bases=(Config,), frozen=True, forbid_unknown_fields=True, kw_only=True)
    return cast(type[Config], made)


def counted(**counts: int | str) -> Up:
    """The section `up` with these numbers of nodes."""
    made: Up = msgspec.convert(counts, _up())
    return made


ROLES: Final = tuple(linked())
"""The roles whose nodes have links."""
SERVED: Final = tuple(kinds())
"""The roles that `muster serve` runs."""
LINKS: Final = frozenset(
    f"{one}->{other}"
    for each in kinds().values()
    for peer in (*each.dials, *(("client",) if each.clients else ()))
    for one, other in ((each.name, peer), (peer, each.name))
)
"""The links that exist, by sender and receiver. Faults can be set for each direction apart."""

UP: Final[Mapping[str, int | str]] = {
    "registry.url": "embedded",
    **{name: value for system in systems.named().values() for name, value in system.presets.items()},
}
"""The values of `muster up`: everything is on one machine, restarts must be noticed in a second, nodes may come and go."""
