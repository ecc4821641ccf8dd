"""No error of a store tells where the store is, nor which user, password or file is its."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import structlog

from muster_server.plane.causes import cause, shown
from tests.ports import free_ports

if TYPE_CHECKING:
    from tests.databases import Database

USER, WORD, BASE = "s3cretuser", "s3cretword", "s3cretbase"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("postgresql://u:p@db.internal:5432/x: no answer", "***: no answer"),
        ("Connect call failed ('10.1.2.3', 5432)", "Connect call failed ***"),
        ("Connect call failed ('::1', 5432, 0, 0)", "Connect call failed ***"),
        (
            "Error 111 connecting to 10.1.2.3:6379. Connection refused.",
            "Error 111 connecting to ***. Connection refused.",
        ),
        ("Error -2 connecting to redis.internal:6379. Name", "Error -2 connecting to ***. Name"),
        (
            "Access denied for user 'u'@'10.1.2.3' (using password: YES)",
            "Access denied for user *** (using password: YES)",
        ),
        ('password authentication failed for user "u"', "password authentication failed for user ***"),
        ("Can't connect to MySQL server on 'db.internal'", "Can't connect to MySQL server on ***"),
        (
            "sasl_ssl://k.internal:9092/bootstrap: Connect to ipv4#10.1.2.3:9092 failed",
            "***: Connect to ipv4#*** failed",
        ),
        ("[fd00::1]:6379 refused, and fd00::1 too", "*** refused, and *** too"),
        ("/var/lib/muster/fleet.db: disk I/O error", "***: disk I/O error"),
        ("MOVED 3999 10.1.2.3:6381", "MOVED 3999 ***"),
        ("value too long for type character varying(64)", "value too long for type character varying(64)"),
        ("no answer in 5 s; 3/4 of them, and/or more", "no answer in 5 s; 3/4 of them, and/or more"),
        ("at 12:30 the clock went back", "at 12:30 the clock went back"),
    ],
)
def test_addresses_users_and_files_are_hidden_and_all_else_stays(text: str, said: str) -> None:
    assert shown(text) == said


def test_given_words_are_hidden_and_the_systems_own_text_stands_for_an_error() -> None:
    assert shown("FATAL: s3cretuser may not", ["s3cretuser", None, ""]) == "FATAL: *** may not"
    assert cause(ConnectionRefusedError(111, "Connect call failed ('10.1.2.3', 5432)")) == "Connection refused"
    assert cause(ValueError()) == "ValueError"


def is_clean(text: str, port: int) -> None:
    """It tells nothing of where the store is."""
    assert text
    for secret in (USER, WORD, BASE, "localhost", "127.0.0.1", "::1", "://", str(port)):
        assert secret not in text, text


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
@pytest.mark.parametrize("place", ["127.0.0.1", "localhost", "[::1]", "no-such-host.invalid"])
async def test_a_database_that_is_away_hides_where_it_is(kind: str, place: str) -> None:
    from muster_server.plane.database.url import location
    from muster_server.plane.ownership.errors import StoreError
    from muster_server.systems.fleet.database.store import SqlStore

    (port,) = free_ports(1)
    store = SqlStore(location(f"{kind}://{USER}:{WORD}@{place}:{port}/{BASE}"), "one", call_s=20)
    with pytest.raises(StoreError) as told:
        await store.lead()
    await store.close()
    is_clean(str(told.value), port)
    assert place.strip("[]") not in str(told.value)


@pytest.mark.parametrize("wrong", ["user", "base"])
async def test_a_database_that_refuses_hides_who_was_refused(served: "Database", wrong: str) -> None:
    from muster_server.plane.database.url import location
    from muster_server.plane.ownership.errors import StoreError
    from muster_server.systems.fleet.database.store import SqlStore

    parts = urlsplit(served.url)
    port = parts.port or 0
    account = f"{USER}:{WORD}" if wrong == "user" else parts.netloc.rpartition("@")[0]
    url = f"{parts.scheme}://{account}@{parts.hostname}:{port}/{BASE}"
    store = SqlStore(location(url), "one", call_s=20)
    with pytest.raises(StoreError) as told:
        await store.lead()
    await store.close()
    is_clean(str(told.value), port)


@pytest.mark.parametrize("place", ["127.0.0.1", "localhost", "no-such-host.invalid"])
async def test_a_redis_that_is_away_hides_where_it_is(place: str, tmp_path: Path) -> None:
    from muster_server._engines import LikesEngine
    from muster_server.plane.ownership.errors import Away
    from muster_server.systems.fleet.redis import Sessions
    from muster_server.systems.fleet.sessions import Waiting
    from muster_server.systems.likes.mirror import Mirror, Target
    from muster_server.systems.messages.redis import connect
    from muster_server.systems.presence.store import Shard

    (port,) = free_ports(1)
    url = f"redis://{USER}@{place}:{port}/0"
    texts: list[str] = []
    sessions = Sessions(url, WORD, "x", 1, Waiting(), list, structlog.get_logger())
    with pytest.raises(Away) as kept:
        await sessions.minutes(1, 2)
    await sessions.stop()
    texts.append(str(kept.value))
    shard = Shard(url, WORD, instance="x", site=1, shards=1, shard=0)
    with pytest.raises(Away) as away:
        await shard.claim(1)
    await shard.close()
    texts.append(str(away.value))
    schedule = connect(url, WORD)
    with pytest.raises(Away) as none:
        await schedule.run("return 1", ["k"], [])
    await schedule.close()
    texts.append(str(none.value))
    engine = LikesEngine(folder=str(tmp_path), segment_bytes=8 << 20)
    mirror = Mirror(engine, Target(url, WORD, "x:"), structlog.get_logger())
    assert not await mirror.tried()
    texts += [mirror.error, mirror.note(), str(mirror.status())]
    await mirror.close()
    engine.close()
    for text in texts:
        is_clean(text, port)
        assert place not in text


async def test_a_kafka_that_is_away_hides_where_it_is() -> None:
    from muster_server.plane.log.kafka import KafkaLogs
    from muster_server.plane.log.words import LogError

    (port,) = free_ports(1)
    logs = KafkaLogs(f"127.0.0.1:{port}", "x", partitions=1, replicas=1, delivery_s=1)
    with pytest.raises(LogError) as told:
        await logs.open("likes", 0)
    is_clean(str(told.value), port)
    await logs.close()
