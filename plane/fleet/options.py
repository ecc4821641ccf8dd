"""The keys of a fleet, the settings of its nodes, and how the second follow from the first."""

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from plane.fleet import broker, keeper
from plane.kind import Around
from plane.options import EdgeAddress, EdgeOptions, Section, key
from plane.spec import SpecError

MQTT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
SQLITE: Final = "sqlite"
NONE: Final = "none"


class Fleet(Section, frozen=True):
    """Clients over MQTT, and the runs that they are asked for."""

    mqtt: Annotated[
        str,
        key(
            "MQTT broker, `mqtt://USER@HOST:PORT` or `mqtts://…`; its user may read all `fleet/1/+/up/+` and write all "
            "`fleet/1/+/down/+`",
            "empty: `muster up` runs mosquitto",
        ),
    ] = ""
    password_file: Annotated[
        str, key("File with that user's password, one line", "the configuration itself holds no secret")
    ] = ""
    redis: Annotated[
        str,
        key(
            "Where sessions and counts of comings and goings are kept: `redis://HOST:PORT/DB`, `rediss://…`, or `none`",
            "empty: `muster up` runs redis-server; nodes of `muster serve` keep none",
        ),
    ] = ""
    redis_password_file: Annotated[str, key("File with its password, one line")] = ""
    bind: Annotated[EdgeAddress, key("Address of that mosquitto for clients")] = "127.0.0.1:0"
    beat_ms: Annotated[
        int,
        key("How often a client says that it is there", "20,000 clients: 667 a second", "ms", ge=100, le=600_000),
    ] = 30_000
    lease_ms: Annotated[
        int, key("Silence after which a client counts as gone", "three beats", "ms", ge=300, le=3_600_000)
    ] = 90_000
    hint_ms: Annotated[
        int,
        key("The same once its connection ended", "a broker's restart takes nobody", "ms", ge=100, le=3_600_000),
    ] = 20_000
    forget_h: Annotated[
        int, key("Absence after which a client's name is forgotten", "a weekend and more", "h", ge=1, le=8_760)
    ] = 168
    receipt_ms: Annotated[
        int, key("Time for a client to say that it has an order", "then another one is asked", "ms", ge=50, le=600_000)
    ] = 5_000
    result_ms: Annotated[int, key("Time for its result, from the order on", "", "ms", ge=50, le=3_600_000)] = 30_000
    in_flight_max: Annotated[
        int, key("Most runs that a client has at once", "a measurement beside another one is disturbed", ge=1, le=255)
    ] = 1
    keep_h: Annotated[
        int, key("How long runs and results are kept", "a month; a run of 100 has about 12 kB", "h", ge=1, le=87_600)
    ] = 720


class Index(EdgeOptions, frozen=True):
    """Knows a fleet's clients and picks among them. `bind` is for schedulers and commands, which prove the cluster's
    secret; nothing there is encrypted."""


class Scheduler(EdgeOptions, frozen=True):
    """Runs a fleet's tasks. `bind` is for the HTTP face and commands, as that of an index node."""


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of an index node or a scheduler."""

    host: str
    port: int
    tls: bool
    user: str
    """Empty: each node has one of its own, of the broker beside it."""
    password_file: str
    folder: str
    redis: str
    """Empty: nothing is kept there."""
    redis_password_file: str
    database: str
    database_password_file: str
    instance: str
    fleet: Fleet


def settle(options: Section, around: Around) -> FleetSettings:
    """Made from the configuration. Raises `SpecError`."""
    fleet: Fleet = around.section("fleet")
    database: Any = around.section("database")
    if fleet.mqtt:
        host, port, tls, user = url(fleet.mqtt)
        password_file = around.absolute(fleet.password_file)
    else:
        host, port = around.programs.get(broker.NAME, ("", 0))
        tls, user, password_file = False, "", str(around.folder / broker.NAME / broker.SECRET)
    redis, redis_password_file = fleet.redis, around.absolute(fleet.redis_password_file)
    if not redis and (beside := around.programs.get(keeper.NAME)):
        redis = f"redis://{beside[0]}:{beside[1]}/0"
        redis_password_file = str(around.folder / keeper.NAME / keeper.SECRET)
    own = f"sqlite:///{around.folder / 'fleet.db'}"
    return FleetSettings(
        host=host,
        port=port,
        tls=tls,
        user=user,
        password_file=password_file,
        folder=str(around.folder),
        redis="" if redis == NONE else redis,
        redis_password_file=redis_password_file,
        database=own if database.url in {"", SQLITE} else database.url,
        database_password_file=around.absolute(database.password_file),
        instance=around.instance,
        fleet=fleet,
    )


def url(text: str) -> tuple[str, int, bool, str]:
    """Host, port, whether TLS, and user of a broker's URL. Raises `SpecError`."""
    parts = urlsplit(text)
    try:
        port = parts.port or MQTT_PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    wrong = parts.path.strip("/") or parts.query or parts.fragment or parts.password
    if parts.scheme not in MQTT_PORTS or not parts.hostname or not port or wrong:
        raise SpecError(f"fleet.mqtt: {parts.scheme}://… is not mqtt://USER@HOST:PORT nor mqtts://USER@HOST:PORT")
    return parts.hostname, port, parts.scheme == "mqtts", unquote(parts.username or "")


def password(file: str) -> str:
    """The password in a file. Raises `SpecError`."""
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {error}") from None
