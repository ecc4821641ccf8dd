"""The change feed as a consumer has it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_server.plane.log import connect


async def changes(folder: Path, site: int, shards: int = 1, url: str = "") -> list[dict[str, Any]]:
    """All changes in the logs of a site. Takes them over from its writers, which must be gone."""
    logs = connect(url, folder / "presence", partitions=shards)
    found: list[dict[str, Any]] = []
    for shard in range(shards):
        log = await logs.open(f"presence-site{site}-of{shards}", shard)
        found += [json.loads(record) async for _, batch in log.read(0) for record in batch.records()]
        await log.close()
    await logs.close()
    return found


def followed(told: Sequence[dict[str, Any]]) -> set[tuple[int, str]]:
    """The devices that a consumer has as online in the end: it drops what it had, by its id. Each change is one."""
    seen: set[str] = set()
    online: set[tuple[int, str]] = set()
    for each in told:
        if each["id"] in seen:
            continue
        seen.add(each["id"])
        device = int(each["user"]), each["device"]
        assert (each["state"] == "online") == (device not in online), f"{each} changes nothing"
        (online.add if each["state"] == "online" else online.remove)(device)
    return online
