"""`deploy/` for Prometheus and Grafana uses metrics and labels that exist, and its alarms are explained."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from muster_server.control.cli.cluster import DUE
from muster_server.control.config.options import Links
from muster_server.control.registry.steps import STANDS_S
from muster_server.plane.kinds import kinds
from tests.documents import ROOT, cells
from tests.promql import Names, Use, names
from tests.test_containers import SERVICES

DASHBOARDS: Final[dict[str, dict[str, Any]]] = {
    file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "deploy" / "grafana").glob("*.json"))
}
RULES_FILE: Final = ROOT / "deploy" / "prometheus" / "muster.rules.yml"
RULES: Final[dict[str, Any]] = json.loads(re.sub(r"^#.*\n", "", RULES_FILE.read_text()))
ALARMS: Final[list[dict[str, Any]]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PARAGRAPHS: Final = (ROOT / "docs" / "alarms.md").read_text()
HEAD: Final = ("name", "type", "unit", "labels", "reason", "meaning")
TARGET: Final = frozenset({"job", "instance"})
"""Labels that Prometheus adds to every target."""
SINCE_THE_START: Final = frozenset({"muster_udp_gso_refused_total"})
"""Counters of states that hold for the life of a process."""


LOSS: Final = re.compile(
    r"drop|refuse|lost|withheld|expired|failed|failures|overflow|truncated|gaps|full|errors|left_out"
)
"""Parts of the names of metrics of losses, refusals and failures."""
USUAL: Final[dict[str, str]] = {
    "late, doubled, or of nobody that is known": "(link_)?dropped_(header|unknown|duplicate|old|generation)",
    "a hello once more while it waits": "(link_)?dropped_hello_repeated",
    "a stranger, or a scanner, at no cost": (
        "(link_)?(dropped_hello_(short|malformed)|withheld_unproven)|tcp_(tls_failed|refused_address)"
        "|connections_refused_(request|origin)"
    ),
    "of another secret: who has it says so": "(link_)?dropped_key_unknown|links_key_dropped",
    "clients are no nodes: links alone count it": "dropped_identity",
    "a log of events that was full: the peer begins anew and is told all": "(links|sessions)_log_full",
    "a call of the kernel, repeated": "udp_(receive_errors|truncated)",
    "clients that left without a word": "udp_lost_refused|dropped_acknowledgement",
    "told of by MusterStoodStill": "dropped_stalled",
    "told of by MusterFaultsInjected": "faults_.*",
    "told of by MusterLinksFlap": "link_failures",
    "told of by MusterDatabaseAway": "database_failed",
    "told of by MusterLikesBehind": "likes_passes_failed",
    "told of by MusterPathsFail": "probe_(samples_failed|path_failing)|probe_path_loss_ratio",
    "the command that shows paths says it": "probe_paths_left_out",
    "told of by MusterNodeSilent, which the one that stayed away is": "gateways_expired",
    "of an earlier life, or a stream that has ended": "dropped_(stale_epoch|stale_stream)",
    "a gateway that was a relay goes on for a moment; the owner sends it": "dropped_unasked",
    "members that left, or that never asked": "dropped_(no_member|unwanted)",
    "the publisher repeats them, or was to repeat them and went": "dropped_(ahead|held|handle|headers)",
    "what pacing is for": "credit_withheld",
    "told to the user, who is above its own bounds": "refused_sessions|joins_refused_user|dropped_(rate|credit)",
    "told of by MusterClientsRefused, of which it is a part": "joins_refused_rooms",
    "a client's own mistake, of which it is told": (
        "dropped_frame|(publications|letters)_refused|connections_(errors|ended_refused)"
    ),
    "answers that came late, twice or from a life before: the run counts its clients": "fleet_answers_dropped",
    "of a scheduler that was asleep while another one took over": "fleet_questions_refused",
    "results that came late: the message fires again, under a claim of its own": "messages_claims_lost",
    "told to the producer in its answer": "messages_refused",
    "as its producer wished": "messages_expired",
    "presence asks again for what it misses": (
        "presence_(dropped_(early|full|unlinked|no_proxy|no_writer)|held_dropped|asks_given_up|fulls.*)|guest_dropped"
    ),
    "told to the sender of a message in its outcome": "unicast_(expired|sends_(expired|refused)|dropped_(epoch|old|full))",
    "told to the client: its user has too many devices": "presence_sessions_refused",
    "of an earlier life, another map or nobody: the writer's own state stays right": "presence_(refused_stale|lost)",
    "told of by MusterPresenceRefused": "presence_(refused_store|store_failed)",
    "told to the member, which subscribes or connects again": "gaps_told|connections_ended_expired",
    "a stranger at a port of delayed messages, which gets nothing": "messages_asked_refused",
    "the oldest entries and messages, as the operator's limits say": "(inbox|archive)_dropped",
    "told of by MusterArchiveLost": "archive_lost",
}
"""Metrics without an alarm of their own, by the reason."""


class Metrics:
    """The metrics of `docs/metrics.md`, which are those of the roles: types, labels, and the roles that have them."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {"up": "gauge"}
        self.labels: dict[str, frozenset[str]] = {"up": frozenset()}
        self.roles: defaultdict[str, set[str]] = defaultdict(set)
        for section in (ROOT / "docs" / "metrics.md").read_text().split("\n## ")[1:]:
            title = section.partition("\n")[0].lower()
            roles = set(kinds()) if title == "every role" else set(title.split(", "))
            assert roles <= kinds().keys()
            for name, kind, _, labels, _, _ in cells(section, *HEAD):
                metric = name.strip("`")
                self.types[metric] = kind
                self.labels[metric] = frozenset(re.findall(r"`(\w+)`", labels))
                self.roles[metric] |= roles


METRICS: Final = Metrics()


def panels() -> Iterator[tuple[str, str]]:
    """Every expression of the dashboards, with where it stands."""
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{name}: {panel['title']}", target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name}: {variable['name']}", variable["query"]["query"]


def alarms() -> Iterator[tuple[str, str]]:
    return ((alarm["alert"], alarm["expr"]) for alarm in ALARMS)


def wrong(use: Use) -> list[str]:
    """The mistakes in one metric of an expression."""
    if use.metric not in METRICS.types:
        return [f"no metric {use.metric}"]
    found = [f"{use.metric} has no label {name}" for name in use.labels.keys() - METRICS.labels[use.metric] - TARGET]
    role = use.labels.get("role", "")
    if role.startswith("=") and not role.startswith("=~") and role[1:] not in METRICS.roles[use.metric]:
        found.append(f"no {role[1:]} has {use.metric}")
    counts = METRICS.types[use.metric] in {"counter", "histogram"} and use.metric not in SINCE_THE_START
    if counts != (use.function in {"rate", "increase"}) and use.function != "changes":
        found.append(f"{use.metric} is a {METRICS.types[use.metric]}, in {use.function}")
    return found


def unknown(said: Names) -> set[str]:
    """Labels of `by (…)` and their like that no metric of the expression has."""
    return set(said.listed) - TARGET - {label for use in said.uses for label in METRICS.labels.get(use.metric, ())}


@pytest.mark.parametrize(("where", "expression"), [*panels(), *alarms()])
def test_every_metric_and_label_of_an_expression_exists(where: str, expression: str) -> None:
    said = names(expression)
    assert said.uses, where
    assert [each for use in said.uses for each in wrong(use)] == []
    assert unknown(said) == set()


@pytest.mark.parametrize(
    "expression",
    [
        "muster_rate",
        "rate(muster_ready[5m])",
        "muster_stalls_total",
        'muster_ready{site="a"}',
        'rate(muster_joins_total{role="proxy"}[5m])',
        "sum by (site) (muster_ready)",
    ],
)
def test_a_name_that_does_not_exist_is_found(expression: str) -> None:
    said = names(expression)
    assert any(map(wrong, said.uses)) or unknown(said)


@pytest.mark.parametrize(
    "expression",
    [
        "sum(muster_ready",
        "muster_ready)",
        "rat(muster_ready)",
        "muster_ready[5m]",
        "rate(muster_ready)",
        "a{b}",
        "a ; b",
    ],
)
def test_what_is_no_expression_is_found(expression: str) -> None:
    with pytest.raises(ValueError):
        names(expression)


def test_names_are_told_from_functions_words_and_labels() -> None:
    said = names(
        "max by (role) (rate(a_total{job='x', role=~\"b.*\"}[5m]) / on (node) group_left (c) (d > bool 0)) or e"
    )
    assert said.uses == [Use("a_total", {"job": "=x", "role": "=~b.*"}, "rate"), Use("d"), Use("e")]
    assert said.listed == {"role", "node", "c"}


def test_the_page_lists_every_dashboard() -> None:
    listed = re.findall(r"^\| `(\w+)\.json` \|", (ROOT / "docs" / "watch.md").read_text(), re.MULTILINE)
    assert set(listed) == DASHBOARDS.keys()


def test_each_system_has_its_dashboard() -> None:
    assert DASHBOARDS.keys() == {
        "muster",
        "http",
        "presence",
        "likes",
        "messages",
        "fleet",
        "inbox",
        "edge",
        "console",
        "archive",
    }
    rows = [panel["title"] for panel in DASHBOARDS["muster"]["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Per role", "Repair and loss", "Overload", "Links", "Commands", "Process"]
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_takes_its_source_as_a_variable(name: str) -> None:
    dashboard = DASHBOARDS[name]
    (source,) = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    charts = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in charts} == {"${datasource}"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_lie_upon_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells_ = {(x, y) for x in columns for y in lines}
        assert max(columns) < 24
        assert not cells_ & taken, panel["title"]
        taken |= cells_


def test_every_alarm_has_its_paragraph_and_every_paragraph_its_alarm() -> None:
    told = [alarm["alert"] for alarm in ALARMS]
    assert len(told) == len(set(told))
    assert re.findall(r"^\*\*(Muster\w+)\*\* ", PARAGRAPHS, re.MULTILINE) == told
    for alarm in ALARMS:
        assert alarm["annotations"]["runbook"] == f"docs/alarms.md, {alarm['alert']}"


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm["alert"])
def test_an_alarm_is_whole(alarm: dict[str, Any]) -> None:
    assert set(alarm) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", alarm["for"])
    assert alarm["labels"] in [{"severity": severity} for severity in ("page", "warning", "info")]
    said = names(alarm["expr"])
    has = TARGET | said.listed | {label for use in said.uses for label in METRICS.labels[use.metric]}
    assert set(re.findall(r"\$labels\.(\w+)", alarm["annotations"]["summary"])) <= has


NUMBERED: Final = {"node": "name", **{end: f"{end}_name" for end in ("peer", "proxy", "broker", "gateway")}}
"""Labels with the number of a node, and those with its name."""


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm["alert"])
def test_an_alarm_that_has_a_number_has_the_name_beside_it(alarm: dict[str, Any]) -> None:
    summary = alarm["annotations"]["summary"]
    for number, name in NUMBERED.items():
        assert summary.count(f"$labels.{number} ") == summary.count(
            f"{{{{ $labels.{number} }}}} {{{{ $labels.{name} }}}}"
        )
    assert 'job="' not in alarm["expr"], "any job may scrape"


def test_every_metric_of_loss_or_refusal_has_an_alarm_or_a_reason_why_nobody_must_act() -> None:
    alarmed = {use.metric for _, expression in alarms() for use in names(expression).uses}
    signals = {metric for metric in METRICS.types if LOSS.search(metric)}
    usual = {
        metric: why
        for metric in signals
        for why, pattern in USUAL.items()
        if re.fullmatch(f"muster_(?:{pattern})(?:_total)?", metric)
    }
    assert signals - alarmed - usual.keys() == set()
    assert USUAL.keys() == set(usual.values()), "a reason is of no metric any more"


def test_alarms_of_growth_ring_where_the_command_says_that_it_is_due() -> None:
    expressions = dict(alarms())
    assert expressions["MusterMembershipsFull"] == f"muster_interest > {DUE} * muster_interest_max"
    assert expressions["MusterCoreFull"].endswith(f" > {DUE}")


def test_the_alarm_of_a_growth_that_stands_rings_where_the_command_says_so() -> None:
    assert dict(alarms())["MusterGrowthStands"].endswith(f" > {STANDS_S:.0f}")


def test_what_links_are_judged_by_rings_at_the_limits_that_the_command_has_by_default() -> None:
    expressions, limits = dict(alarms()), Links()
    assert expressions["MusterLinkDown"] == "muster_link_up == 0"
    assert expressions["MusterLinkUnavailable"] == f"muster_link_availability_ratio < {limits.availability}"
    loss, latency = f"muster_link_loss_ratio > {limits.loss}", f"muster_link_rtt_seconds > {limits.latency_ms / 1000}"
    assert expressions["MusterLinkBeyondLimits"] == f"{loss} or {latency}"
    shown = {use.metric for _, expression in panels() for use in names(expression).uses}
    assert shown >= {"muster_link_up", "muster_link_availability_ratio", "muster_registry_partitions_uncovered"}


# --- what compose gives to Prometheus and Grafana --------------------------------------------------------------------


def read(path: str) -> Any:
    """A YAML file in `deploy/`."""
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def test_grafana_gets_its_source_and_every_dashboard() -> None:
    grafana = SERVICES["grafana"]
    mounts = dict(each.split(":")[:2] for each in grafana["volumes"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    (provider,) = read("grafana/provisioning/dashboards/muster.yaml")["providers"]
    assert mounts["./grafana"] == provider["options"]["path"]
    assert {file.suffix for file in (ROOT / "deploy" / "grafana" / "provisioning").rglob("*") if file.is_file()} == {
        ".yaml"
    }
    (source,) = read("grafana/provisioning/datasources/muster.yaml")["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    shared = SERVICES["prometheus"]["network_mode"].removeprefix("service:")
    assert source["url"] == f"http://{shared}:9090"


def test_prometheus_has_the_rules_and_reads_what_the_service_beside_it_writes() -> None:
    mounts = dict(each.split(":")[:2] for each in SERVICES["prometheus"]["volumes"])
    settings = read("prometheus/prometheus.yml")
    assert settings["rule_files"] == [mounts["./prometheus/muster.rules.yml"]]
    assert f"--config.file={mounts['./prometheus/prometheus.yml']}" in SERVICES["prometheus"]["command"]
    (job,) = settings["scrape_configs"]
    ((file,),) = [each["files"] for each in job["file_sd_configs"]]
    assert file.startswith(mounts["targets"])
    assert f" {file}\n" in SERVICES["targets"]["command"][0]
    (volume,) = [each for each in SERVICES["targets"]["volumes"] if each.startswith("targets:")]
    assert volume.split(":")[1] == mounts["targets"]
    assert SERVICES["targets"]["network_mode"] == SERVICES["prometheus"]["network_mode"] == "service:demo"


def test_the_targets_are_the_admin_ports_of_all_processes(tmp_path: Path) -> None:
    nodes = [{"admin": f"http://127.0.0.1:{port}"} for port in (4001, 4000, 4001)]
    program = tmp_path / "muster"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'nodes': nodes})}'\n")
    program.chmod(0o755)
    (script,) = SERVICES["targets"]["command"]
    once = script.replace("/targets/", f"{tmp_path}/").replace("sleep 15", "exit 0")
    environment = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    subprocess.run([*SERVICES["targets"]["entrypoint"], once], env=environment, check=True)
    assert json.loads((tmp_path / "muster.json").read_text()) == [{"targets": ["127.0.0.1:4000", "127.0.0.1:4001"]}]
