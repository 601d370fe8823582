"""The bridge: a JVM with YARN's own client classes, which is a child of this process.

The classes are among PySpark's jars, and speak every protocol of YARN, high availability of its ResourceManager
included. The JVM listens on loopback, requires a secret that it prints once, and ends when its stdin closes: with this
process, however that ends. If the JVM ends first, every call raises Unavailable; a JobManager then ends as well,
because YARN accepts the registration of an attempt only once. One that hangs is ended by `bridge_watch`.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final, TypeVar, cast

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from flintlock.host.processes.daemon_threads import DaemonThreads
from flintlock.model.errors import FlintlockError, NotFound, Refused, Unavailable
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.jvm import spark_home
from flintlock.spark.engine.metrics import JavaObject

T = TypeVar("T")

#: Where Hadoop's configuration is: the first that is set.
CONF_VARIABLES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")

_JARS: Final = (
    "py4j-*",
    "hadoop-client-api-*",
    "hadoop-client-runtime-*",
    "slf4j-api-*",
    "log4j-*",
    "jcl-over-slf4j-*",
)
_FLAGS: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
_KEPT_LINES: Final = 40
_END_S: Final = 5.0
_STACK: Final = re.compile(r"\n\s+at ")  # exceptions of YARN's servers bring their stack along in the message
_EXCEPTIONS: Final = "org.apache.hadoop.yarn.exceptions."
_NOT_FOUND: Final = frozenset(
    {
        f"{_EXCEPTIONS}ApplicationNotFoundException",
        f"{_EXCEPTIONS}ApplicationAttemptNotFoundException",
        "java.io.FileNotFoundException",
    }
)
_REFUSED: Final = (_EXCEPTIONS, "org.apache.hadoop.security.AccessControlException")


class ReleasingClient(GatewayClient):
    """A client of the JVM that says in a thread of its own which objects are no longer used.

    Py4J does so where Python happens to collect them, in the event loop's thread, too: a JVM that pauses would hold it
    up.
    """

    def __init__(self, parameters: GatewayParameters) -> None:
        super().__init__(gateway_parameters=parameters)
        self._dropped: Final[SimpleQueue[str | None]] = SimpleQueue()
        self._thread: Final = threading.Thread(target=self._release, name="yarn-bridge-objects", daemon=True)
        self._thread.start()

    def garbage_collect_object(self, target_id: str) -> None:
        """Have an object released soon. Never blocks; may be called while the same thread is in here."""
        self._dropped.put(target_id)

    def end_releasing(self) -> None:
        """Release nothing from now on: the JVM ends."""
        self._dropped.put(None)

    def _release(self) -> None:
        while (target_id := self._dropped.get()) is not None:
            super().garbage_collect_object(target_id)


class YarnJvm:
    """The classes of YARN. `running_bridge` makes it. Threads may use it at the same time."""

    def __init__(self, gateway: JavaGateway, ended: Callable[[], str | None], kill: Callable[[], None]) -> None:
        self.jvm: Final[JavaObject] = gateway.jvm
        self.kill: Final = kill  # ends the JVM at once, also one that hangs: all calls raise Unavailable then
        self._gateway: Final = gateway
        self._ended: Final = ended
        self.records: Final[JavaObject] = self.jvm.org.apache.hadoop.yarn.api.records
        self.conf: Final[JavaObject] = self.call(self.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration)

    def check(self) -> None:
        """Return once the JVM answers, whatever else it does. Raises Unavailable."""
        self.call(lambda: self.jvm.java.lang.System.nanoTime())  # noqa: PLW0108 (looking it up asks the JVM as well)

    def array(self, java_class: JavaObject, items: Sequence[JavaObject]) -> JavaObject:
        """Return an array of Java."""
        made: JavaObject = cast("JavaObject", self._gateway).new_array(java_class, len(items))
        for index, item in enumerate(items):
            made[index] = item
        return made

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a method of YARN's classes. Raises NotFound, Refused, Unavailable with the text of its exception."""
        try:
            return function(*arguments)
        except Py4JJavaError as error:
            raise _translated(error.java_exception) from error
        except (Py4JError, Py4JNetworkError, OSError) as error:
            ended = self._ended()
            raise Unavailable(f"the bridge to YARN does not answer: {ended or error}") from error


def hadoop_conf_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of Hadoop's configuration. Raises Refused if none is set, or it does not exist."""
    for variable in CONF_VARIABLES:
        if environ.get(variable):
            found = Path(environ[variable]).expanduser().resolve()
            if not (found / "yarn-site.xml").is_file():
                raise Refused(f"{variable} is {found}, but there is no yarn-site.xml")
            return found
    raise Refused(f"{CONF_VARIABLES[0]} is not set: it names the directory with the yarn-site.xml of the cluster")


def start_bridge(environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the JVM, and do not wait for it: `running_bridge` takes it over. It ends with this process.

    Raises Refused if no Hadoop configuration is set, Unavailable if there is no Java.
    """
    conf_dir = hadoop_conf_dir(environ)
    jars = spark_home() / "jars"
    found = [str(path) for pattern in _JARS for path in sorted(jars.glob(f"{pattern}.jar"))]
    class_path = os.pathsep.join((str(conf_dir), *found))
    command = [find_java(environ).executable, *_FLAGS, "-cp", class_path, "py4j.GatewayServer"]
    command += ["--die-on-broken-pipe", "--enable-auth", "0"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env=dict(environ), text=True)  # fmt: skip


@contextmanager
def running_bridge(environ: Mapping[str, str], started: subprocess.Popen[str] | None = None) -> Generator[YarnJvm]:
    """Start the JVM, unless it was started, and yield its classes; it ends with the context.

    Raises as `start_bridge`, and Unavailable if it does not start.
    """
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with started or start_bridge(environ) as process:
        stdin, stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)  # both are pipes
        client: ReleasingClient | None = None
        gateway: JavaGateway | None = None
        reader = threading.Thread(target=_keep, args=(stdout, lines), name="yarn-bridge-output", daemon=True)

        def ended() -> str | None:
            code = process.poll()
            return None if code is None else f"its JVM has ended with {code}\n" + "".join(lines)

        try:
            port, secret = _read_gateway(stdout, lines)
            reader.start()
            parameters = GatewayParameters(port=port, auth_token=secret, auto_convert=True)
            client = ReleasingClient(parameters)
            gateway = JavaGateway(client, gateway_parameters=parameters)
            yield YarnJvm(gateway, ended, process.kill)
        finally:
            if client is not None:
                client.end_releasing()
            if gateway is not None:
                _shut_down(gateway)  # from then on it sends nothing when Python drops its references
            stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if reader.is_alive():
                reader.join(_END_S)


@contextmanager
def opening_bridge(
    environ: Mapping[str, str], started: subprocess.Popen[str] | None = None
) -> Generator[Callable[[], YarnJvm]]:
    """As `running_bridge`, when it is needed: yield what opens the bridge first, and then returns its classes.

    The first call must not come from two threads. If the context ends meanwhile, the JVM ends with this process.
    """
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(running_bridge(environ, started)))


def _shut_down(gateway: JavaGateway) -> None:
    """End the gateway, or give that up: a JVM that hangs does not answer, and is killed afterwards."""
    threads = DaemonThreads(1, "yarn-bridge-shutdown")
    with suppress(TimeoutError):
        threads.submit(gateway.shutdown).result(_END_S)
    threads.close(0.0)


def _read_gateway(output: IO[str], lines: deque[str]) -> tuple[int, str]:
    """Return port and secret, which the JVM prints first, after what Java may have to say. Raises Unavailable."""
    for line in output:
        if line.strip().isdecimal():
            return int(line), str(output.readline()).strip()
        lines.append(line)
    raise Unavailable("the JVM of the bridge to YARN does not start:\n" + "".join(lines))


def _keep(output: IO[str], lines: deque[str]) -> None:
    """Read the output of the JVM, so that it never waits for a reader; its end goes into messages."""
    lines.extend(output)


def _translated(exception: JavaObject) -> FlintlockError:
    name = str(exception.getClass().getName())
    text = _STACK.split(str(exception.getMessage() or name), maxsplit=1)[0].strip()
    if name in _NOT_FOUND:
        return NotFound(text)
    return Refused(text) if name.startswith(_REFUSED) else Unavailable(text)
