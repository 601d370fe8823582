"""A stand-in for the API server of Kubernetes: real HTTP, and pods that are processes of this machine.

It has what Spark asks for: objects that are created, listed, watched and deleted. The one container of a pod is run as
the entry point of Spark's own image runs an executor. There is no image, no network of pods and no limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.cluster.processes import ending_with_this_process

from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.jvm import spark_home

_NAMESPACE: Final = "/api/v1/namespaces/default/"
_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


class KubernetesApi:
    """Objects by kind and name, and the processes of the pods. `running_kubernetes` makes it."""

    def __init__(self, home: Path) -> None:
        self.home: Final = home
        self.objects: Final[dict[tuple[str, str], dict[str, Any]]] = {}
        self.created: Final[list[dict[str, Any]]] = []  # pods, as they were sent
        self.ended: Final = threading.Event()  # ends what is watched
        self._processes: Final[dict[str, subprocess.Popen[bytes]]] = {}
        self._server: Final = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def master(self) -> str:
        """As `spark.master` has it."""
        return f"k8s://http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self._server.serve_forever, name="kubernetes-api", daemon=True).start()

    def stop(self) -> None:
        """End the server and all pods."""
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def executors(self) -> list[int]:
        """Return the processes of pods that run."""
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def create(self, kind: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Store an object, and run a pod."""
        name = str(sent["metadata"]["name"])
        metadata = {**sent["metadata"], "uid": f"uid-{name}", "namespace": "default", "resourceVersion": "1"}
        made = self.objects[kind, name] = {**sent, "metadata": metadata}
        if kind == "pods":
            made["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
            self.created.append(sent)
            self._processes[name] = self._run(name, sent["spec"]["containers"][0])
        return made

    def delete(self, kind: str, name: str) -> None:
        """Remove an object; kill a pod."""
        self.objects.pop((kind, name), None)
        if kind == "pods" and name in self._processes:
            self._processes[name].kill()

    def _run(self, name: str, container: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        environment = {each["name"]: str(each.get("value", "127.0.0.1")) for each in container["env"]}
        environment["SPARK_EXECUTOR_POD_NAME"] = name
        options = [value for key, value in environment.items() if key.startswith("SPARK_JAVA_OPT_")]
        java = find_java(os.environ).executable
        memory = environment["SPARK_EXECUTOR_MEMORY"]
        command = [java, *options, f"-Xmx{memory}", "-cp", str(spark_home() / "jars" / "*"), _BACKEND]
        for flag, variable in _ARGUMENTS.items():
            command += [flag, environment[variable]]
        with (self.home / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ending_with_this_process(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home,
                env={"PATH": os.environ["PATH"], **environment},
            )  # fmt: skip


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """List, watch or get."""
            url = urlsplit(self.path)
            kind, _, name = url.path.removeprefix(_NAMESPACE).partition("/")
            if "upgrade" in self.headers.get("Connection", "").lower():
                self._answer(503, {"kind": "Status", "status": "Failure", "code": 503})  # it is watched by HTTP then
            elif "watch=true" in url.query:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                api.ended.wait()
            elif name:
                found = api.objects.get((kind, name))
                self._answer(200 if found else 404, found or {"kind": "Status", "status": "Failure", "code": 404})
            else:
                items = [each for (of_kind, _), each in [*api.objects.items()] if of_kind == kind]
                self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})

        def do_POST(self) -> None:
            """Create."""
            kind = urlsplit(self.path).path.removeprefix(_NAMESPACE)
            self._answer(201, api.create(kind, json.loads(self._body())))

        def do_PATCH(self) -> None:
            """Change nothing."""
            kind, _, name = urlsplit(self.path).path.removeprefix(_NAMESPACE).partition("/")
            self._body()
            self._answer(200, api.objects.get((kind, name), {}))

        def do_DELETE(self) -> None:
            """Delete one, or all of a kind."""
            kind, _, name = urlsplit(self.path).path.removeprefix(_NAMESPACE).partition("/")
            self._body()
            for of_kind, each in [*api.objects]:
                if of_kind == kind and name in ("", each):
                    api.delete(kind, each)
            self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
            """Print nothing."""

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self, status: int, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextmanager
def running_kubernetes(home: Path) -> Generator[KubernetesApi]:
    """Serve while the context lasts; the logs of pods are in this directory."""
    home.mkdir()
    api = KubernetesApi(home)
    api.start()
    try:
        yield api
    finally:
        api.stop()
