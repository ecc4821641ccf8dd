"""The manifests in `deploy/kubernetes/` fit Kubernetes' schemas and each other, and start Muster as it is."""

import copy
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import structlog

import muster as muster_client
from muster_server.control.cli import main as cli
from muster_server.control.cluster import daemon
from muster_server.control.config import load as config
from muster_server.control.config.options import SERVED, Config
from muster_server.control.host.addresses import split_address
from muster_server.control.node.admin import Admin, App
from muster_server.control.registry.places import Snapshot
from muster_server.control.registry.server import RegistryServer
from muster_server.plane.certificate import public_half
from muster_server.plane.kinds import kind, kinds
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.systems.probes.prober import Prober, Source
from muster_server.systems.probes.system import Probes
from muster_server.systems.probes.worker import Probing
from tests.control.cli.test_help import muster, understood
from tests.documents import ROOT
from tests.fakes.engine import FakeEngine
from tests.faults.hosts import Hosts, Node
from tests.faults.instance import need_ipv6
from tests.kubernetes import check, documents

FOLDER: Final = ROOT / "deploy" / "kubernetes"
CUSTOMIZED: Final[dict[str, Any]] = documents(FOLDER / "kustomization.yaml")[0]
EVERY: Final = [each for name in CUSTOMIZED["resources"] for each in documents(FOLDER / name)]
ADDRESS: Final = "10.0.0.7"
SIGNING: Final = "5e" * 32
PUBLIC: Final = {"signing.pub": f"{public_half(bytes.fromhex(SIGNING))}\n"}
"""The files that are no secrets, each with its line's end."""


def of(role: str, what: str) -> dict[str, Any]:
    return next(each for each in EVERY if (each["kind"], each["metadata"]["name"]) == (what, f"muster-{role}"))


def workload(role: str) -> dict[str, Any]:
    """The kind that makes its pods: lasting names for those that other nodes know by name, and for those with a disk."""
    return of(role, "StatefulSet" if kind(role).linked or kind(role).pods.disk else "Deployment")


def pod(role: str) -> dict[str, Any]:
    spec: dict[str, Any] = workload(role)["spec"]["template"]["spec"]
    return spec


def container(role: str) -> dict[str, Any]:
    (only,) = pod(role)["containers"]
    return dict(only)


def environment(role: str, address: str = ADDRESS) -> dict[str, str]:
    """The environment of the first pod."""
    values = {"POD_NAME": f"muster-{role}-0", "POD_IP": address}
    for each in container(role)["env"]:
        if "value" in each:
            values[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], each["value"])
        if named := each.get("valueFrom", {}).get("configMapKeyRef"):
            (trust,) = CUSTOMIZED["configMapGenerator"]
            assert named["name"] == trust["name"]
            values[each["name"]] = PUBLIC[named["key"]]
    return values


def configuration() -> str:
    (found,) = [each["data"]["muster.toml"] for each in EVERY if each["kind"] == "ConfigMap"]
    return str(found)


def loaded(role: str, tmp_path: Path) -> Config:
    file = tmp_path / "muster.toml"
    file.write_text(configuration())
    return config.load(file, environment(role), roles=(role,)).config


@pytest.mark.parametrize("document", EVERY, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_a_document_is_what_kubernetes_has_of_its_kind(document: dict[str, Any]) -> None:
    check(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replica"), 2),
        (("spec", "replicas"), "two"),
        (("spec", "template", "spec", "terminationGracePeriod"), 30),
        (("spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet", "port"), [1]),
    ],
)
def test_what_kubernetes_does_not_have_is_found(path: tuple[str | int, ...], value: object) -> None:
    document: Any = copy.deepcopy(of("broker", "StatefulSet"))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(msgspec.ValidationError):
        check(document)


def test_every_role_has_the_manifest_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for role in kinds():
        assert cli.main(["config", "manifest", role]) == 0
        printed[f"{role}.yaml"] = capsys.readouterr().out
    files = set(CUSTOMIZED["resources"]) - {"namespace.yaml", "config.yaml"}
    assert {name: (FOLDER / name).read_text() for name in files} == printed


def test_every_file_is_used_and_no_secret_lies_beside_them() -> None:
    files = {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(CUSTOMIZED["resources"])
    made = [*CUSTOMIZED["secretGenerator"], *CUSTOMIZED["configMapGenerator"]]
    assert set((FOLDER / ".gitignore").read_text().split()) == {name for each in made for name in each["files"]}
    assert {each["name"] for each in CUSTOMIZED["images"]} == {container(role)["image"] for role in SERVED}


@pytest.mark.parametrize("role", SERVED)
def test_what_refers_to_pods_finds_them(role: str) -> None:
    replicas = workload(role)
    labels = replicas["spec"]["template"]["metadata"]["labels"]
    assert replicas["spec"]["selector"]["matchLabels"] == labels
    service = of(role, "Service")
    assert service["spec"]["selector"] == labels
    if kind(role).process == "face":  # clients reach one that is ready, by the Service's own address
        assert not {"clusterIP", "publishNotReadyAddresses"} & service["spec"].keys()
    else:
        assert service["spec"]["clusterIP"] == "None"
    if kind(role).linked:
        assert replicas["spec"]["serviceName"] == service["metadata"]["name"]
    if replicas["spec"]["replicas"] > 1:
        assert of(role, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
        (rules,) = pod(role)["affinity"]["podAntiAffinity"].values()
        rule = rules[0].get("podAffinityTerm", rules[0])
        assert rule["labelSelector"]["matchLabels"] == labels
    ports = {(each["name"], each["containerPort"], each["protocol"]) for each in container(role)["ports"]}
    for each in service["spec"]["ports"]:
        assert (each["targetPort"], each["port"], each["protocol"]) in ports
    assert labels.get("partition") == environment(role).get("MUSTER_SERVE__PARTITION")


def admin_port(role: str) -> str:
    """Prometheus asks every port named `admin`, so ports that only the pod's host reaches have other names."""
    local = environment(role)["MUSTER_SERVE__ADMIN"].startswith("127.0.0.1:")
    return "admin-local" if local else "admin"


def addresses(settings: Config, role: str) -> dict[str, str]:
    """The ports that a pod binds, by name."""
    texts = {admin_port(role): settings.serve.admin}
    section = settings.role(role)
    if kind(role).process == "worker":
        assert getattr(section, "ask", settings.serve.admin) == settings.serve.admin
        return texts
    if kind(role).serves:
        texts[role] = section.bind
        assert split_address(section.bind)[0] == ADDRESS, "the registry passes it on to others"
    if not kind(role).linked:
        return texts
    texts["link"] = getattr(section, "link_bind", section.bind)
    assert split_address(texts["link"])[0] == ADDRESS
    if pod(role).get("hostNetwork"):
        texts["client"] = section.bind
    return texts


@pytest.mark.parametrize("role", SERVED)
def test_a_pod_s_configuration_is_taken_and_names_its_ports_and_its_volumes(role: str, tmp_path: Path) -> None:
    settings = loaded(role, tmp_path)
    daemon._check(settings, role)
    assert settings.serve.name == f"muster-{role}-0"
    bound = {name: split_address(text)[1] for name, text in addresses(settings, role).items()}
    assert bound == {each["name"]: each["containerPort"] for each in container(role)["ports"]}
    mounts = {each["mountPath"]: each["name"] for each in container(role)["volumeMounts"]}
    claims = workload(role)["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in pod(role)["volumes"]} | {each["metadata"]["name"] for each in claims}
    assert set(mounts.values()) == volumes
    assert mounts[settings.serve.dir] == "state"
    cluster = settings.cluster
    named = {"cluster": cluster.secret_file, "names": cluster.names_file, "token": cluster.token_file}
    if role == "prober":
        named["probe"] = settings.section("probes").token_file
    needed = {file for name, file in named.items() if name in kind(role).secrets}
    needed |= {cluster.jwt_secret_file} if "users" in kind(role).secrets else set()
    needed |= {cluster.signing_key_file} if kind(role).certified else set()
    needed |= {settings.registry.password_file, *settings_of_admin(settings)}
    assert {
        f"{folder}/{name}" for folder, volume in mounts.items() if volume == "secrets" for name in mounted(role)
    } == needed
    assert not any(one.startswith(f"{other}/") for one in mounts for other in mounts), "one would hide another"


def settings_of_admin(settings: Config) -> list[str]:
    return [settings.admin.token_file, settings.admin.tls_cert_file, settings.admin.tls_key_file]


def mounted(role: str) -> set[str]:
    """The files of the cluster's secrets that a pod has: all of its role's Secret, which is no other role's."""
    (volume,) = [each for each in pod(role)["volumes"] if each["name"] == "secrets"]
    name = volume["secret"]["secretName"]
    assert [other for other in SERVED if f"muster-{other}-cluster" == name] == [role]
    (secret,) = [each for each in CUSTOMIZED["secretGenerator"] if each["name"] == name]
    return set(secret["files"])


def test_a_stolen_secret_of_a_broker_or_router_opens_no_client_s_session_and_certifies_nothing() -> None:
    for role in ("broker", "router"):
        assert not {"token", "jwt.secret", "signing.key"} & mounted(role)
    assert not {"token", "jwt.secret", "signing.key", "cluster.secret"} & mounted("prober"), "it has a token of its own"


def test_the_registry_is_spoken_to_by_tls_under_a_name_of_its_own(tmp_path: Path) -> None:
    for role in SERVED:
        registry = loaded(role, tmp_path).registry
        assert registry.auth != "none"
        folder = {each["mountPath"]: each["name"] for each in container(role)["volumeMounts"]}
        file = Path(registry.tls_ca_file)
        assert folder[str(file.parent)] == "trust"
        assert file.name in CUSTOMIZED["configMapGenerator"][0]["files"]


@pytest.mark.parametrize("role", [role for role in SERVED if not kind(role).door])
def test_only_prometheus_and_nodes_reach_an_admin_port(role: str) -> None:
    policy = of(role, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == workload(role)["spec"]["selector"]["matchLabels"]
    ports = {(each["containerPort"], each["protocol"]): each["name"] for each in container(role)["ports"]}
    for rule in policy["ingress"]:
        (port,) = rule["ports"]
        assert ("from" in rule) == (ports.pop((port["port"], port["protocol"])) == "admin")
    assert not ports


def test_a_pod_s_own_files_lie_where_its_keys_say(tmp_path: Path) -> None:
    (volume,) = [each["secret"] for each in pod("http")["volumes"] if each["name"] == "own"]
    assert volume["optional"], "a face without keys serves users with tokens"
    mounts = {each["name"]: each["mountPath"] for each in container("http")["volumeMounts"]}
    file = Path(loaded("http", tmp_path).section("http").keys_file)
    assert str(file.parent) == mounts["own"]


def test_a_face_takes_the_names_of_its_service(tmp_path: Path) -> None:
    name, space = of("http", "Service")["metadata"]["name"], CUSTOMIZED["namespace"]
    hosts = loaded("http", tmp_path).section("http").hosts
    assert set(hosts) == {name, f"{name}.{space}", f"{name}.{space}.svc"}


def admin_of(role: str) -> App:
    """The application that answers a pod's probes."""
    about = {"role": role, "node": 1, "name": role, "version": "0"}
    if not kind(role).linked:  # they answer alike
        nobody = Source(Snapshot, muster_client.Address((), (), b""), bytes(16))
        return Admin(Probing(Prober(Probes(every_ms=1_000), nobody, structlog.get_logger()), Snapshot), about)
    engine = FakeEngine(link_bind=("127.0.0.1", 0))
    app = Admin(Server(Role(engine), structlog.get_logger()), about)
    engine.close()
    return app


@pytest.mark.parametrize("role", SERVED)
def test_probes_ask_what_a_node_answers_where_it_does(role: str) -> None:
    app = admin_of(role)
    host, _, _ = environment(role)["MUSTER_SERVE__ADMIN"].rpartition(":")
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = container(role)[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, admin_port(role))
        assert asked.get("host", ADDRESS) == host
        assert asked["scheme"] == "HTTPS"
        status, _, _ = app._answered({"method": "GET", "path": path})
        assert status in {200, 503}


def test_a_router_s_memory_has_place_for_what_it_holds_and_tells_two_peers_at_once() -> None:
    memberships = int(environment("router")["MUSTER_ROUTER__MEMBERSHIPS_MAX"])
    assert container("router")["resources"]["limits"]["memory"] == "1Gi"
    assert memberships * (64 + 2 * 66) < 0.8 * 2**30


@pytest.mark.parametrize("role", SERVED)
def test_a_pod_starts_what_is_understood_and_has_time_to_drain(role: str) -> None:
    understood(muster, container(role)["command"])
    grace = pod(role)["terminationGracePeriodSeconds"]
    assert grace > daemon.END_S
    assert pod(role)["enableServiceLinks"] is False, "its variables would be taken for keys"
    assert workload(role)["spec"]["replicas"] == 1 or of(role, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
async def test_what_the_manifests_start_serves(tmp_path: Path, address: str) -> None:
    if ":" in address:
        need_ipv6()
    hosts = Hosts(tmp_path, "embedded")
    text = configuration().replace("/var/lib/muster", str(tmp_path / "state"))
    registry = {"MUSTER_REGISTRY__URL": "embedded", "MUSTER_REGISTRY__AUTH": "none"}
    registry |= {"MUSTER_REGISTRY__TLS_CA_FILE": "", "MUSTER_INSTANCE__DIR": str(tmp_path)}
    registry |= {"MUSTER_ADMIN__TLS_CERT_FILE": "", "MUSTER_ADMIN__TLS_KEY_FILE": ""}  # probes ask without
    (tmp_path / "signing.key").write_text(SIGNING)
    for name in ("admin.token", "admin.pem", "admin.key"):
        (tmp_path / name).write_text("canary-token")
    (tmp_path / "registry.password").write_text("no registry asks for it")
    nodes: list[Node] = []
    async with RegistryServer(tmp_path, structlog.get_logger()):
        with hosts.running():
            for role in (
                role
                for role in SERVED
                if "fleet.password_file" not in kind(role).pods.files
                and "presence.redis" not in kind(role).pods.keys
                and role != "unicast"
            ):  # has no broker, no store, no reader
                told = environment(role, address)
                secrets = tmp_path / f"secrets-{role}"  # only what its pod has
                secrets.mkdir()
                for file in mounted(role):
                    (secrets / file).write_bytes((tmp_path / file).read_bytes())
                hosts.config = tmp_path / f"{role}.toml"
                hosts.config.write_text(text.replace("/etc/muster-secrets", str(secrets)))
                if ":" in address:
                    told = {name: value.replace("0.0.0.0", "[::]") for name, value in told.items()}
                free = {name: re.sub(r":\d{4}$", ":0", value) for name, value in told.items()}
                nodes.append(hosts.start(f"muster-{role}-0", role, **free | registry))
            await hosts.serve(*nodes)
            assert [await node.end() for node in nodes] == [0] * len(nodes)
