"""Starts a Spark driver's JVM directly, and finds its py4j gateway.

The main class is Spark's own `SparkSubmit` with the resource `pyspark-shell`, as PySpark starts it, so that packages,
jars, master and deploy settings mean what they mean there; only the launcher scripts in front of it are left out. What
they do for a driver (heap, extra options, extra class path, configuration directories) is done here. The same start
serves the shared engine, which adds the Connect server as a plugin, and a dedicated driver, which does not.

Settings go in a file that only its owner can read, not on the command line: keys of object stores are among them, and
every user of a machine can read the command lines of all its processes.

Three mechanisms make the JVM die with its parent: the kernel ties it (`children`), it exits when its stdin closes, and
it is recorded in the run directory.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Final

from msgspec import Struct

from flintlock.host.logs.log_tail import read_tail, size_of
from flintlock.host.processes.children import forget_child, record_child, spawn
from flintlock.model.errors import Unavailable
from flintlock.spark.engine.executors.demand import has_executors
from flintlock.spark.engine.java import Java, java_flags

MIB: Final = 1 << 20
_STDERR: Final = 2
DEFAULT_HEAP_BYTES: Final = 1024 * MIB

#: From this size on, the pauses of a stop-the-world collector would be noticed.
LARGE_HEAP_BYTES: Final = 4096 * MIB

#: Four times Java's default, as Spark's own tests have it: a plan or a lineage is walked by recursion, and with the
#: default about 300 steps end in a StackOverflowError. Only what a thread uses of its stack takes memory.
STACK_SIZE: Final = "-Xss4m"

_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC")

#: How long a JVM may take until its gateway is open, including the download of packages.
GATEWAY_TIMEOUT_S: Final = 300.0
GATEWAY_POLL_S: Final = 0.01

#: How long a JVM may take to end by itself, shutdown hooks included.
EXIT_S: Final = 3.0

#: Since this Java, archives also hold linked classes and profiles, and have flags of their own.
AHEAD_OF_TIME_SINCE: Final = 25

#: Characters that have to be escaped in a key and in a value of a properties file.
KEY_SPECIAL: Final = "\\=: #!"
VALUE_SPECIAL: Final = "\\"

#: The last line in the log of a captured driver, and how long it is waited for.
DRIVER_ENDED: Final = "[flintlock: the job's own Spark driver has ended]"
CAPTURE_S: Final = 5.0
CAPTURE_POLL_S: Final = 0.01

#: How much of the end of a log is searched for the cause of death.
LOG_TAIL_BYTES: Final = 64 * 1024
LOG_TAIL_LINES: Final = 12

#: What a JVM prints last that ends for want of memory (ExitOnOutOfMemoryError).
_OUT_OF_MEMORY: Final = "Terminating due to java.lang.OutOfMemoryError"

#: Where the report of a JVM that gives up begins; it continues while lines begin with its sign.
_CRASH_SIGN: Final = "#"
_CRASH: Final = re.compile(r"# (A fatal error has been detected by|There is insufficient memory for) the Java")

#: What is logged: warnings, to stderr. ErrorUtils is silent because it logs, with its stack, every error that a Connect
#: client receives anyway, ExecuteGrpcResponseSender because it warns of every operation that is cancelled, and
#: NativeCodeLoader because it warns on every machine without Hadoop's native library.
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %p %c{1}: %m%n%ex
logger.errors.name = org.apache.spark.sql.connect.utils.ErrorUtils
logger.errors.level = off
logger.senders.name = org.apache.spark.sql.connect.execution.ExecuteGrpcResponseSender
logger.senders.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


#: What relative paths of a JVM without a working directory start with: nothing can be read or written below it.
NO_DIRECTORY_ROOT: Final = "/dev/null"
NO_DIRECTORY: Final = f"{NO_DIRECTORY_ROOT}/no-directory-for-relative-paths"


class JvmSettings(Struct, frozen=True, kw_only=True):
    """How one driver's JVM is started."""

    java: Java
    conf: dict[str, str]  # spark.*, whatever SparkSubmit understands
    scratch_dir: str  # the JVM's own: settings, temporary files, Spark's local directories; need not exist
    log_file: str  # for what Spark logs and the JVM prints; where empty: this process's own output
    log_reader: int = -1  # an open descriptor of the log, where this process writes to it but cannot open it
    captured: bool = False  # it prints into this process's own output, which another process writes to the log
    run_dir: str  # where the process is recorded; where empty: nowhere
    name: str = "jvm"  # the record's
    heap_bytes: int = DEFAULT_HEAP_BYTES  # unless conf has spark.driver.memory
    python: str  # of Spark's Python workers
    working_dir: str = ""  # relative paths in jobs start here; where empty: they are refused
    environment: dict[str, str]  # the JVM's, and so that of the Python workers
    class_archive: str = ""  # a file of `class_archive` for this Java and this Spark; none where empty
    record_archive: str = ""  # write one there when the JVM ends, which then takes a minute


class Gateway(Struct, frozen=True, kw_only=True):
    """The port on which a JVM listens for py4j, and the secret that it requires."""

    port: int
    secret: str


class JvmDied(Unavailable):
    """The JVM ended; the message is the cause."""


def spark_home() -> Path:
    """Return where PySpark keeps Spark itself, without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("PySpark is not installed")
    return Path(spec.submodule_search_locations[0])


class DriverJvm:
    """A running JVM. Made by `start_jvm`."""

    def __init__(
        self, process: subprocess.Popen[bytes], settings: JvmSettings, record: Path | None, *, log_begin: int = 0
    ) -> None:
        self.process: Final = process
        self._settings: Final = settings
        self._record: Final = record
        self._log_begin: Final = log_begin  # how long the log was when the process started

    def gateway(self) -> Gateway:
        """Wait until the JVM accepts connections. Raises JvmDied with the cause if it ends instead."""
        path = _gateway_file(self._settings)
        give_up_s = time.monotonic() + GATEWAY_TIMEOUT_S
        while not path.is_file():
            try:
                self.process.wait(GATEWAY_POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > give_up_s:
                    raise JvmDied(f"the JVM opened no gateway within {GATEWAY_TIMEOUT_S:.0f} s") from None
            else:
                raise JvmDied(self.cause_of_death())
        content = path.read_bytes()
        path.unlink()  # it contains the secret
        size = int.from_bytes(content[4:8], "big")
        return Gateway(port=int.from_bytes(content[:4], "big"), secret=content[8 : 8 + size].decode())

    def wait(self) -> int:
        """Wait for its end and return the exit code, or the negated number of the signal."""
        code = self.process.wait()
        forget_child(self._record)
        return code

    def ends_within(self, timeout_s: float) -> bool:
        """Return whether it ends within this time, as soon as it does."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout_s: float = EXIT_S) -> None:
        """End it: closing its stdin makes it exit; one that takes longer is killed. Idempotent."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if not self.ends_within(timeout_s):
            self.process.kill()
        self.wait()

    def cause_of_death(self, *, served_jobs: bool = False) -> str:
        """Return why it ended, from exit code and log; of a log that jobs have shared, only what is about the end."""
        settings = self._settings
        opened = settings.log_reader if settings.log_reader >= 0 else None
        code = self.process.wait()
        if settings.captured and settings.log_file:
            note_in_output(DRIVER_ENDED, Path(settings.log_file))
        return cause_of_death(code, Path(settings.log_file), opened, log_begin=self._log_begin, served_jobs=served_jobs)


def start_jvm(settings: JvmSettings) -> DriverJvm:
    """Start the JVM without waiting for it. The calling process must have one thread; see `children.spawn`."""
    scratch = Path(settings.scratch_dir)
    # Not the scratch directory itself, where Python workers could overwrite Spark's own files.
    working_dir = Path(settings.working_dir or scratch / "relative")
    for directory in (scratch / "tmp", scratch / "local", working_dir):
        directory.mkdir(parents=True, exist_ok=True)
    scratch.chmod(0o700)  # the gateway's secret passes through it
    gateway_file = _gateway_file(settings)
    gateway_file.unlink(missing_ok=True)
    _write_private(scratch / "log4j2.properties", _LOGGING)
    _write_private(scratch / "spark.properties", java_properties(settings.conf))
    log = _open_log(settings)
    log_begin = _log_size(settings)
    try:
        process = spawn(
            jvm_command(settings),
            environment=_environment(settings),
            directory=working_dir,
            output=log,
        )
    except OSError as error:
        raise Unavailable(f"cannot start {settings.java.executable}: {error.strerror or error}") from error
    finally:
        os.close(log)
    record = record_child(Path(settings.run_dir), settings.name, process.pid) if settings.run_dir else None
    return DriverJvm(process, settings, record, log_begin=log_begin)


def jvm_command(settings: JvmSettings) -> tuple[str, ...]:
    """Return the command line; the user's options come last and take precedence."""
    conf, java, scratch = settings.conf, settings.java, Path(settings.scratch_dir)
    jars = str(spark_home() / "jars" / "*")
    places = (conf.get("spark.driver.extraClassPath"), settings.environment.get("SPARK_CONF_DIR"), jars)
    configured = (settings.environment.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))
    wanted = tuple(
        option for key in ("defaultJavaOptions", "extraJavaOptions")
        for option in shlex.split(conf.get(f"spark.driver.{key}", ""))
    )  # fmt: skip
    return (
        java.executable,
        *java_flags(java.major, has_vector_module=java.has_vector_module),
        f"-Xmx{conf.get('spark.driver.memory') or f'{settings.heap_bytes // MIB}m'}",
        *collector_flags(settings, wanted),
        STACK_SIZE,
        "-XX:+ExitOnOutOfMemoryError",  # an engine that ran out of memory is restarted, not left half working
        f"-Djava.io.tmpdir={scratch / 'tmp'}",
        *(() if settings.working_dir else (f"-Duser.dir={NO_DIRECTORY}",)),
        f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
        *archive_flags(settings),
        *wanted,
        "-cp",
        os.pathsep.join(place for place in (*places, *configured) if place),
        "org.apache.spark.deploy.SparkSubmit",
        "--properties-file",
        str(scratch / "spark.properties"),
        "--load-spark-defaults",
        "pyspark-shell",
    )


def collector_flags(settings: JvmSettings, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the throughput collector for a small heap; nothing where the user has chosen a collector.

    Queries then take a tenth less time than with Java's default, which pays for short pauses in large heaps.
    """
    if "spark.driver.memory" in settings.conf or settings.heap_bytes >= LARGE_HEAP_BYTES:
        return ()
    return () if any(_COLLECTOR.fullmatch(option) for option in wanted) else ("-XX:+UseParallelGC",)


def archive_flags(settings: JvmSettings) -> tuple[str, ...]:
    """Return what makes the JVM use, or write, an archive of loaded and linked classes (Java 25: and of profiles)."""
    ahead_of_time = settings.java.major >= AHEAD_OF_TIME_SINCE
    # Otherwise the JVM logs each class that it leaves out.
    quiet = f"-Xlog:{'aot*' if ahead_of_time else 'cds'}=off"
    if settings.record_archive:
        return (f"-XX:{'AOTCacheOutput' if ahead_of_time else 'ArchiveClassesAtExit'}={settings.record_archive}", quiet)
    if settings.class_archive and Path(settings.class_archive).is_file():
        return (f"-XX:{'AOTCache' if ahead_of_time else 'SharedArchiveFile'}={settings.class_archive}", quiet)
    return ()


def java_properties(conf: Mapping[str, str]) -> str:
    """Return the settings as a Java properties file that reads back as exactly them."""

    def escaped(text: str, special: str) -> str:
        raw = text.encode("utf-16-be", errors="surrogatepass")
        units = (int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2))
        return "".join(
            f"\\u{unit:04x}" if not 0x20 <= unit <= 0x7E else f"\\{chr(unit)}" if chr(unit) in special else chr(unit)
            for unit in units
        )

    return "".join(f"{escaped(key, KEY_SPECIAL)}={escaped(value, VALUE_SPECIAL)}\n" for key, value in conf.items())


def cause_of_death(
    code: int, log_file: Path, opened: int | None = None, *, log_begin: int = 0, served_jobs: bool = False
) -> str:
    """Return why a JVM with this exit code ended, with the last lines of its log, `opened` if it cannot be opened.

    What was in the log before, `log_begin` bytes, belongs to an earlier JVM. The last lines of one that served jobs are
    the output of those jobs, which other users must not see: only the report of a JVM that gave up is taken from them.
    """
    log = log_file if opened is None else opened
    written = size_of(log_file) if opened is None else os.fstat(opened).st_size
    own = written - log_begin if written >= log_begin else written  # a shorter log has been replaced
    lines = read_tail(log, min(LOG_TAIL_BYTES, own)).splitlines()
    memory = next((line for line in reversed(lines) if "java.lang.OutOfMemoryError" in line), None)
    if served_jobs:  # which may have printed it
        memory = next((line for line in reversed(lines) if line.startswith(_OUT_OF_MEMORY)), None)
    if memory is not None and code in (1, 3, 52):  # ExitOnOutOfMemoryError; Spark's own code for it
        kind = memory.partition("java.lang.OutOfMemoryError")[2].lstrip(": ").strip()
        how = f"the JVM ran out of memory (java.lang.OutOfMemoryError{f': {kind}' if kind else ''})"
    elif code == -9:
        how = "the JVM was killed by SIGKILL (by hand, or by the kernel because memory ran out)"
    elif code < 0:
        how = f"the JVM was killed by signal {-code}"
    else:
        how = f"the JVM ended with exit code {code}"
    if served_jobs:
        report = "\n".join(_crash_report(lines))
        return f"{how}; its log is {log_file}" + (f", and says:\n{report}" if report else "")
    last = "\n".join(lines[-LOG_TAIL_LINES:]).strip()
    return f"{how}; the end of {log_file}:\n{last}" if last else how


def _crash_report(lines: Sequence[str]) -> list[str]:
    """Return the first lines of the last report in a log of a JVM that gave up."""
    begins = [number for number, line in enumerate(lines) if _CRASH.match(line)]
    if not begins:
        return []
    report = takewhile(lambda line: line.startswith(_CRASH_SIGN), lines[begins[-1] :])
    return [text for line in report if (text := line.lstrip("# ").rstrip())][:LOG_TAIL_LINES]


def note_in_output(note: str, log_file: Path, *, patience_s: float = CAPTURE_S) -> bool:
    """Print a line, and wait until it is in the log: then everything that was printed before it is there, too.

    Returns False after `patience_s`, for a log that is full or cannot be written.
    """
    os.write(_STDERR, f"{note}\n".encode())
    give_up_s, pause = time.monotonic() + patience_s, Event()
    while note not in read_tail(log_file, LOG_TAIL_BYTES):
        if time.monotonic() > give_up_s:
            return False
        pause.wait(CAPTURE_POLL_S)
    return True


def _open_log(settings: JvmSettings) -> int:
    """Return a descriptor for the JVM's output: that of this process, where it writes to the log already."""
    if settings.captured or settings.log_reader >= 0 or not settings.log_file:
        return os.dup(_STDERR)
    log_file = Path(settings.log_file)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    return os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _log_size(settings: JvmSettings) -> int:
    """Return how long the log is that the JVM appends to; 0 for that of a job, which is about the job as a whole."""
    if settings.captured:
        return 0
    return os.fstat(settings.log_reader).st_size if settings.log_reader >= 0 else size_of(settings.log_file)


def _gateway_file(settings: JvmSettings) -> Path:
    return Path(settings.scratch_dir) / "gateway"


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _environment(settings: JvmSettings) -> dict[str, str]:
    """Return the JVM's environment: the given one, with what Spark's scripts would set."""
    ours = {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": settings.conf.get("spark.pyspark.python") or settings.python,
        "PYSPARK_DRIVER_PYTHON": settings.python,
        "PYTHONHASHSEED": "0",  # or partitioning by strings in RDDs would differ from worker to worker
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(_gateway_file(settings)),
    }
    if "spark.local.dir" not in settings.conf:
        ours["SPARK_LOCAL_DIRS"] = str(Path(settings.scratch_dir) / "local")
    if not has_executors(settings.conf.get("spark.master", "local")):
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"  # the driver is used from this machine only
    if extra := settings.conf.get("spark.driver.extraLibraryPath"):
        ours["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (extra, settings.environment.get("LD_LIBRARY_PATH"))))
    return {**settings.environment, **ours}
