"""The system of presence: online proxies, writers with their stores, readers, and unicast services."""

from collections.abc import Mapping
from typing import Any, Final

from muster_server.plane.kind import Action, Around, System
from muster_server.systems.presence import redis_server
from muster_server.systems.presence.options import Presence, Users, shards
from muster_server.systems.presence.roles.proxy import PROXY
from muster_server.systems.presence.roles.reader import READER
from muster_server.systems.presence.roles.unicast import UNICAST
from muster_server.systems.presence.roles.writer import WRITER


def told(around: Around) -> dict[str, Any]:
    """The part of the configuration that the routes need."""
    presence = around.section("presence")
    return {"sites": presence.sites, "shards": shards(presence), "not_online": presence.not_online}


SYSTEM: Final = System(
    name="presence",
    title="Presence and unicast",
    about="who is online where; reach one user on every device",
    protocols=("UDP",),
    kinds=(WRITER, PROXY, READER, UNICAST),
    sections={"presence": Presence, "users": Mapping[str, Users]},
    programs=redis_server.PROGRAMS,
    tour=(
        'muster sub demo --token "$(muster token 42 --device phone)" >/dev/null &',
        "until muster presence who 42 | grep online; do sleep 0.2; done",
        "echo hello | muster send 42",
    ),
    commands="muster_server.systems.presence.cli.words:add",
    load="muster_server.systems.presence.load",
    load_word="muster_server.systems.presence.cli.load:add",
    size="muster_server.systems.presence.size",
    check="muster_server.systems.presence.check:wrong",
    actions=(
        Action("presence", "see where these users are online; a user by `watch` in its cap", word="watch"),
        Action("status", "set the status of these users; a user's own with any token of it"),
        Action("unicast", "send messages to these users"),
        Action("end", "end the sessions of these users"),
    ),
    stores="muster_server.systems.presence.stores:stores",
    undelivered="muster_server.systems.presence.handing:hands_on",
    calls={"muster.status": "muster_server.systems.presence.calls:status"},
    http="muster_server.systems.presence.http.routes",
    http_settings="muster_server.systems.presence.system:told",
)
