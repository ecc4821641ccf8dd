"""The system of likes: one role, which speaks Redis's protocol."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from muster_server.plane.kind import Action, Around, Pods, RoleKind, System, numbers
from muster_server.systems.likes.options import LikesOptions, LikesSettings, groups, settle

MISSING: Final = "likes.redis needs the library of Redis; to mend: pip install 'muster-server[likes]'"
MISSING_KAFKA: Final = "likes.log needs the library of Kafka; to mend: pip install 'muster-server[kafka]'"


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why it cannot run; None: nothing is missing."""
    kinds = [kind for group in groups(section("likes").one_of) for kind in group]
    if wrong := sorted({kind for kind in kinds if kind == "rank" or kinds.count(kind) > 1}):
        return f"likes.one_of: {', '.join(wrong)}: each kind is in one group, once, and rank is no kind"
    if section("likes").log and find_spec("confluent_kafka") is None:
        return MISSING_KAFKA
    return MISSING if section("likes").redis and find_spec("redis") is None else None


def alone(settings: LikesSettings) -> str | None:
    """Why no second node can serve beside the first."""
    if settings.partitions > 1:
        return None
    return (
        "likes have one partition here, and one node serves it; to mend: start likes with likes.partitions = 16 in an "
        "empty folder"
    )


LIKES: Final = RoleKind(
    name="likes",
    process="face",
    numbers=numbers(2),
    about="keeps likes, counts and rankings, for any Redis client",
    options=LikesOptions,
    settings=LikesSettings,
    settle=settle,
    build="muster_server.systems.likes.node:build",
    secrets=frozenset({"token"}),
    registers="serving",
    plural="likes",
    count_why="more than one share the items as a Redis Cluster",
    scheme="redis",
    ends=8,
    row=50,
    pods=Pods(port=7379, replicas=1, memory="512Mi", memory_max="4Gi", disk="16Gi"),
    reloads={"likes.users_file": "users_file"},
    received="muster_likes_commands_total",
    carried="muster_likes_commands_total",
    check=lacks,
    alone=alone,
)


def told(around: Around) -> dict[str, Any]:
    """The credentials of a node that the routes need."""
    options: LikesOptions = around.section("likes")
    return {
        "users_file": around.absolute(options.users_file),
        "tls_cert_file": around.absolute(options.tls_cert_file),
    }


SYSTEM: Final = System(
    name="likes",
    title="Likes",
    about="counts and rankings, for any Redis client",
    protocols=("Redis",),
    kinds=(LIKES,),
    tour=("muster like song:7 1", "muster like song:7 2", "muster likes show song:7"),
    commands="muster_server.systems.likes.cli.words:add",
    load="muster_server.systems.likes.load",
    load_word="muster_server.systems.likes.cli.load:add",
    size="muster_server.systems.likes.size",
    check="muster_server.systems.likes.check:wrong",
    doctor="muster_server.systems.likes.doctor:examined",
    stores="muster_server.systems.likes.stores:stores",
    actions=(
        Action("like", "like these items for users, and take likes back"),
        Action("likes", "read counts, likers and ranks of these items"),
        Action("leaderboard", "set, raise and remove scores of these leaderboards"),
        Action("leaderboards", "read scores and ranks of these leaderboards"),
        Action("erase", "erase these users from likes and leaderboards"),
        Action("import", "move bitmaps of a Redis into likes: `import:*`"),
    ),
    http="muster_server.systems.likes.http.routes",
    http_settings="muster_server.systems.likes.system:told",
)
