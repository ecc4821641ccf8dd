"""The state of shards and users, whole and as JSON. Knows no request and no terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from muster_server.systems.presence.questions import ShardStats, User
from muster_server.systems.presence.status import Status


def described(shard: ShardStats) -> dict[str, Any]:
    """The document of one shard, for the command and for HTTP."""
    writer = shard.writer
    told: dict[str, Any] = {
        "site": shard.site,
        "shard": shard.shard,
        "shards": shard.shards,
        "serving": not shard.why,
        "why": shard.why,
        "age_ms": shard.age_ms,
        "users": shard.users,
    }
    if writer is not None:
        told |= {
            "writer": writer.node,
            "epoch": writer.epoch,
            "devices": writer.online,
            "gateways": [
                {
                    "gateway": each.gateway,
                    "epoch": each.epoch,
                    "followed": each.followed,
                    "applied": each.complete,
                    "lag": each.highest - each.complete,
                    "missing": each.missing,
                }
                for each in writer.gateways
            ],
            "asks": writer.asks,
            "fulls": writer.fulls,
            "asked": writer.asked,
            "fulls_asked": writer.fulls_asked,
            "unpublished": writer.unpublished,
        }
    if shard.copy is not None:
        told["copy"] = {
            "answers": not shard.copy.why,
            "why": shard.copy.why,
            "users": shard.copy.users,
            "bytes": shard.copy.bytes,
            "loads": shard.copy.loads,
        }
    return told


def unseen(user: User, status: Status) -> User:
    """An invisible user as others see it: offline since it is invisible, or longer."""
    seen = user.last_seen_ms
    left = status.at if user.devices or seen is None or seen > status.at else seen
    return User(user.user, (), left)


def whole(shards: Sequence[ShardStats], counts: Mapping[int, int]) -> list[ShardStats]:
    """Add a line for each shard of a site whose reader does not answer. `counts`: shards by site."""
    told = {each.site for each in shards}
    silent = [
        ShardStats(site, count, shard, "no reader of this site answers", None, None)
        for site, count in counts.items()
        for shard in range(count)
        if site not in told
    ]
    return sorted([*shards, *silent], key=lambda each: (each.site, each.shards, each.shard))
