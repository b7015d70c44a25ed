"""A whole Kubernetes cluster as the children of one process, which is PID 1 of namespaces of its
own.

Run by `cluster.py` under `unshare --mount --pid --net`: whatever happens to this process, the
kernel ends every program of the cluster and drops its mounts, interfaces and addresses with it.
There is no route out of the network namespace.

Says READY on stdout when the node is ready, takes orders on stdin (`kill kubelet`, `start kubelet`;
each answered with a line), and ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.cluster import store

NODE, NODE_ADDRESS = "node0", "10.240.0.1"
API_SERVICE, DNS_SERVICE, SERVICES, PODS = (
    "10.96.0.1",
    "10.96.0.10",
    "10.96.0.0/16",
    "10.244.0.0/16",
)
TOKENS = {
    "admin": ("kubernetes-admin", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "scheduler": ("system:kube-scheduler", ""),
    "controllers": ("system:kube-controller-manager", ""),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("elasticdl-test-dns", "system:masters"),
    "kwok": ("elasticdl-test-kwok", "system:masters"),
}
_GATES = "--feature-gates=GenericWorkload=true"
GANGS = {
    "kube-apiserver": (_GATES, "--runtime-config=scheduling.k8s.io/v1beta1=true"),
    "kube-controller-manager": (_GATES,),
    "kube-scheduler": (_GATES,),
}
"""Flags that give a Kubernetes 1.37 gangs."""
START_LIMIT_S = 120
VOLATILE = ("containerd", "etcd", "kubelet")
MEMORY_TO_SPARE_BYTES = 6 << 30
WEIGHT = {"cpu.shares": "4096", "cpu.weight": "400"}
"""Of all pods together, for cgroups v1 and v2: that of four processes. By default it is that of one
process of the tests beside them.
"""
GO = {"GOGC": "400", "GOMAXPROCS": "1"}
"""Less CPU time for memory: programs look for garbage when they have made four times as much. On
one processor each they do not look for work at others, nor wake these: a seventh of their time.
"""


class Node:
    """Everything below `state`; programs from `programs`."""

    def __init__(
        self, state: Path, programs: Path, cgroup: str, images: Path, *, gangs: bool
    ) -> None:
        """`images`: a store of images that the node has from the start. `gangs`: see GANGS."""
        self.state, self.programs, self.cgroup, self.images = state, programs, cgroup, images
        self.gangs = gangs
        self.logs = state / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.commands: dict[str, tuple[object, ...]] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """Make what a control plane of somebody else's needs: a network and identities."""
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "lo")
        self.certificates()

    def start(self) -> None:
        """Run a control plane, and a node that runs containers."""
        private_folders(self.state)
        if available_memory_bytes() > MEMORY_TO_SPARE_BYTES:
            for folder in VOLATILE:
                in_memory(self.state / folder)
        network()
        for hierarchy in cgroup_roots():
            (hierarchy / self.cgroup).mkdir(exist_ok=True)
            for name, weight in WEIGHT.items():
                if (hierarchy / self.cgroup / name).exists():
                    (hierarchy / self.cgroup / name).write_text(weight)
        self.certificates()
        self.write_settings()
        self.api_server()
        # What asks it too early gives up for good where the machine is busy.
        self.wait_for("the API server", lambda: self.api("/readyz") == b"ok")
        self.controllers()
        store.mount(self.images, self.state / "containerd")
        self.spawn(
            "containerd",
            shutil.which("containerd") or "containerd",
            "--config",
            self.state / "containerd.toml",
        )
        self.wait_for("containerd", lambda: (self.state / "containerd.sock").exists())
        self.import_pause_image()
        self.node_programs()
        self.name_service()
        self.wait_for("the node to be ready", self.node_is_ready)

    def spawn(self, name: str, *command: object) -> None:
        self.commands[name] = command
        with (self.logs / f"{name}.log").open("ab") as log:
            arguments = [str(part) for part in command]
            self.running[name] = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **GO},
            )

    def order(self, verb: str, name: str) -> None:
        """Kill a program, or start it again."""
        match verb:
            case "kill":
                self.running[name].kill()
                self.running[name].wait()
            case "start":
                self.spawn(name, *self.commands[name])
            case _:
                raise ValueError(f"{verb!r}: expected kill or start")

    def program(self, name: str, *flags: str) -> None:
        more = GANGS.get(name, ()) if self.gangs else ()
        self.spawn(name, self.programs / name, *flags, *more)

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            try:
                if ready():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"waited {START_LIMIT_S} s for {what}; see {self.logs}")

    def api(self, path: str) -> bytes:
        context = ssl.create_default_context(cafile=str(self.state / "ca.crt"))
        request = urllib.request.Request(
            f"https://{NODE_ADDRESS}:6443{path}", headers={"Authorization": "Bearer admin"}
        )
        with urllib.request.urlopen(request, context=context, timeout=2) as answer:
            return answer.read()

    def node_is_ready(self) -> bool:
        conditions = (
            json.loads(self.api(f"/api/v1/nodes/{NODE}")).get("status", {}).get("conditions", [])
        )
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def certificates(self) -> None:
        # With RSA, each handshake takes the API server a millisecond.
        curve = "prime256v1"
        signing_key = self.state / "sa.key"
        run("openssl", "ecparam", "-genkey", "-noout", "-name", curve, "-out", signing_key)
        addresses = f"IP:{NODE_ADDRESS},IP:{API_SERVICE},IP:127.0.0.1"
        names = f"subjectAltName={addresses},DNS:kubernetes.default.svc,DNS:kubernetes"
        run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{curve}",
            "-nodes", "-days", "30", "-subj", "/O=system:masters/CN=elasticdl-test",
            "-addext", names, "-keyout", self.state / "ca.key", "-out", self.state / "ca.crt",
        )  # fmt: skip
        rows = [f'{token},{user},{token},"{group}"' for token, (user, group) in TOKENS.items()]
        (self.state / "tokens.csv").write_text("\n".join(rows) + "\n")
        for token in TOKENS:
            (self.state / f"{token}.kubeconfig").write_text(
                kubeconfig(token, self.state / "ca.crt")
            )

    def write_settings(self) -> None:
        settings = {
            "containerd.toml": CONTAINERD,
            "kubelet.yaml": KUBELET,
            "Corefile": COREFILE,
            "cni/10-bridge.conflist": CNI,
        }
        for name, text in settings.items():
            path = self.state / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for key, value in {
                "STATE": self.state,
                "CGROUP": self.cgroup,
                "PODS": PODS,
                "DNS": DNS_SERVICE,
            }.items():
                text = text.replace(f"@{key}@", str(value))
            path.write_text(text)

    def api_server(self) -> None:
        state = self.state
        self.program(
            "etcd", f"--data-dir={state}/etcd", "--unsafe-no-fsync",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn",
        )  # fmt: skip
        self.program(
            "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
            "--authorization-mode=Node,RBAC", f"--token-auth-file={state}/tokens.csv",
            f"--tls-cert-file={state}/ca.crt", f"--tls-private-key-file={state}/ca.key",
            f"--service-account-key-file={state}/sa.key",
            f"--service-account-signing-key-file={state}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICES}", f"--advertise-address={NODE_ADDRESS}",
            "--allow-privileged", "--kubelet-preferred-address-types=InternalIP",
            f"--cert-dir={state}/certs", "--enable-admission-plugins=NodeRestriction",
            "--kubelet-client-certificate=" + f"{state}/ca.crt",
            f"--kubelet-client-key={state}/ca.key",
        )  # fmt: skip

    def controllers(self) -> None:
        state = self.state
        self.program(
            "kube-scheduler", f"--kubeconfig={state}/scheduler.kubeconfig", "--leader-elect=false"
        )
        self.program(
            "kube-controller-manager", f"--kubeconfig={state}/controllers.kubeconfig",
            "--leader-elect=false", f"--service-account-private-key-file={state}/sa.key",
            f"--root-ca-file={state}/ca.crt",
            "--use-service-account-credentials", f"--cluster-cidr={PODS}",
            "--allocate-node-cidrs=false", f"--flex-volume-plugin-dir={state}/volume-plugins",
            "--node-monitor-grace-period=15s", "--node-monitor-period=2s",
        )  # fmt: skip

    def node_programs(self) -> None:
        state = self.state
        self.program(
            "kubelet", f"--kubeconfig={state}/kubelet.kubeconfig", f"--config={state}/kubelet.yaml",
            f"--root-dir={state}/kubelet", f"--hostname-override={NODE}",
            f"--node-ip={NODE_ADDRESS}", f"--cert-dir={state}/kubelet-certs",
        )  # fmt: skip
        self.program(
            "kube-proxy", f"--kubeconfig={state}/proxy.kubeconfig", "--proxy-mode=nftables",
            "--conntrack-max-per-core=0", f"--hostname-override={NODE}", f"--cluster-cidr={PODS}",
        )  # fmt: skip
        self.program("coredns", "-conf", f"{state}/Corefile")

    def name_service(self) -> None:
        """CoreDNS runs beside the cluster, not in it: a Service without selector leads to it."""
        path = self.state / "dns.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": DNS_OBJECTS}))
        run(
            self.programs / "kubectl",
            "--kubeconfig",
            self.state / "admin.kubeconfig",
            "apply",
            "-f",
            path,
        )

    def import_pause_image(self) -> None:
        """A pause image of our own: busybox `sleep` from scratch."""
        archive = self.state / "pause.tar"
        layer = self.state / "pause"
        (layer / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/busybox", layer / "bin/sleep")
        oci_image(layer, archive, "localhost/pause:test", ["/bin/sleep", "2147483647"])
        run(
            "ctr", "-a", self.state / "containerd.sock", "-n", "k8s.io", "images", "import", archive
        )


def cgroup_roots() -> list[Path]:
    """Where a cgroup can be made: every v1 hierarchy, or the one of v2."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if (path / "cgroup.procs").exists()]


def in_memory(folder: Path) -> None:
    """What is written there is gone with the cluster, at once: 50,000 files of an image take a disk
    45 s to remove.
    """
    folder.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder)


def private_folders(state: Path) -> None:
    """Where programs write whatever they are told: sockets and locks in /run, logs of pods in
    /var/log, addresses in /var/lib/cni.
    """
    for folder in ("/run", "/var/log"):
        in_memory(Path(folder))
    above = state / "var-lib"
    in_memory(above)
    for part in ("upper", "work"):
        (above / part).mkdir()
    options = f"lowerdir=/var/lib,upperdir={above}/upper,workdir={above}/work"
    run("mount", "-t", "overlay", "-o", options, "overlay", "/var/lib")


def available_memory_bytes() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def network() -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "route", "add", "default", "via", NODE_ADDRESS, "dev", "node0")
    for setting in ("net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet"):
        Path("/proc/sys", setting).write_text("1")


def run(*command: object) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr[-500:]}"
        )


def kubeconfig(token: str, authority: Path) -> str:
    cluster = {
        "name": "test",
        "cluster": {
            "server": f"https://{NODE_ADDRESS}:6443",
            "certificate-authority": str(authority),
        },
    }
    user = {"name": token, "user": {"token": token}}
    context = {"name": "test", "context": {"cluster": "test", "user": token}}
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [user],
        "contexts": [context],
        "current-context": "test",
    }
    return json.dumps(whole)


def oci_image(root: Path, archive: Path, name: str, entrypoint: list[str]) -> None:
    """A one-layer docker-format archive of a folder."""
    import hashlib
    import tarfile

    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as file:
        file.add(root, arcname=".")
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "elasticdl tests"}],
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    for text, member in ((config, "config.json"), (manifest, "manifest.json")):
        (archive.parent / member).write_text(json.dumps(text))
    with tarfile.open(archive, "w") as file:
        for path, member in (
            (archive.parent / "config.json", "config.json"),
            (layer, "layer.tar"),
            (archive.parent / "manifest.json", "manifest.json"),
        ):
            file.add(path, arcname=member)


CONTAINERD = """
version = 2
root = "@STATE@/containerd"
state = "@STATE@/containerd-state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "@STATE@/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "@STATE@/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "@STATE@/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
KUBELET = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /@CGROUP@
cgroupsPerQOS: true
failSwapOn: false
containerRuntimeEndpoint: unix://@STATE@/containerd.sock
clusterDNS: ["@DNS@"]
clusterDomain: cluster.local
evictionHard: {}
enforceNodeAllocatable: []
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: "@STATE@/ca.crt"}
authorization: {mode: Webhook}
resolvConf: ""
volumePluginDir: @STATE@/volume-plugins
registerWithTaints: []
maxPods: 110
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 12
# Without the plugins of devices, whose manager may crash the kubelet while it starts (1.34.4).
featureGates: {DynamicResourceAllocation: false}
"""
COREFILE = """
.:53 {
    bind 10.240.0.1
    errors
    kubernetes cluster.local in-addr.arpa {
        kubeconfig @STATE@/dns.kubeconfig test
    }
    loadbalance
}
"""
CNI = json.dumps(
    {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": False,
             "hairpinMode": True,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/16"}]],
                      "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "@STATE@/cni-addresses"}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
)  # fmt: skip


_DNS_PORTS = [
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
]
DNS_OBJECTS = [
    {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS_SERVICE, "ports": _DNS_PORTS},
    },
    {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "ports": _DNS_PORTS,
        "metadata": {"name": "kube-dns", "namespace": "kube-system",
                     "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}}],
    },
]  # fmt: skip


def main() -> None:
    for quiet in (signal.SIGINT, signal.SIGTERM):
        signal.signal(quiet, lambda *_: os._exit(0))
    state, programs, cgroup, images, gangs = sys.argv[1:6]
    node = Node(Path(state), Path(programs), cgroup, Path(images), gangs=bool(gangs))
    try:
        node.start() if images else node.prepare()
    except (OSError, RuntimeError) as error:
        print(f"FAILED {error}", flush=True)
        return
    print("READY", flush=True)
    for line in sys.stdin:
        try:
            node.order(*line.split())
            print("DONE", flush=True)
        except (KeyError, TypeError, ValueError, OSError) as error:
            print(f"FAILED {error!r}", flush=True)


if __name__ == "__main__":
    main()
