"""The keys of presence, the settings of its nodes, and how the second follow from the first."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from muster_server.plane.kind import Around
from muster_server.plane.options import FaceOptions, MachineOptions, Section, key
from muster_server.plane.redis import server
from muster_server.plane.spec import SpecError

SITES_MAX: Final = 4
SHARDS_MAX: Final = 64
"""Of one site."""
_HOST: Final = r"[^:@/,\s]+:\d+"
_USER: Final = r"(?:[^:@/,\s]+@)?"
STORE: Final = (
    rf"rediss?://{_USER}{_HOST}(?:/\d+)?"
    rf"|rediss?\+sentinel://{_USER}{_HOST}(?:,{_HOST})*/[\w.-]+(?:/\d+)?"
    rf"|rediss?\+cluster://{_USER}{_HOST}(?:,{_HOST})*"
)
BETWEEN_SITES: Final = r",\s*(?=rediss?(?:\+\w+)?://)"
"""A comma before another URL; other commas stand between the hosts of one."""
PROGRAM: Final = "presence-redis-{}"
"""The redis-server of a site beside the nodes of `muster up`."""


Devices = Literal["many", "one per kind", "one"]


TO: Final = r"^(?:(?:\*|(?:0|[1-9][0-9]{0,19})\*?)(?:,(?!$)|$))*$"
To = Annotated[str, key("", pattern=TO)]
"""Users to whom others may send."""


class Users(Section, frozen=True):
    """A namespace of users: a range of their numbers."""

    first: Annotated[int, key("The first user", "", ge=0, le=(1 << 63) - 1)] = 0
    last: Annotated[int, key("The last user", "", ge=0, le=(1 << 63) - 1)] = (1 << 63) - 1
    devices: Annotated[
        Devices,
        key(
            "Devices of a user at once: `many`, `one per kind` (`phone` of `phone:3f`), or `one`; a newer session ends older"
            " ones",
            "as `presence.devices`",
        ),
    ] = "many"
    send: Annotated[To | None, key("The same as `presence.send` for these users", "absent: as for all users")] = None


class Presence(Section, frozen=True):
    """Who is online where, the same at every site."""

    sites: Annotated[
        int, key("Sites; each has the whole view, in a store of its own", "one may be lost", ge=1, le=SITES_MAX)
    ] = 2
    writers: Annotated[
        str,
        key("Shards of each site, separated by commas; the last number is that of all further sites", "users spread"),
    ] = "1"
    redis: Annotated[
        str,
        key(
            "Stores: `redis://[USER@]HOST:PORT/DB`, `rediss://…`, `redis+sentinel://HOST:PORT,HOST:PORT/MASTER`, "
            "`redis+cluster://HOST:PORT,HOST:PORT`; blanks between those of one site's shards, commas between sites; one "
            "alone is that of all sites",
            "empty: `muster up` runs a redis-server for each site",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with the password of these stores, one line", "the configuration itself holds no secret")
    ] = ""
    log: Annotated[
        str,
        key("The change feed: `kafka://HOST:PORT[,HOST:PORT…][/PREFIX]`", "empty: a log in the folder of each writer"),
    ] = ""
    site: Annotated[
        int, key("Site of a node of `muster serve`", "on `muster up` it follows from its place", ge=1, le=SITES_MAX)
    ] = 1
    devices: Annotated[
        Devices,
        key(
            "Devices of a user at once, for users of no `[users.NAME]`: `many`, `one per kind`, or `one`; a newer session "
            "ends older ones",
            "nobody is sent away",
        ),
    ] = "many"
    send: Annotated[
        To,
        key(
            "Users to whom a client may send where its token has no `send`, with commas between: numbers, their first digits"
            " with `*`, or `*` for all",
            "empty: nobody; a token names the users, or a backend sends with an API key",
        ),
    ] = ""
    window_ms: Annotated[
        int,
        key(
            "Sessions that come and go at a gateway within this time make one packet",
            "20 packets a second of a busy gateway",
            "ms",
            ge=1,
            le=1_000,
        ),
    ] = 50
    grace_ms: Annotated[
        int,
        key("Time for a device to come back before it is reported as offline", "", "ms", ge=0, le=600_000),
    ] = 5_000
    lease_ms: Annotated[
        int, key("Silence after which a gateway's users are lost", "ten of its beats", "ms", ge=1_500, le=600_000)
    ] = 10_000
    fresh_ms: Annotated[
        int,
        key("Age of a shard's keepalive from which on readers refuse the shard", "three of them", "ms", ge=500),
    ] = 3_000


class OnlineProxy(MachineOptions, frozen=True):
    """Takes gateways' packets to every writer of every site. `bind` is for links: no client connects to it."""


class OnlineWriter(MachineOptions, frozen=True):
    """Keeps one shard of one site's store true. `bind` is for links: no client connects to it."""

    shard: Annotated[
        int, key("Shard of a writer of `muster serve`", "on `muster up` it follows from its place", ge=0, lt=SHARDS_MAX)
    ] = 0


class OnlineReader(FaceOptions, frozen=True):
    """Looks up users in its own site. `bind` is for the HTTP face, other roles and commands, which prove the cluster's
    secret; nothing there is encrypted."""


class Unicast(MachineOptions, frozen=True):
    """Takes messages to the devices of one user. `bind` is for links."""


class PresenceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of any role of presence."""

    writers: list[int]
    """Shards of each site."""
    redis: list[list[str]]
    """Stores of each site; shards take them in turns."""
    password_files: list[str]
    """Of each site's stores; empty: they need none."""
    log: str
    folder: str
    site: int
    """Of a node of `muster serve`."""
    shard: int
    """The same of a writer."""
    instance: str
    grace_ms: int
    lease_ms: int
    fresh_ms: int
    devices: Devices = "many"
    """How many devices of a user may be online."""
    users: list[tuple[int, int, Devices]] = []
    """The same for ranges of users, first and last."""


def shards(presence: Presence) -> list[int]:
    """The number of shards of each site. Raises `ValueError`."""
    parts = [each.strip() for each in presence.writers.split(",")]
    if not all(each.isascii() and each.isdigit() and 1 <= int(each) <= SHARDS_MAX for each in parts):
        raise ValueError(f"presence.writers: {presence.writers!r} is not numbers from 1 to {SHARDS_MAX} (use 2 or 2,3)")
    if len(parts) > presence.sites:
        raise ValueError(f"presence.writers: {len(parts)} numbers for {presence.sites} sites")
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
        raise ValueError(f"presence.redis: stores of {len(sites)} sites, and presence.sites = {presence.sites}")
    for url in (each for site in sites for each in site):
        if not re.fullmatch(STORE, url):
            raise ValueError(
                f"presence.redis: {url!r} is not redis://[USER@]HOST:PORT[/DB], redis+sentinel://HOST:PORT,…/MASTER, "
                "redis+cluster://HOST:PORT,…, nor one of these with rediss; a password is in presence.password_file"
            )
    return sites


def settle(options: Section, around: Around) -> PresenceSettings:
    """Made from the configuration. Raises `SpecError`."""
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
        devices=presence.devices,
        users=[(each.first, each.last, each.devices) for each in around.section("users").values()],
    )


def per_site(section: Any) -> int:
    """One node for each site."""
    count: int = section("presence").sites
    return count


def per_shard(section: Any) -> int:
    """One node for each shard of each site; one where the numbers are wrong, which `check` says."""
    try:
        return sum(shards(section("presence")))
    except ValueError:
        return 1
