"""A running Envoy: its start, its statistics, and clients of it."""

import contextlib
import http.client
import json
import re
import socket
import ssl
import subprocess
import time
import urllib.request

import grpc

from tests.attack.harness import Client


def address_of(where):
    host, port = where.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


class Proxy:
    def __init__(self, admin, certificate):
        self.admin, self.certificate = admin, certificate
        self.clients = []
        listeners = json.loads(self.ask("/listeners?format=json"))["listener_statuses"]
        (listener,) = (found for found in listeners if found["name"] == "tandem")
        self.port = listener["local_address"]["socket_address"]["port_value"]

    def ask(self, path):
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=30) as answer:
            return answer.read().decode()

    def stat(self, name):
        (value,) = re.findall(rf"^{re.escape(name)}: (\d+)$", self.ask("/stats"), re.MULTILINE)
        return int(value)

    def connect(self, *protocols):
        context = ssl.create_default_context(cafile=self.certificate / "tls.crt")
        context.set_alpn_protocols(protocols)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        return context.wrap_socket(plain, server_hostname="localhost")

    def client(self, api):
        """One that retries nothing."""
        client = Client("unknown:1", api)
        client.close()
        credentials = grpc.ssl_channel_credentials((self.certificate / "tls.crt").read_bytes())
        options = [("grpc.enable_retries", 0), ("grpc.ssl_target_name_override", "localhost")]
        client.channel = grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options)
        client.stub = api.services.GenerationStub(client.channel)
        self.clients.append(client)
        return client

    def close(self):
        for client in self.clients:
            client.close()

    def get(self, path, headers=None, body=None):
        """(status, body) by HTTP/1.1, as OpenAI's clients ask; a POST where there is a body."""
        context = ssl.create_default_context(cafile=self.certificate / "tls.crt")
        connection = http.client.HTTPSConnection(
            "localhost", self.port, context=context, timeout=60
        )
        with contextlib.closing(connection):
            kind = {} if body is None else {"Content-Type": "application/json"}
            method = "GET" if body is None else "POST"
            connection.request(method, path, body, {**kind, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()


def start_envoy(stack, program, folder, certificate, members):
    """Runs `folder`/envoy.yaml until `stack` closes. `members`: healthy servers to wait for, by cluster."""
    admin = folder / "admin"
    command = [program, "--config-path", folder / "envoy.yaml", "--concurrency", "1"]
    command += ["--admin-address-path", admin, "--disable-hot-restart"]
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(process.wait, 60)
    stack.callback(process.kill)
    until(lambda: admin.exists() and admin.read_text(), process, folder)
    proxy = None

    def healthy():
        nonlocal proxy
        with contextlib.suppress(OSError, ValueError, KeyError):
            proxy = proxy or Proxy(admin.read_text().strip(), certificate)
            return all(
                proxy.stat(f"cluster.{name}.membership_healthy") == count
                for name, count in members.items()
            )

    until(healthy, process, folder)
    stack.callback(proxy.close)
    return proxy


def until(condition, process, folder):
    """`60` only bounds a failure."""
    end = time.monotonic() + 60
    while not condition():
        log = (folder / "log").read_text()[-3000:]
        assert process.poll() is None and time.monotonic() < end, log
        time.sleep(0.05)
