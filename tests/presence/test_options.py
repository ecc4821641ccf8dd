"""Keys of presence, the places of nodes, and the users of a word."""

from pathlib import Path

import msgspec
import pytest

from bench.presence_nodes import settings, spec
from muster.redis.connections import opened
from muster.redis.where import parsed
from muster_server.control.errors import UserError
from muster_server.control.terminal.found import Target
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.presence.cli.commands import asked
from muster_server.systems.presence.options import Presence, shards, stores
from muster_server.systems.presence.place import Place, place_of, site_of


@pytest.mark.parametrize(
    ("sites", "text", "counts"), [(2, "1", [1, 1]), (2, "2,3", [2, 3]), (3, "2, 3", [2, 3, 3]), (1, "64", [64])]
)
def test_the_last_number_of_shards_is_that_of_all_further_sites(sites: int, text: str, counts: list[int]) -> None:
    assert shards(Presence(sites=sites, writers=text)) == counts


@pytest.mark.parametrize("text", ["", "0", "65", "x", "1,2,3", "1,,2", "-1"])
def test_what_is_no_number_of_shards_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"presence\.writers"):
        shards(Presence(sites=2, writers=text))


def test_stores_are_named_by_site_and_shard() -> None:
    presence = Presence(sites=2, redis="redis://a:1/0 redis://b:1, redis+sentinel://me@c:2,d:2/main/3")
    assert stores(presence) == [["redis://a:1/0", "redis://b:1"], ["redis+sentinel://me@c:2,d:2/main/3"]]
    assert stores(Presence(sites=2, redis="rediss+cluster://a:1,b:1")) == [["rediss+cluster://a:1,b:1"]] * 2
    assert stores(Presence()) == []
    for url in (
        "redis://a:1,redis://b:1,redis://c:1",
        "http://a:1,http://b:1",
        "redis://u:word@a:1,redis://b:1",
        "redis://a,redis://b",
        "redis://a:1,b:1",
    ):
        with pytest.raises(ValueError, match=r"presence\.redis"):
            stores(Presence(sites=2, redis=url))


@pytest.mark.parametrize(
    "url", ["redis://a:1/0", "rediss://me@a:1", "redis+sentinel://a:2,b:2/main", "redis+cluster://a:3,b:3"]
)
async def test_every_form_of_a_store_has_a_client(url: str) -> None:
    client, close = opened(parsed(url), "word", 1.0)
    assert hasattr(client, "evalsha")
    await close()


def node(role: str, index: int, sites: list[int]) -> Spec:
    told = settings(["redis://a:1"] * len(sites), "/tmp", writers=sites)
    return spec(role, index, epoch=1, told=told, secret_file="", port=1, admin=2, gateways={})


def test_a_node_s_site_and_shard_follow_from_its_place() -> None:
    made = [node("online-writer", index, [2, 3]) for index in range(5)]
    places = [place_of(each, each.settings) for each in made]
    assert places == [Place(1, 2, 0), Place(1, 2, 1), Place(2, 3, 0), Place(2, 3, 1), Place(2, 3, 2)]
    beyond = node("online-writer", 5, [2, 3])
    with pytest.raises(SpecError, match="no shard"):
        place_of(beyond, beyond.settings)
    readers = [node("online-reader", index, [2, 3]) for index in range(4)]
    assert [site_of(each, each.settings) for each in readers] == [1, 2, 1, 2]


def test_a_served_node_s_site_and_shard_are_keys() -> None:
    own = msgspec.structs.replace(node("online-writer", 0, [2, 3]), node=700)
    told = msgspec.structs.replace(own.settings, site=2, shard=2)
    assert place_of(own, told) == Place(2, 3, 2)
    for wrong in ({"site": 3}, {"site": 1, "shard": 2}):
        with pytest.raises(SpecError, match=r"presence\.site|online_writer\.shard"):
            place_of(own, msgspec.structs.replace(told, **wrong))


def test_users_of_a_word_are_numbers_of_64_bits_or_names(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("8\n\n 9 \n")
    assert asked(Target(), ["7"], file) == ([7, 8, 9], {})
    empty = tmp_path / "none.txt"
    empty.write_text("\n")
    assert asked(Target(), [], empty) == ([], {}), "an empty list is no mistake"
    for wrong in ([" x"], ["-1"], ["007"], [str(1 << 64)], []):
        with pytest.raises(UserError):
            asked(Target(), wrong, None)
