"""The keys of presence, the settings of its nodes, and the function that makes settings from keys."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.options import FaceOptions, MachineOptions, Section, key
from muster_server.plane.redis import server
from muster_server.plane.spec import SpecError

SITES_MAX: Final = 4
SHARDS_MAX: Final = 64
"""Limit of the shards of one site."""
_HOST: Final = r"[^:@/,\s]+:\d+"
_USER: Final = r"(?:[^:@/,\s]+@)?"
STORE: Final = (
    rf"rediss?://{_USER}{_HOST}(?:/\d+)?"
    rf"|rediss?\+sentinel://{_USER}{_HOST}(?:,{_HOST})*/[\w.-]+(?:/\d+)?"
    rf"|rediss?\+cluster://{_USER}{_HOST}(?:,{_HOST})*"
)
BETWEEN_SITES: Final = r",\s*(?=rediss?(?:\+\w+)?://)"
"""The separator between URLs of two sites; other commas separate the hosts of one URL."""
PROGRAM: Final = "presence-redis-{}"
"""Name of the redis-server of a site beside the nodes of `muster up`."""


ELSEWHERE: Final = r"((topic|inbox):[A-Za-z0-9][A-Za-z0-9._-]{0,63})?"
"""Pattern of where messages to users who are not online go: a topic, or a kind of entries of inboxes; empty: nowhere."""
Devices = Literal["many", "one per kind", "one"]


TO: Final = r"^(?:(?:\*|(?:0|[1-9][0-9]{0,19})\*?)(?:,(?!$)|$))*$"
To = Annotated[str, key("", pattern=TO)]
"""Pattern of users to whom others may send."""


class Users(Section, frozen=True):
    """A namespace of users: a range of their numbers."""

    first: Annotated[int, key("The first user", "", ge=0, le=(1 << 63) - 1)] = 0
    last: Annotated[int, key("The last user", "", ge=0, le=(1 << 63) - 1)] = (1 << 63) - 1
    devices: Annotated[
        Devices,
        key(
            "Limit of a user's devices at once: `many`, `one per kind` (`phone` of `phone:3f`), or `one`; a newer session"
            " ends older ones",
            "absent: `presence.devices`",
        ),
    ] = "many"
    send: Annotated[To | None, key("The same as `presence.send`, for these users", "absent: `presence.send`")] = None


class Presence(Section, frozen=True):
    """Which devices of which user are online at which gateway; every site has the same view."""

    sites: Annotated[
        int,
        key("Number of sites; each has the whole view, in a store of its own", "one site may fail", ge=1, le=SITES_MAX),
    ] = 2
    writers: Annotated[
        str,
        key("Shards of each site, separated by commas; the last number applies to all further sites", "users spread"),
    ] = "1"
    redis: Annotated[
        str,
        key(
            "Stores: `redis://[USER@]HOST:PORT/DB`, `rediss://…`, `redis+sentinel://HOST:PORT,HOST:PORT/MASTER`, "
            "`redis+cluster://HOST:PORT,HOST:PORT`; separate those of one site's shards by blanks, and sites by commas; a "
            "single one is used by all sites",
            "empty: `muster up` runs a redis-server for each site",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with the password of these stores, one line", "the configuration itself contains no secret")
    ] = ""
    log: Annotated[
        str,
        key(
            "URL of the change feed: `kafka://HOST:PORT[,HOST:PORT…][/PREFIX]`",
            "empty: a log in the folder of each writer",
        ),
    ] = ""
    site: Annotated[
        int,
        key("Site of a node of `muster serve`", "on `muster up` it follows from the node's index", ge=1, le=SITES_MAX),
    ] = 1
    devices: Annotated[
        Devices,
        key(
            "Limit of a user's devices at once, for users outside any `[users.NAME]`: `many`, `one per kind`, or `one`; a "
            "newer session ends older ones",
            "no session is ended",
        ),
    ] = "many"
    send: Annotated[
        To,
        key(
            "Users to whom a client may send if its token has no `send`, separated by commas: numbers, their first digits"
            " with `*`, or `*` for all",
            "empty: none; a token names the users, or a backend sends with an API key",
        ),
    ] = ""
    not_online: Annotated[
        str,
        key(
            "Where a message sent over HTTP, or by a user, goes for users of whom no device has it: `topic:NAME`, whose"
            " callback is for example a push gateway, or `inbox:KIND`, entries of this kind",
            "empty: nowhere; a request over HTTP may name another place",
            pattern=rf"^{ELSEWHERE}$",
        ),
    ] = ""
    window_ms: Annotated[
        int,
        key(
            "Sessions that begin or end at a gateway within this time are reported in one packet",
            "a busy gateway sends 20 packets per second",
            "ms",
            ge=1,
            le=1_000,
        ),
    ] = 50
    grace_ms: Annotated[
        int,
        key("Time for a device to return before it is reported as offline", "", "ms", ge=0, le=600_000),
    ] = 5_000
    lease_ms: Annotated[
        int,
        key(
            "Silence after which a gateway's users count as lost",
            "ten heartbeats of the gateway",
            "ms",
            ge=1_500,
            le=600_000,
        ),
    ] = 10_000
    fresh_ms: Annotated[
        int,
        key("Age of a shard's keepalive from which on readers refuse the shard", "three keepalives", "ms", ge=500),
    ] = 3_000
    near: Annotated[
        bool,
        key(
            "Readers keep a copy of each shard of their site in memory, and answer from it while it is fresh; off: each"
            " look-up goes to the store, and writers leave nothing there for copies",
            "a look-up takes no trip; up to 100 B in each reader for each user who is online",
        ),
    ] = True


class OnlineProxy(MachineOptions, frozen=True):
    """Passes gateways' packets to every writer of every site. `bind` is for links: no client connects to it."""


class OnlineWriter(MachineOptions, frozen=True):
    """Keeps the store of one shard of one site up to date. `bind` is for links: no client connects to it."""

    shard: Annotated[
        int,
        key(
            "Shard of a writer of `muster serve`",
            "on `muster up` it follows from the node's index",
            ge=0,
            lt=SHARDS_MAX,
        ),
    ] = 0


class OnlineReader(FaceOptions, frozen=True):
    """Looks up users in its own site. `bind` is for the HTTP face, other roles and commands, which prove the cluster's
    secret; the connections are not encrypted."""


class Unicast(MachineOptions, frozen=True):
    """Passes messages to the devices of one user. `bind` is for links."""


class PresenceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of any role of presence."""

    writers: list[int]
    """Number of shards of each site."""
    redis: list[list[str]]
    """Stores of each site; its shards use them in turn."""
    password_files: list[str]
    """Password file of each site's stores; empty: no password."""
    log: str
    folder: str
    site: int
    """The site of a node of `muster serve`."""
    shard: int
    """The shard of a writer of `muster serve`."""
    instance: str
    grace_ms: int
    lease_ms: int
    fresh_ms: int
    near: bool = True
    """Readers have copies of their shards."""
    devices: Devices = "many"
    """Policy for a user's devices."""
    users: list[tuple[int, int, Devices]] = []
    """The same for ranges of users (first, last)."""


def shards(presence: Presence) -> list[int]:
    """The number of shards of each site. Raises `ValueError`."""
    parts = [each.strip() for each in presence.writers.split(",")]
    if not all(each.isascii() and each.isdigit() and 1 <= int(each) <= SHARDS_MAX for each in parts):
        raise ValueError(
            f"presence.writers: invalid value {presence.writers!r} (expected numbers from 1 to {SHARDS_MAX}, for "
            "example 2 or 2,3)"
        )
    if len(parts) > presence.sites:
        raise ValueError(f"presence.writers: {len(parts)} numbers, but only {presence.sites} sites")
    counts = [int(each) for each in parts]
    return counts + counts[-1:] * (presence.sites - len(counts))


def stores(presence: Presence) -> list[list[str]]:
    """The stores of each site; empty: none is named. Raises `ValueError`."""
    if not presence.redis:
        return []
    sites = [site.split() for site in re.split(BETWEEN_SITES, presence.redis.strip())]
    if len(sites) == 1:
        sites *= presence.sites
    if len(sites) != presence.sites:
        raise ValueError(f"presence.redis: stores of {len(sites)} sites, but presence.sites = {presence.sites}")
    for url in (each for site in sites for each in site):
        if not re.fullmatch(STORE, url):
            raise ValueError(
                f"presence.redis: invalid URL {url!r} (expected redis://[USER@]HOST:PORT[/DB], "
                "redis+sentinel://HOST:PORT,…/MASTER, redis+cluster://HOST:PORT,…, or one of these with rediss; "
                "put a password into presence.password_file)"
            )
    return sites


def settle(options: Section, around: Around) -> PresenceSettings:
    """Make the settings from the configuration. Raises `SpecError`."""
    presence: Presence = around.section("presence")
    try:
        counts, named = shards(presence), stores(presence)
    except ValueError as error:
        raise SpecError(str(error)) from None
    files = [around.absolute(presence.password_file)] * presence.sites
    if not named:
        beside = [PROGRAM.format(site) for site in range(1, presence.sites + 1)]
        addresses = [around.programs.get(name) for name in beside]
        named = [[] if each is None else [f"redis://{each[0]}:{each[1]}/0"] for each in addresses]
        files = [str(around.folder / name / server.SECRET) for name in beside]
    return PresenceSettings(
        writers=counts,
        redis=named,
        password_files=files,
        log=presence.log,
        folder=str(around.folder),
        site=presence.site,
        shard=options.shard if isinstance(options, OnlineWriter) else 0,
        instance=around.instance,
        grace_ms=presence.grace_ms,
        lease_ms=presence.lease_ms,
        fresh_ms=presence.fresh_ms,
        near=presence.near,
        devices=presence.devices,
        users=[(each.first, each.last, each.devices) for each in around.section("users").values()],
    )


def per_site(section: Any) -> int:
    """One node for each site."""
    count: int = section("presence").sites
    return count


def per_shard(section: Any) -> int:
    """One node for each shard of each site; one node if the numbers are wrong, which `check` reports."""
    try:
        return sum(shards(section("presence")))
    except ValueError:
        return 1
