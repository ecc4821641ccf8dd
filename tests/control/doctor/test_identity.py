"""The judgement of `muster doctor` on nodes' identities."""

from pathlib import Path
from typing import Literal

from muster_server import _engines
from muster_server.control.config.options import Cluster
from muster_server.control.doctor.finding import Finding
from muster_server.control.doctor.identity import judged

KEY, OTHER = (bytes(_engines.public_key(bytes([number]) * 32)).hex() for number in (1, 2))


def told(
    file: Path,
    content: str,
    identity: Literal["accepted", "offered", "required"] = "required",
    **known: tuple[int, str],
) -> list[Finding]:
    file.write_text(content)
    return judged(Cluster(identity=identity, nodes_file=str(file)), {"gate": KEY}, known)


def test_off_is_as_it_should_be_and_says_what_it_means() -> None:
    (finding,) = judged(Cluster(), {}, {})
    assert (finding.level, finding.text) == ("ok", "off: any process with the cluster's secret may link as any node")


def test_a_list_that_has_every_key_of_this_machine_is_as_it_should_be(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    (finding,) = told(file, f"7 gateway {KEY} gate\n1 broker {OTHER}\n", gate=(7, "gateway"))
    assert (finding.level, finding.text) == ("ok", f"required: 2 nodes in {file}, 1 with a key here")


def test_a_key_that_the_list_lacks_comes_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    (finding,) = told(file, f"1 broker {OTHER}\n", gate=(7, "gateway"))
    assert (finding.level, finding.text) == ("fail", f"the key of gate is not in {file}")
    assert finding.mend.endswith(f": 7 gateway {KEY} gate")
    (finding,) = told(file, f"1 broker {OTHER}\n")
    assert finding.mend.endswith(f": NUMBER ROLE {KEY} gate"), "where it does not run nobody knows its number"


def test_a_node_that_is_another_one_in_the_list_is_said(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    (finding,) = told(file, f"8 gateway {KEY}\n", gate=(7, "gateway"))
    assert (finding.level, finding.text) == (
        "fail",
        f"gate is 7 gateway, but {file} lists its key as 8 gateway",
    )


def test_a_step_before_required_warns_as_it_shuts_out_nobody(tmp_path: Path) -> None:
    (finding,) = told(tmp_path / "nodes", f"7 gateway {KEY}\n", "offered")
    assert (finding.level, finding.text) == (
        "warn",
        "offered: any process with the cluster's secret may still link as any node",
    )
    assert 'identity = "required"' in finding.mend


def test_a_list_that_is_not_there_or_says_nothing_certain_fails(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    (finding,) = told(file, "7 gateway\n")
    assert (finding.level, finding.text) == (
        "fail",
        f"{file}, line 1: invalid line '7 gateway' (expected NUMBER ROLE PUBLIC-KEY)",
    )
    (finding,) = judged(Cluster(identity="required"), {}, {})
    assert (finding.level, finding.text.partition(":")[0]) == ("fail", "cluster.nodes_file")
