"""Writes the manifests in `deploy/kubernetes/`, from the descriptor of each role.

Owns the text of a manifest. It must not know any role: sizes and ports of a role are its `Pods` (`plane/kind.py`).
"""

from typing import Any, Final

from muster_server.plane.kind import RoleKind, Secret

FILES: Final[dict[Secret, str]] = {
    "cluster": "cluster.secret",
    "names": "names.key",
    "token": "token",
    "probe": "probe.token",
    "users": "jwt.secret",
}
"""Files of the Secret `muster-ROLE-cluster`, by the secret that a role needs."""
EVERY: Final = ("admin.token", "admin.key", "admin.pem", "registry.password")
"""The files that each role needs."""
SIGNING: Final = "signing.key"
"""The file that certified roles need."""
LOOPBACK: Final = "127.0.0.1"
MONITORING: Final = "monitoring"
"""The namespace of Prometheus."""


def manifest(of: RoleKind[Any, Any]) -> str:
    """Return the manifest of a role: its Service, its network policy, its disruption budget if it has several nodes,
    and its workload."""
    return "".join([_head(of), "---\n".join(filter(None, [_service(of), _policy(of), _budget(of), _workload(of)]))])


def _head(of: RoleKind[Any, Any]) -> str:
    name, pods = of.name, of.pods
    lines = [
        f"Written by `muster config manifest {name}`; edit control/cli/manifests.py.",
        f"The role {name}: {of.about}.",
    ]
    if of.partitioned:
        lines += [
            "Nodes of partition 0. For another partition copy this file under another name, with its",
            "MUSTER_SERVE__PARTITION and its label.",
        ]
    if of.door:
        lines.append(f"In the network of their host, one per host: clients reach UDP port {pods.port} of the host.")
    if of.serves:
        lines.append(f"Clients reach TCP port {pods.port} of the Service.")
    if pods.replicas == 1:
        lines.append("One is enough.")
    return "".join(f"# {line}\n" for line in lines)


def _labels(of: RoleKind[Any, Any]) -> str:
    partition = ', partition: "0"' if of.partitioned else ""
    return f"{{app.kubernetes.io/name: muster, app.kubernetes.io/component: {of.name}{partition}}}"


def _admin(of: RoleKind[Any, Any]) -> str:
    """The name of the admin port. In the network of a host it is on loopback, so Prometheus cannot reach it."""
    return "admin-local" if of.door else "admin"


def _ports(of: RoleKind[Any, Any]) -> list[tuple[str, int, str]]:
    """Name, number and protocol of each port."""
    pods, found = of.pods, [(_admin(of), of.pods.admin, "TCP")]
    if of.door:
        return [("client", pods.port, "UDP"), ("link", pods.port + 1, "UDP"), *found]
    if of.listens:
        return [(of.name, pods.port, "TCP"), ("link", pods.port + 1, "UDP"), *found]
    if of.linked:
        return [("link", pods.port, "UDP"), *found]
    if of.process == "face":
        return [(of.name, pods.port, "TCP"), *found]
    return found


def _service(of: RoleKind[Any, Any]) -> str:
    face = of.process == "face"
    headless = "" if face else "  clusterIP: None\n  publishNotReadyAddresses: true\n"
    ports = [port for port in _ports(of) if port[0] != "admin-local" and not (face and port[0] == "admin")]
    listed = "".join(
        f"    - {{name: {name}, port: {number}, protocol: {protocol}, targetPort: {name}}}\n"
        for name, number, protocol in ports
    )
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: muster-{of.name}
  labels: {_labels(of)}
spec:
{headless}  selector: {_labels(of)}
  ports:
{listed}"""


def _policy(of: RoleKind[Any, Any]) -> str:
    """Allow only Prometheus and other nodes to reach the admin port. Pods in the network of a host get no policy."""
    if of.door:
        return ""
    *others, (_, admin, _) = _ports(of)
    open_to_all = "".join(
        f"    - ports: [{{port: {number}, protocol: {protocol}}}]\n" for _, number, protocol in others
    )
    return f"""\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: muster-{of.name}
spec:
  podSelector:
    matchLabels: {_labels(of)}
  policyTypes: [Ingress]
  ingress:
{open_to_all}    - ports: [{{port: {admin}, protocol: TCP}}] # administration
      from:
        - podSelector: {{matchLabels: {{app.kubernetes.io/name: muster}}}}
        - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {MONITORING}}}}}
"""


def _budget(of: RoleKind[Any, Any]) -> str:
    if of.pods.replicas == 1:
        return ""
    return f"""\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: muster-{of.name}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {_labels(of)}
"""


def _workload(of: RoleKind[Any, Any]) -> str:
    name, pods, labels = of.name, of.pods, _labels(of)
    stateful = of.linked or bool(pods.disk)  # other nodes know these by name and number; a disk belongs to one node
    kind = "StatefulSet" if stateful else "Deployment"
    service = f"  serviceName: muster-{name}\n" if stateful else ""
    parallel = "  podManagementPolicy: Parallel # nodes of several roles wait for each other\n" if stateful else ""
    return f"""\
apiVersion: apps/v1
kind: {kind}
metadata:
  name: muster-{name}
  labels: {labels}
spec:
{service}  replicas: {pods.replicas}
{parallel}  selector:
    matchLabels: {labels}
  template:
    metadata:
      labels: {labels}
    spec:
{_network(of)}      enableServiceLinks: false # their variables begin with MUSTER_ but are no keys
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 30 # longer than a drain, which takes 15 s at most
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: {{type: RuntimeDefault}}
{_apart(of)}      containers:
        - name: muster
          image: muster
          command: [muster, serve, {name}, --config, /etc/muster/muster.toml]
          env:
{_environment(of)}          ports:
{_container_ports(of)}{_goodbye(of)}{_probes(of)}          resources:
            requests: {{cpu: "{pods.cpu}", memory: {pods.memory}}}
            limits: {{memory: {pods.memory_max}}}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          terminationMessagePolicy: FallbackToLogsOnError
{_volumes(of)}"""


def _network(of: RoleKind[Any, Any]) -> str:
    return "      hostNetwork: true\n      dnsPolicy: ClusterFirstWithHostNet\n" if of.door else ""


def _apart(of: RoleKind[Any, Any]) -> str:
    """Spread pods of one role over hosts; required in the networks of hosts, where they have the same ports."""
    if of.pods.replicas == 1:
        return ""
    rule = f"""\
labelSelector:
  matchLabels: {_labels(of)}
topologyKey: kubernetes.io/hostname
"""
    if of.door:
        how, first, indent = "required", "            - ", 14
    else:
        how, indent = "preferred", 16
        first = "            - weight: 100\n              podAffinityTerm:\n" + " " * indent
    return (
        f"      affinity:\n        podAntiAffinity:\n          {how}DuringSchedulingIgnoredDuringExecution:\n"
        + first
        + ("\n" + " " * indent).join(rule.splitlines())
        + "\n"
    )


def _environment(of: RoleKind[Any, Any]) -> str:
    pods = of.pods
    host = LOOPBACK if of.door else "$(POD_IP)"
    keys: dict[str, str] = {"serve.admin": f"{host}:{pods.admin}"}
    if of.door:
        keys |= {f"{of.key}.bind": f"0.0.0.0:{pods.port}", f"{of.key}.link_bind": f"$(POD_IP):{pods.port + 1}"}
    elif of.process != "worker":
        keys |= {f"{of.key}.{name}": f"$(POD_IP):{pods.port + at}" for at, name in enumerate(of.binds)}
    if of.partitioned:
        keys["serve.partition"] = "0"
    keys |= pods.keys
    keys |= {key: f"{_folder(of)}/{file}" for key, file in pods.files.items()}
    signing = """\
            - name: MUSTER_CLUSTER__SIGNING_KEYS
              valueFrom: {configMapKeyRef: {name: muster-trust, key: signing.pub}}
"""
    return (
        """\
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            - {name: MUSTER_SERVE__NAME, value: $(POD_NAME)}
"""
        + (signing if of.shows else "")
        + "".join(f'            - {{name: {_variable(key)}, value: "{value}"}}\n' for key, value in keys.items())
    )


def _variable(key: str) -> str:
    return "MUSTER_" + key.replace(".", "__").upper()


def _folder(of: RoleKind[Any, Any]) -> str:
    """Mount path of the files that only this role has."""
    return f"/etc/muster-{of.name}"


def _container_ports(of: RoleKind[Any, Any]) -> str:
    return "".join(
        f"            - {{name: {name}, containerPort: {number}, protocol: {protocol}}}\n"
        for name, number, protocol in _ports(of)
    )


def _goodbye(of: RoleKind[Any, Any]) -> str:
    """A face accepts connections until the Service stops sending them."""
    if not of.serves:
        return ""
    return """\
          lifecycle:
            preStop: {exec: {command: [sleep, "5"]}} # until the Service sends no more connections here
"""


def _probes(of: RoleKind[Any, Any]) -> str:
    host = f"              host: {LOOPBACK}\n" if of.door else ""
    return f"""\
          startupProbe:
            httpGet:
{host}              path: /healthz
              port: {_admin(of)}
              scheme: HTTPS
            periodSeconds: 5
            failureThreshold: 720 # it may wait for the registry: an hour
          livenessProbe:
            httpGet:
{host}              path: /healthz
              port: {_admin(of)}
              scheme: HTTPS
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet:
{host}              path: /readyz
              port: {_admin(of)}
              scheme: HTTPS
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 2
"""


def secret_files(of: RoleKind[Any, Any]) -> list[str]:
    """The files in the Secret of a role: only those that it needs."""
    files = [file for secret, file in FILES.items() if secret in of.secrets]
    return [*files, *([SIGNING] if of.certified else []), *EVERY]


def _volumes(of: RoleKind[Any, Any]) -> str:
    own = bool(of.pods.files)
    mounts = [
        "{name: config, mountPath: /etc/muster, readOnly: true}",
        "{name: trust, mountPath: /etc/muster-trust, readOnly: true}",
        "{name: secrets, mountPath: /etc/muster-secrets, readOnly: true}",
    ]
    volumes = [
        "config",
        "  configMap: {name: muster}",
        "trust",
        "  configMap: {name: muster-trust}",
        "secrets",
        f"  secret: {{secretName: muster-{of.name}-cluster, defaultMode: 0440}}",
    ]
    if own:
        mounts.append(f"{{name: own, mountPath: {_folder(of)}, readOnly: true}}")
        volumes += ["own", f"  secret: {{secretName: muster-{of.name}, defaultMode: 0440, optional: true}}"]
    mounts.append("{name: state, mountPath: /var/lib/muster}")
    claim = ""
    if of.door or of.pods.disk:
        why = "what it has made durable" if of.pods.disk else "the key by which clients know it"
        claim = f"""\
  volumeClaimTemplates: # {why}
    - metadata: {{name: state}}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {{requests: {{storage: {of.pods.disk or "16Mi"}}}}}
"""
    else:
        volumes += ["state", "  emptyDir: {medium: Memory, sizeLimit: 1Mi}"]
    return (
        "          volumeMounts:\n"
        + "".join(f"            - {mount}\n" for mount in mounts)
        + "      volumes:\n"
        + "".join(f"          {line[2:]}\n" if line[0] == " " else f"        - name: {line}\n" for line in volumes)
        + claim
    )
