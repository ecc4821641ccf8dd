"""The plan of partitions: even, the same for all, and with as few moves as that needs."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.plane.spec import SpecError
from muster_server.systems.likes.node import _kept
from muster_server.systems.likes.options import KEPT, kept
from muster_server.systems.likes.plan import planned

NAMES = ["1.9.1", "2.9.1", "3.9.1", "4.9.1", "5.9.1"]
owners = st.lists(st.sampled_from(["", *NAMES]), min_size=1, max_size=64)


@given(owners, st.sets(st.sampled_from(NAMES), min_size=1))
def test_every_node_that_stays_has_as_many_as_any_other_or_one_more(before: list[str], staying: set[str]) -> None:
    wanted = planned(before, staying)
    counts = Counter(wanted)
    shares = [counts[name] for name in staying]
    assert sum(shares) == len(before)
    assert max(shares) - min(shares) <= 1


@given(owners, st.sets(st.sampled_from(NAMES), min_size=1))
def test_nothing_moves_that_need_not(before: list[str], staying: set[str]) -> None:
    wanted = planned(before, staying)
    moves = sum(owner in staying and owner != name for owner, name in zip(before, wanted, strict=True))
    has = sorted((before.count(name) for name in staying), reverse=True)
    each, more = divmod(len(before), len(staying))
    least = sum(max(0, count - each - (place < more)) for place, count in enumerate(has))
    assert moves == least
    assert planned(wanted, staying) == wanted, "then it stands"


def test_without_a_node_that_stays_nothing_moves() -> None:
    assert planned(["1.9.1", "", "2.9.1"], set()) == ["1.9.1", "", "2.9.1"]


def test_a_lost_or_damaged_file_of_partitions_is_made_again_from_the_folders(tmp_path: Path) -> None:
    assert kept(tmp_path) is None
    name = _kept(tmp_path, 8)
    for number in range(8):
        (tmp_path / str(number)).mkdir()
    assert _kept(tmp_path, 8) == name
    for content in (None, "", "8", "8 name and more", "many name"):
        (tmp_path / KEPT).unlink()
        if content is not None:
            (tmp_path / KEPT).write_text(content)
        assert kept(tmp_path) == 8, "not one partition, which would serve an eighth of all items"
        with pytest.raises(SpecError, match="has 8, not 4; the number cannot be changed later"):
            _kept(tmp_path, 4)
        assert len(_kept(tmp_path, 8)) == 32
        assert kept(tmp_path) == 8


def test_nodes_that_start_together_in_a_new_folder_give_it_one_name(tmp_path: Path) -> None:
    nodes = 8
    with ThreadPoolExecutor(nodes) as pool:
        for number in range(100):
            folder, together = tmp_path / str(number), Barrier(nodes)
            folder.mkdir()

            def named(folder: Path = folder, together: Barrier = together) -> str:
                together.wait()
                return _kept(folder, 8)

            names = {each.result() for each in [pool.submit(named) for _ in range(nodes)]}
            assert names == {_kept(folder, 8)}
