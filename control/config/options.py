"""Every key of the configuration that no system owns, and the whole configuration with the systems' sections.

Owns the shape only: type, bounds, default, unit and the reason of the default. It must not know files, environment or
flags (`control/config/load.py`), nor the programs that use the values (`control/cluster/`). A role's keys are in the
folder of its system. `docs/configuration.md` is generated from all of them.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from muster_server.plane import systems
from muster_server.plane.kind import O, RoleKind
from muster_server.plane.kinds import clustered, kind, kinds, linked, partitioned
from muster_server.plane.options import Section, key

Chance = Annotated[float, key("", "faults are off by default", "fraction", ge=0.0, le=1.0)]


class Instance(Section, frozen=True):
    """The name of this installation, and the folder of its run-time files."""

    name: Annotated[
        str, key("Name in logs and `muster status`", "distinguishes instances", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    ] = "muster"
    dir: Annotated[
        str,
        key(
            "Folder of keys, tokens and `instance.json`, mode 0700; clients on this machine find the instance "
            "through it",
            "empty: `$XDG_RUNTIME_DIR/muster`, else `/tmp/muster-UID`",
        ),
    ] = ""


class Cluster(Section, frozen=True):
    """The secrets that all nodes share. `muster serve` makes none: all hosts need the same ones."""

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
            "empty: `jwt.secret` in `instance.dir`, made once by `muster up`; `muster serve` then accepts no "
            "user's token",
        ),
    ] = ""
    jwks: Annotated[
        str,
        key(
            "JSON Web Key Set with the public keys that verify users' tokens (EdDSA, ES256, RS256): a file, or a URL"
            " that is fetched every 5 minutes and for unknown keys",
            "empty: none; with public keys no gateway can sign a token",
        ),
    ] = ""
    revoked_file: Annotated[
        str,
        key(
            "File of revoked users and tokens, one per line: `user USER`, or `token ID` with the token's `jti`",
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
            "Public halves of that key: one, or two separated by a comma during a replacement; credentials are presented"
            " only to servers that one of them certifies",
            "empty: the public half of `signing_key_file`, if it can be read",
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
            "File with a second accepted secret during a replacement: first the next secret, then the former one",
            "empty: none; `secure.md` has the steps",
        ),
    ] = ""
    other_key_id: Annotated[
        int, key("Id of the secret in `other_secret_file`, if there is one", "the next id after 1", ge=0, le=255)
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
            "List of the nodes that may link, one per line: number, role and public key in hex",
            "whoever can write it decides which nodes may link: nodes must not be able to write it",
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
            "Systems that `muster up` also starts, separated by commas, or `all`; gateways and proxies take "
            "part in them",
            "empty: only rooms; `--with` adds systems",
        ),
    ] = ""


class Up(Section, frozen=True):
    """The number of nodes of each role that `muster up` starts, and their processes. If a `bind` names a port, the
    second node uses the next port, and so on."""

    processes: Annotated[
        str,
        key(
            "Machines that share a process: `first` (the first router, broker, gateway and proxy), `together` (all of these"
            " roles), `apart` (none), or groups of roles, for example `gateway+proxy,broker+router`",
            "first: less memory and lower latency of single messages; further nodes use further cores, and "
            "fail separately",
        ),
    ] = "first"

    def wanted(self, role: str) -> int | str:
        """The value of a role's key: a number of nodes, or PARTITIONSxREPLICAS."""
        return cast(int | str, getattr(self, kind(role).plural))


class Serve(Section, frozen=True):
    """A `muster serve` node's own values: set them by flags or environment if hosts share a file."""

    name: Annotated[
        str,
        key(
            "Name of the node in the registry, which owns its number",
            "empty: HOST-ROLE; a second node of a role on a host needs a name",
            pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?$",
        ),
    ] = ""
    dir: Annotated[
        str,
        key("Folder with a subfolder for each node's keys", "clients know a server by its key, so do not lose it"),
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
            " it is checked every 5 s",
            "empty: the node reads `cluster.signing_key_file` and certifies itself",
        ),
    ] = ""
    partition: Annotated[int, key("Partition of a broker or router", "", ge=0, le=255)] = 0
    weight: Annotated[
        int,
        key(
            "Share of new clients of a gateway or proxy: a server with 2 gets twice as many as one with 1",
            "equal shares; 0: no new client learns of it, and open sessions stay",
            ge=0,
            le=1_000,
        ),
    ] = 1
    admin: Annotated[
        str,
        key(
            "Address of HTTP administration, `host:port`",
            "addresses other than loopback need `admin.token_file` and `admin.tls_cert_file`",
        ),
    ] = "127.0.0.1:0"

    def partitions(self, role: str) -> int:
        """The initial number of partitions of a role's layer."""
        return cast(int, getattr(self, f"{role}_partitions"))


class Registry(Section, frozen=True):
    """Where nodes register and find each other. Without a registry each node gets all addresses at its start,
    permanently."""

    url: Annotated[
        str,
        key(
            "`embedded`: inside `muster up`; `zk://HOST:PORT,HOST:PORT/PATH`: ZooKeeper, below this path; or `none`",
            "empty: none; without a registry no node can be added or removed while the others run",
        ),
    ] = ""
    session_ms: Annotated[
        int,
        key(
            "Silence after which a node leaves the map",
            "longer than a short stall of the machine; dead nodes are bypassed much earlier",
            "ms",
            ge=1_000,
            le=60_000,
        ),
    ] = 10_000
    cut_off_ms: Annotated[
        int,
        key(
            "Time a gateway or proxy keeps its clients while it cannot reach any node of a partition of brokers or routers; "
            "then it sends them to other servers, if at least half of these serve; up to twice as long; 0: no limit",
            "longer than the registry needs to drop dead nodes, which no other server can reach either",
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
            "with either, only this user may write the nodes' entries; without, `muster doctor` warns",
        ),
    ] = "none"
    user: Annotated[str, key("User at ZooKeeper", "", pattern=r"^[A-Za-z0-9._@-]*$")] = ""
    password_file: Annotated[
        str, key("File with the user's password, one line", "the configuration itself contains no secret")
    ] = ""
    tls_ca_file: Annotated[
        str,
        key(
            "File of the authority that signed ZooKeeper's certificates (PEM); if set, every connection uses TLS",
            "empty: no TLS, so `digest` reveals the password to the network",
        ),
    ] = ""
    tls_cert_file: Annotated[
        str, key("File of the node's own certificate at ZooKeeper (PEM)", "empty: none, since ZooKeeper requires none")
    ] = ""
    tls_key_file: Annotated[str, key("File of that certificate's private key (PEM)")] = ""


class Loop(Section, frozen=True):
    """The event loop of each process whose roles have links."""

    linger_us: Annotated[
        int,
        key(
            "How long a turn waits for the next datagram if it began within 500 us of the last turn; the loop's"
            " other work, such as administration, waits meanwhile; 0: never",
            "under steady traffic the loop runs once in 2 ms, not once per datagram",
            "us",
            ge=0,
            le=20_000,
        ),
    ] = 2_000


class Links(Section, frozen=True):
    """The limits of `muster links`. Nothing else uses them."""

    latency_ms: Annotated[
        int,
        key("Highest round trip", "one data centre and a busy machine; more between regions", "ms", ge=1, le=60_000),
    ] = 100
    loss: Annotated[
        float,
        key("Highest share of recently lost datagrams", "repair is cheap up to this share", "fraction", ge=0.0, le=1.0),
    ] = 0.01
    availability: Annotated[
        float,
        key("Lowest share of the observed time with a link", "0: no limit", "fraction", ge=0.0, le=1.0),
    ] = 0.99
    failures: Annotated[
        int,
        key(
            "Consecutive readings, a second apart, that must break a limit before `--check` fails",
            "a single one may be chance",
            ge=1,
            le=3600,
        ),
    ] = 3


class LinkFaults(Section, frozen=True):
    """Overrides for one link and direction; missing keys have the values of `[faults]`."""

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
    jitter_ms: Annotated[int, key("Additional random delay, from 0 to this", "", "ms", ge=0, le=10_000)] = 0
    corrupt: Annotated[Chance, key("Datagrams with one bit flipped", "", "fraction")] = 0.0
    burst: Annotated[
        float,
        key(
            "Mean number of consecutive lost datagrams of a peer",
            "`loss` stays the share of lost datagrams",
            ge=1.0,
            le=1000.0,
        ),
    ] = 1.0
    seed: Annotated[int, key("Seed of the random choices", "0: a new seed at each start", ge=0, le=(1 << 63) - 1)] = 0
    links: Mapping[str, LinkFaults] = msgspec.field(default_factory=dict[str, LinkFaults])

    def active(self) -> bool:
        """Whether any fault is injected."""
        every: list[Faults | LinkFaults] = [self, *self.links.values()]
        chances = any(each.loss or each.duplicate or each.reorder or each.corrupt for each in every)
        return chances or any(each.delay_ms or each.jitter_ms for each in every)


class Admin(Section, frozen=True):
    """HTTP administration, one port per process: `/healthz`, `/readyz`, `/metrics`, `/api/v1/…`. The same values for
    all nodes, and for commands that ask them."""

    host: Annotated[
        Literal["127.0.0.1", "::1"],
        key(
            "Address to listen on under `muster up`; for `muster serve` see `serve.admin`",
            "loopback: it is not reachable from other machines",
        ),
    ] = "127.0.0.1"
    token_file: Annotated[
        str,
        key(
            "File with a token, one line, required for every page except `/healthz` and `/readyz` "
            "(`Authorization: Bearer …`)",
            "empty: none; required if `serve.admin` is not a loopback address",
        ),
    ] = ""
    tls_cert_file: Annotated[
        str,
        key(
            "File of the certificate of admin ports (PEM); commands trust it at any address",
            "empty: no TLS; required if `serve.admin` is not a loopback address",
        ),
    ] = ""
    tls_key_file: Annotated[str, key("File of that certificate's private key (PEM)", "only nodes read it")] = ""


class Log(Section, frozen=True):
    """Logs of the roles and the supervisor, on stderr."""

    level: Annotated[Literal["debug", "info", "warning", "error"], key("Lowest level that is logged")] = "info"
    format: Annotated[Literal["json", "text"], key("One JSON object per line, or text for people")] = "json"


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
        """All sections."""
        return [getattr(self, name) for name in self.__struct_fields__]

    def options(self, of: RoleKind[O, Any]) -> O:
        """The section of a role, given its descriptor."""
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
        why = "a power of two; later the number in the registry applies"
        fields.append((f"{role}_partitions", Annotated[int, key(text, why, ge=1, le=256)], 1))
    made = msgspec.defstruct("Serve", fields, bases=(Serve,), frozen=True, forbid_unknown_fields=True, kw_only=True)
    made.__doc__ = Serve.__doc__
    return cast(type[Serve], made)


def _up() -> type[Up]:
    fields: list[tuple[str, Any, Any]] = []
    for each in kinds().values():
        if each.plural and each.partitioned:
            text = f"{each.plural.capitalize()}: PARTITIONSxREPLICAS (`2x2`) or PARTITIONS, a power of two up to 256"
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
"""The links that exist, by sender and receiver. Faults can be set for each direction separately."""

UP: Final[Mapping[str, int | str]] = {
    "registry.url": "embedded",
    **{name: value for system in systems.named().values() for name, value in system.presets.items()},
}
"""The presets of `muster up`: all nodes are on one machine, restarts must be noticed within a second, nodes may come
and go."""
