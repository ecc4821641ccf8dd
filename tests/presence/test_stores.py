"""`muster check` and `muster repair` of the change feeds in files."""

from pathlib import Path

import pytest

from muster_server.plane.log import Batch
from muster_server.plane.log.embedded import EmbeddedLogs
from muster_server.plane.stores import InUse
from muster_server.systems.presence.stores import FeedStore, _folders

FEED = "presence-site1-of2"


async def written(folder: Path, shard: int = 0) -> None:
    logs = EmbeddedLogs(folder)
    log = await logs.open(FEED, shard)
    for number in range(9):
        await log.append(Batch.of([b"change %d" % number]))
    await log.close()
    await logs.close()


async def test_each_shards_log_is_a_store(tmp_path: Path) -> None:
    assert not list(_folders(tmp_path / "none"))
    await written(tmp_path)
    await written(tmp_path, 1)
    (tmp_path / "damaged-1").mkdir()
    stores = [FeedStore(each) for each in _folders(tmp_path)]
    assert [each.name for each in stores] == [f"presence, {FEED}, shard 0", f"presence, {FEED}, shard 1"]
    for store in stores:
        assert (store.check().holds, store.check().faults) == ("changes 0 to 9", [])


async def test_a_damaged_feed_is_told_and_starts_empty(tmp_path: Path) -> None:
    await written(tmp_path)
    (store,) = (FeedStore(each) for each in _folders(tmp_path))
    (segment,) = (tmp_path / FEED / "0").glob("*.segment")
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(b"change 4"))
        file.write(b"X")
    (fault,) = store.check().faults
    assert fault.file == str(segment)
    assert "are lost" in fault.text
    (done,) = store.repair(tmp_path / "aside")
    assert "the feed starts empty" in done
    assert (tmp_path / "aside" / segment.name).exists()
    assert store.check().faults == []
    assert store.repair(tmp_path / "aside") == []
    await written(tmp_path)
    assert store.check().holds == "changes 0 to 9"


async def test_a_feed_that_is_open_is_not_repaired(tmp_path: Path) -> None:
    logs = EmbeddedLogs(tmp_path)
    log = await logs.open(FEED, 0)
    (store,) = (FeedStore(each) for each in _folders(tmp_path))
    with pytest.raises(InUse):
        store.repair(tmp_path / "aside")
    await log.close()
    await logs.close()


async def test_a_feed_in_the_folder_of_another_one_is_told_and_left(tmp_path: Path) -> None:
    await written(tmp_path)
    (tmp_path / FEED / "0").rename(tmp_path / FEED / "1")
    (store,) = (FeedStore(each) for each in _folders(tmp_path))
    assert "move the folders of logs back" in store.check().faults[0].text
    with pytest.raises(OSError, match="move the folders of logs back"):
        store.repair(tmp_path / "aside")
