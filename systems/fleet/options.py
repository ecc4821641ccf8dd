"""The keys of a fleet, the settings of its nodes, and the function that makes settings from keys."""

from typing import Annotated, Any, Final

import msgspec

from muster.brokers import Brokers, brokers, place
from muster.redis.where import PORT, SENTINEL_PORT, Where, parsed
from muster_server.plane.kind import Around
from muster_server.plane.options import FaceAddress, FaceOptions, Section, key
from muster_server.plane.redis import server
from muster_server.plane.spec import SpecError
from muster_server.systems.fleet import broker, keeper

SQLITE: Final = "sqlite"
NONE: Final = "none"


class Fleet(Section, frozen=True):
    """Clients over MQTT, and their runs."""

    mqtt: Annotated[
        str,
        key(
            "MQTT brokers of one cluster, `mqtt://USER@HOST:PORT,HOST:PORT` or `mqtts://…`; the user needs read access to "
            "all `fleet/1/+/up/+` and write access to all `fleet/1/+/down/+`",
            "empty: `muster up` runs mosquitto",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with that user's password, one line", "the configuration itself contains no secret")
    ] = ""
    redis: Annotated[
        str,
        key(
            "Store of sessions and of connect and disconnect counts: `redis://HOST:PORT/DB`, "
            "`redis+sentinel://HOST:PORT,…/MASTER`, `redis+cluster://HOST:PORT,…`, each also with `rediss`, or `none`",
            "empty: `muster up` runs redis-server; nodes of `muster serve` use none",
        ),
    ] = ""
    redis_password_file: Annotated[str, key("File with the password of that Redis, one line")] = ""
    bind: Annotated[FaceAddress, key("Address of that mosquitto for clients")] = "127.0.0.1:0"
    tls_bind: Annotated[
        str,
        key(
            "Another address of that mosquitto, over TLS, for clients with certificates of `muster fleet cert`: `host:port`",
            "empty: clients have passwords alone",
        ),
    ] = ""
    tls_names: Annotated[
        tuple[str, ...],
        key("Names and addresses by which clients reach it, for its certificate", "the machine's own are always in it"),
    ] = ()
    beat_ms: Annotated[
        int,
        key("Interval of a client's heartbeats", "20,000 clients: 667 a second", "ms", ge=100, le=600_000),
    ] = 30_000
    lease_ms: Annotated[
        int, key("Silence after which a client counts as offline", "three beats", "ms", ge=300, le=3_600_000)
    ] = 90_000
    hint_ms: Annotated[
        int,
        key(
            "The same after the client's connection has ended",
            "long enough that a broker's restart loses no client",
            "ms",
            ge=100,
            le=3_600_000,
        ),
    ] = 20_000
    forget_h: Annotated[
        int, key("Absence after which a client's name is forgotten", "longer than a weekend", "h", ge=1, le=8_760)
    ] = 168
    receipt_ms: Annotated[
        int, key("Time for a client to confirm an order", "after it another client is asked", "ms", ge=50, le=600_000)
    ] = 5_000
    result_ms: Annotated[
        int, key("Time for a client's result, counted from the order", "", "ms", ge=50, le=3_600_000)
    ] = 30_000
    in_flight_max: Annotated[
        int, key("Limit of a client's concurrent runs", "concurrent measurements disturb each other", ge=1, le=255)
    ] = 1
    clock_wait_s: Annotated[
        int,
        key(
            "Longest pause of all tasks after the clock was ahead; then tasks follow the clock again, as after "
            "`muster fleet heal`",
            "a clock that is corrected twice does not run a task twice",
            "s",
            ge=60,
            le=86_400,
        ),
    ] = 600
    keep_h: Annotated[
        int, key("How long runs and results are kept", "a month; a run of 100 takes about 12 kB", "h", ge=1, le=87_600)
    ] = 720
    minutes_keep_h: Annotated[
        int,
        key(
            "How long roll-ups of results by minute and mark are kept",
            "a year; a row takes about 150 bytes",
            "h",
            ge=1,
            le=87_600,
        ),
    ] = 8_760
    results_topic: Annotated[
        str,
        key(
            "Topic of delayed messages that gets the results of each run that has ended",
            "empty: they stay in the database alone",
            pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        ),
    ] = ""


class Index(FaceOptions, frozen=True):
    """Knows a fleet's clients and picks among them. `bind` is for schedulers and commands, which prove the cluster's
    secret; the connections are not encrypted."""


class Scheduler(FaceOptions, frozen=True):
    """Runs a fleet's tasks. `bind` is for the HTTP face and commands, as the one of an index node."""


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of an index node or a scheduler."""

    brokers: tuple[tuple[str, int], ...]
    """Addresses of the members of one cluster."""
    tls: bool
    user: str
    """Empty: each node has a user of its own, at the broker beside it."""
    password_file: str
    folder: str
    redis: str
    """Empty: sessions are not stored."""
    redis_password_file: str
    database: str
    database_password_file: str
    instance: str
    fleet: Fleet


def settle(options: Section, around: Around) -> FleetSettings:
    """Make the settings from the configuration. Raises `SpecError`."""
    fleet: Fleet = around.section("fleet")
    database: Any = around.section("database")
    if fleet.mqtt:
        told = url(fleet.mqtt)
        password_file = around.absolute(fleet.password_file)
    else:
        beside = around.programs.get(broker.NAME)
        told = Brokers(() if beside is None else (beside,), False, "")
        password_file = str(around.folder / broker.NAME / broker.SECRET)
    redis, redis_password_file = fleet.redis, around.absolute(fleet.redis_password_file)
    if not redis and (own_redis := around.programs.get(keeper.NAME)):
        redis = f"redis://{own_redis[0]}:{own_redis[1]}/0"
        redis_password_file = str(around.folder / keeper.NAME / server.SECRET)
    own = f"sqlite:///{around.folder / 'fleet.db'}"
    return FleetSettings(
        brokers=told.places,
        tls=told.tls,
        user=told.user,
        password_file=password_file,
        folder=str(around.folder),
        redis="" if redis == NONE else redis,
        redis_password_file=redis_password_file,
        database=own if database.url in {"", SQLITE} else database.url,
        database_password_file=around.absolute(database.password_file),
        instance=around.instance,
        fleet=fleet,
    )


def url(text: str) -> Brokers:
    """Parse the brokers' URL, which must name the plane's user. Raises `SpecError`."""
    try:
        return brokers(text)
    except ValueError as error:
        raise SpecError(f"fleet.mqtt: {error}") from None


def redis_url(text: str) -> Where:
    """Parse the URL of a Redis. Raises `SpecError`, whose text never shows a password."""
    scheme, _, rest = text.partition("://")
    way, _, kind = scheme.partition("+")
    hosts, _, path = rest.partition("/")
    user, _, hosts = hosts.rpartition("@")
    words = [each for each in path.split("/") if each]
    master = words.pop(0) if kind == "sentinel" and words else ""
    database = words.pop(0) if kind != "cluster" and words else "0"
    places = [place(each, SENTINEL_PORT if kind == "sentinel" else PORT) for each in hosts.split(",")]
    known = way in {"redis", "rediss"} and kind in {"", "sentinel", "cluster"} and (kind != "" or len(places) == 1)
    if ":" in user:
        raise SpecError("fleet.redis: the URL must not contain a password; put it into fleet.redis_password_file")
    if not known or None in places or words or not database.isdigit() or (kind == "sentinel") != bool(master):
        shown = f"{scheme}://…" if rest else "this"
        raise SpecError(
            f"fleet.redis: invalid URL {shown} (expected redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,…/MASTER, "
            "redis+cluster://HOST:PORT,…, one of these with rediss, or none)"
        )
    return parsed(text)
