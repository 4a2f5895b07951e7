"""kube-apiserver and etcd of scripts/setup --kube, with Kubernetes' own authorization (RBAC).

Pods are not run: tests write their status.
"""

import contextlib
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request

GROUPS = {
    "v1": "api/v1",
    "rbac.authorization.k8s.io/v1": "apis/rbac.authorization.k8s.io/v1",
    "apiextensions.k8s.io/v1": "apis/apiextensions.k8s.io/v1",
    "inference.networking.k8s.io/v1": "apis/inference.networking.k8s.io/v1",
}
PLURALS = {
    "Pod": "pods",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
    "CustomResourceDefinition": "customresourcedefinitions",
    "InferencePool": "inferencepools",
}


class ApiServer:
    """`free_port`: a function. `tool`: the fixture."""

    def __init__(self, tool, stack, folder, free_port):
        programs = tool("etcd"), tool("kube-apiserver")
        self.folder, self.stack = folder, stack
        folder.mkdir()
        users = "admin-token,admin,1,system:masters\n" + "".join(
            f"{name}-token,system:serviceaccount:default:{name},{name},system:authenticated\n"
            for name in ("tandem-picker", "stranger")
        )
        (folder / "tokens").write_text(users, "utf-8")
        key = folder / "accounts.pem"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        client, peer, port = free_port(), free_port(), free_port()
        etcd = f"http://127.0.0.1:{client}"
        of_peer = f"http://127.0.0.1:{peer}"
        self._start(
            programs[0],
            f"--data-dir={folder}/etcd-data",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={of_peer}",
            f"--initial-advertise-peer-urls={of_peer}",
            f"--initial-cluster=default={of_peer}",
            "--unsafe-no-fsync",
        )
        self.process = self._start(
            programs[1],
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}/certificates",
            "--service-account-issuer=https://localhost",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder}/tokens",
            # It needs the controllers that make tokens.
            "--disable-admission-plugins=ServiceAccount",
        )
        self.url = f"https://127.0.0.1:{port}"
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.until(lambda: self.call("GET", "readyz", text=True) == "ok")
        self.until(lambda: self.call("GET", "api/v1/namespaces/default"))

    def _start(self, program, *flags):
        name = str(program).rsplit("/", 1)[1]
        out = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen([program, *flags], stdout=out, stderr=out, cwd=self.folder)
        self.stack.callback(process.wait, 60)
        self.stack.callback(process.kill)
        return process

    def until(self, condition):
        """Waits for what must come true; 120 s only bound a failure."""
        end = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            log = (self.folder / "kube-apiserver.log").read_text("utf-8", errors="replace")
            assert self.process.poll() is None and time.monotonic() < end, log[-4000:]
            time.sleep(0.05)

    def call(self, method, path, body=None, token="admin-token", text=False):
        kind = "merge-patch+json" if method == "PATCH" else "json"
        request = urllib.request.Request(
            f"{self.url}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": f"application/{kind}"},
            method=method,
        )
        with urllib.request.urlopen(request, context=self.context, timeout=60) as answer:
            content = answer.read().decode()
        return content if text else json.loads(content)

    @staticmethod
    def path_of(item):
        place = GROUPS[item["apiVersion"]]
        if item["kind"] != "CustomResourceDefinition":
            place += "/namespaces/default"
        return f"{place}/{PLURALS[item['kind']]}"

    def create(self, item):
        """Also its status, which the API server drops from a new object."""
        try:
            self.call("POST", self.path_of(item), item)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        if item["kind"] == "CustomResourceDefinition":
            # Its resources are served a little later.
            group, version = item["spec"]["group"], item["spec"]["versions"][0]["name"]
            plural = item["spec"]["names"]["plural"]
            self.until(
                lambda: self.call("GET", f"apis/{group}/{version}/namespaces/default/{plural}")
            )
        elif "status" in item:
            path = f"{self.path_of(item)}/{item['metadata']['name']}/status"
            self.call("PATCH", path, {"status": item["status"]})

    def delete(self, item):
        path = f"{self.path_of(item)}/{item['metadata']['name']}"
        self.call("DELETE", f"{path}?gracePeriodSeconds=0")

    def kubeconfig(self, user):
        named = {"name": "test"}
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{**named, "cluster": cluster}],
            "users": [{**named, "user": {"token": f"{user}-token"}}],
        }
