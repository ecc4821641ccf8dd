"""Presence as real processes: writers, readers, Redis; what readers tell is what gateways have, or nothing."""

import shutil
from pathlib import Path

import pytest

from tests.presence.rig import Rig

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")


async def test_every_site_tells_where_users_are(tmp_path: Path) -> None:
    async with Rig(tmp_path, writers=(1, 2)) as rig:
        rig.gateways[1].online([7, 8])
        rig.gateways[2].online([8], "laptop")
        await rig.right([7, 8, 9])
        found = await rig.asking.who([9, 7, 8])
        assert [user.user for user in found.users] == [9, 7, 8], "in the order of the question"
        assert [len(user.devices) for user in found.users] == [0, 1, 2]
        assert found.users[0].last_seen_ms is None
        rig.gateways[1].offline([7])
        await rig.right([7, 8, 9])
        stats = await rig.stats()
        assert set(stats) == {(1, 0), (2, 0), (2, 1)}
        assert all(not each.why and each.writer and each.writer.fulls == 0 for each in stats.values())
