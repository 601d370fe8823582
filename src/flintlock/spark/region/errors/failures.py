"""Translates an exception into a Failure: which step, what went wrong, on which line of the user's code.

Spark reports an error in several places: an error class and SQL state, query contexts (a piece of SQL, or the file and
line where a DataFrame operation was called), the traceback of a Python worker as text inside a message, the JVM's
stack. This module sorts them. It requests nothing more from Spark: what Connect's client has fetched by the time an
exception arrives is enough.

The step that failed is inferred. The steps of a region become one plan, so an error at run time is traced back by what
it refers to: a fragment of one step's SQL, or a line inside one step's function; otherwise the output whose action
failed is named.
"""

from __future__ import annotations

import errno
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, Final

from msgspec import Struct

from flintlock.model.errors import NO_RETRY_NOTE, FlintlockError, NoRetry
from flintlock.model.ids import StepName
from flintlock.model.tasks import Failure, FailureKind, Frame
from flintlock.spark.environments import EnvironmentFailed
from flintlock.spark.region.errors.hints import hints, with_import_hint
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.errors.state_changes import state_change

MESSAGE_LIMIT: Final = 16 << 10
TRACE_LIMIT: Final = 64 << 10

_HOME: Final = str(Path(__file__).parents[3]) + "/"  # of flintlock
_STDLIB: Final = sysconfig.get_path("stdlib") + "/"
_PACKAGES: Final = re.compile(
    r"(?:site-packages|dist-packages|pyspark\.zip|py4j-[^/]*\.zip)/"
    r"(?:pyspark|py4j|grpc|google|cloudpickle|pyarrow|pandas|numpy)/"
)
_COMPILED: Final = re.compile(r"\.(?:pxi|pyx)$")
_INSTALLED: Final = re.compile(r"/(?:site-packages|dist-packages)/")
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)')
_MARKERS: Final = re.compile(r"\s*[~^]+\s*")
_REPEATED: Final = re.compile(r"\s*\[Previous line repeated \d+ more times?\]")
_RAISED: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)
_CALL_SITE: Final = re.compile(r"(?P<file>.+):(?P<line>\d+)")
_MEMORY: Final = (
    "java.lang.OutOfMemoryError",
    "SparkOutOfMemoryError",
    "UNABLE_TO_ACQUIRE_MEMORY",
    "OutOfMemoryException",  # Arrow's, in the JVM
    "Java heap space",
    "GC overhead limit exceeded",
    "Not enough memory to build and broadcast",
)
_IMPORT_ERRORS: Final = frozenset({"ImportError", "ModuleNotFoundError"})
_NO_SPACE: Final = "No space left on device"  # the operating system's words, which Java and Python both quote


class TaskError(Exception):
    """A failure that Flintlock itself detects and describes."""

    def __init__(self, kind: FailureKind, message: str, step: StepName | None = None, *, exception: str = "") -> None:
        super().__init__(message)
        self.kind: Final = kind
        self.step: Final = step
        self.exception: Final = exception  # what it is called, where users may look for that


class Interrupted(KeyboardInterrupt):
    """Raised in user code when its task is cancelled. Not an Exception: a broad `except` does not swallow it."""


class StepSources(Struct):
    """The code of the steps' functions and queries, by which an error is attributed to a step."""

    functions: dict[StepName, CodeType] = {}
    queries: dict[StepName, str] = {}


class _Python(Struct, frozen=True):
    """A traceback parsed from a text."""

    exception: str
    message: str
    frames: tuple[Frame, ...]
    no_retry: bool = False  # its type is, or inherits from, NoRetry


def failure_of(
    error: BaseException,
    step: StepName | None = None,
    sources: StepSources | None = None,
    *,
    in_user_code: bool = False,
) -> Failure:
    """Return the failure that this exception stands for. `step` was being built or executed when it was raised.

    `in_user_code`: it was raised while user code was loaded or ran, even if the traceback shows no line of it.
    """
    sources = sources or StepSources()
    spark = SparkError(error)
    worker = python_traceback(spark.message if spark.is_spark else "")
    contexts = spark.contexts()
    frames = _without_repeats(
        [
            *user_frames(error),
            *(worker.frames if worker else ()),
            *(frame for context in contexts for frame in _call_sites(context, sources)),
        ]
    )
    message, context = _plain(spark.message, contexts)
    message += "".join(f"\n{hint}" for hint in hints(spark, message))
    changed = state_change(spark.message) if spark.is_spark and worker is None else None
    if changed is not None:
        message = changed.message
    kind = kind_of(error, in_user_code=in_user_code or bool(frames), worker=worker.exception if worker else None)
    return Failure(
        kind=kind,
        permanent=kind is FailureKind.USER_CODE and _is_permanent(error),
        message=_cut(with_import_hint(worker.message if worker else message), MESSAGE_LIMIT),
        exception=worker.exception if worker else type_name(error),
        step=_step(error, step, frames, contexts, sources),
        frames=frames,
        error_class=spark.error_class if changed is None else changed.condition,
        query_context=context,
        stack_trace=_cut("".join(traceback.format_exception(error)), TRACE_LIMIT),
        jvm_stack_trace=_cut(spark.jvm_stack_trace, TRACE_LIMIT) if spark.jvm_stack_trace else None,
    )


def is_out_of_space(error: BaseException, printed: str = "") -> bool:
    """Return whether a disk is full: by an error, or by what a program that failed has printed."""
    full = any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in _with_causes(error))
    return full or _NO_SPACE in printed


def environment_failure(error: Exception) -> Failure:
    """Return the failure of a job whose Python environment cannot be built. What pip refuses, it refuses again."""
    if is_out_of_space(error, str(error)):
        kind = FailureKind.NO_SPACE
    else:
        kind = FailureKind.CONFIGURATION if isinstance(error, EnvironmentFailed) else FailureKind.RUNNER_LOST
    return failure_of(TaskError(kind, f"the job's Python environment cannot be built: {error}"), None)


def kind_of(error: BaseException, *, in_user_code: bool = False, worker: str | None = None) -> FailureKind:
    """Return what kind of failure an exception is. `worker` is the type that one of Spark's Python workers raised."""
    spark = SparkError(error)
    if isinstance(error, TaskError):
        return error.kind
    if any(SparkError(one).connection_lost for one in _with_causes(error)):
        return FailureKind.ENGINE_LOST  # also where user code wraps it in an exception of its own
    if isinstance(error, MemoryError) or (worker is not None and worker.endswith("MemoryError")):
        return FailureKind.OUT_OF_MEMORY
    if is_out_of_space(error) or (spark.is_spark and _NO_SPACE in spark.message):
        return FailureKind.NO_SPACE
    if not spark.is_spark:
        from_user = in_user_code or isinstance(error, Interrupted | ImportError | NoRetry)
        return FailureKind.USER_CODE if from_user else FailureKind.INTERNAL
    if worker is not None:
        return FailureKind.USER_CODE
    if any(sign in spark.message for sign in _MEMORY):
        return FailureKind.OUT_OF_MEMORY
    state = spark.sql_state or ""
    if type(error).__name__ in {"AnalysisException", "ParseException"} or state[:2] in {"42", "0A"}:
        return FailureKind.ANALYSIS
    if state_change(spark.message) is not None:
        return FailureKind.ANALYSIS  # of a batch that has failed: the type and the state are those of every such batch
    if state[:2] in {"22", "P0"} or not spark.from_server:
        return FailureKind.USER_CODE
    return FailureKind.SPARK_TASK


def _is_permanent(error: BaseException) -> bool:
    """Return whether user code fails the same way when it is run again, or has raised NoRetry to say so.

    An import that fails is permanent, and so is what Flintlock itself finds wrong with the code. An error of Flintlock
    that is not retryable is, too: a job that a program had submitted, for example, has failed.
    """
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case TaskError() | NoRetry() | ImportError():
                return True
            case FlintlockError():
                return not cause.retryable
            case SyntaxError():  # of a module, not of a text that was evaluated
                return not (cause.filename or "<").startswith("<")
            case _:
                spark = SparkError(cause)
                worker = python_traceback(spark.message) if spark.is_spark else None
                if worker is not None and (worker.no_retry or worker.exception in _IMPORT_ERRORS):
                    return True
        cause = cause.__cause__
    return False


def user_frames(error: BaseException) -> tuple[Frame, ...]:
    """Return the frames of the exception's traceback that are in user code, outermost first."""
    found = tuple(
        Frame(
            entry.filename,
            entry.lineno or 0,
            entry.name,
            (linecache.getline(entry.filename, entry.lineno or 0) or entry.line or "").strip(),
        )
        for entry in traceback.extract_tb(error.__traceback__)
        if is_user_source(entry.filename)
    )
    if isinstance(error, SyntaxError) and error.filename and is_user_source(error.filename):
        place = Frame(error.filename, error.lineno or 0, "<module>", (error.text or "").strip())
        return (*found, place)
    return found


def is_user_source(file: str) -> bool:
    """Return whether a source file is the user's: not of Flintlock, of PySpark and its dependencies, or of Python."""
    if file.startswith(("<frozen ", _HOME)) or _PACKAGES.search(file) or _COMPILED.search(file):
        return False
    return not file.startswith(_STDLIB) or _INSTALLED.search(file) is not None


def python_traceback(text: str) -> _Python | None:
    """Return the last traceback in a text, in the form in which Spark quotes those of Python workers, or None."""
    _, found, block = text.rpartition(_TRACEBACK)
    if not found:
        return None
    lines = block.lstrip("\n").split("\n")
    frames: list[Frame] = []
    rest: list[str] = []
    for line in lines:
        if match := _FRAME.fullmatch(line):
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
        elif frames and not rest and line.startswith("    "):
            if not frames[-1].source and not _MARKERS.fullmatch(line):
                frames[-1] = Frame(frames[-1].file, frames[-1].line, frames[-1].function, line.strip())
        elif line.strip() and (rest or not _REPEATED.fullmatch(line)):
            rest.append(line)
    # Without what the JVM appends to the worker's message
    raised = re.split(r"\n?\s*SQLSTATE: |\n\tat |\n\nJVM stacktrace:", "\n".join(rest))[0].strip()
    raised, no_retry, _ = raised.partition(f"\n{NO_RETRY_NOTE}")
    match = _RAISED.match(raised)
    return _Python(
        no_retry=bool(no_retry),
        exception=match["type"] if match else "Exception",
        message=(match["message"] or "").strip() if match else raised,
        frames=tuple(frame for frame in frames if is_user_source(frame.file)),
    )


def type_name(error: BaseException) -> str:
    """Return the exception's type as a user writes it: builtins and types of the script without a module."""
    if isinstance(error, TaskError):
        return error.exception
    kind = type(error)
    if kind.__module__ in {"builtins", "__main__"} or kind.__module__.startswith(("pyspark.errors", __name__)):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def code_at(file: str, line: int, codes: Iterable[CodeType]) -> CodeType | None:
    """Return the innermost of these functions, or of those defined in them, that contains this line."""
    for code in codes:
        if code.co_filename != file or not _first_line(code) <= line <= _last_line(code):
            continue
        return code_at(file, line, _inner(code)) or code
    return None


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the chain of its causes."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        yield found
        seen.add(id(found))
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _plain(message: str, contexts: list[Any]) -> tuple[str, str | None]:
    """Return the message without what other fields contain (plan, JVM stack, context), and the context.

    A context that names a line of user code is left out: the frame of that line shows it.
    """
    text = re.split(r"\n\nJVM stacktrace:\n|\n\tat ", message)[0].strip("\n")
    text = text.split(";\n")[0] if re.search(r";\n'?\w+", text) else text
    text, _, parsed = text.partition("\n\n== SQL ==\n")
    shown: list[str] = []
    for context in contexts:
        summary = _summary(context).strip("\n")
        if summary:
            text = text.replace(summary, "")
            if not list(_call_sites(context, StepSources())):
                shown.append(summary)
    text = re.sub(r"(SQLSTATE: \w+)(?:[;,]? \(?line \d+,? pos \d+\)?)?[;\s]*$", r"\1", text.strip())
    return text.strip(), "\n".join(shown) or parsed.strip("\n") or None


def _summary(context: Any) -> str:
    try:
        return str(context.summary() or "")
    except Exception:  # noqa: BLE001 - some kinds of context have no summary
        return ""


def _call_sites(context: Any, sources: StepSources) -> Iterator[Frame]:
    """Yield the lines of user code that a context of a DataFrame operation names."""
    try:
        sites = str(context.callSite() or "")
    except Exception:  # noqa: BLE001 - contexts of SQL have none, and raise
        return
    for site in sites.split("\n"):
        match = _CALL_SITE.fullmatch(site)
        if match and is_user_source(match["file"]):
            line = int(match["line"])
            code = code_at(match["file"], line, sources.functions.values())
            name = code.co_name if code else "<module>"
            yield Frame(match["file"], line, name, linecache.getline(match["file"], line).strip())


def _step(
    error: BaseException,
    step: StepName | None,
    frames: tuple[Frame, ...],
    contexts: list[Any],
    sources: StepSources,
) -> StepName | None:
    if isinstance(error, TaskError) and error.step is not None:
        return error.step
    if step in sources.functions or step in sources.queries:
        return step  # raised while that step was built
    for frame in reversed(frames):
        owners = [
            name for name, code in sources.functions.items() if code_at(frame.file, frame.line, (code,)) is not None
        ]
        if len(owners) == 1:
            return owners[0]
    for place in filter(None, map(_fragment, contexts)):
        fragment, start = place
        there = [name for name, query in sources.queries.items() if query[start:].startswith(fragment)]
        owners = there or [name for name, query in sources.queries.items() if fragment in query]
        if len(owners) == 1:
            return owners[0]
    same_file = [name for name, code in sources.functions.items() if any(code.co_filename == f.file for f in frames)]
    return same_file[0] if len(same_file) == 1 else step


def _fragment(context: Any) -> tuple[str, int] | None:
    """Return the fragment of SQL that a context refers to, and its offset (bound parameters may shift it)."""
    try:
        start = int(context.startIndex())
        return (str(context.fragment()), start) if start >= 0 else None
    except Exception:  # noqa: BLE001 - contexts of DataFrames have no index, and raise
        return None


def _without_repeats(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Drop repeated frames: PySpark also attaches a worker's traceback to the exception."""
    seen: dict[tuple[str, int], Frame] = {}
    for frame in frames:
        known = seen.get((frame.file, frame.line))
        if known is None or (frame.source and not known.source):
            seen[frame.file, frame.line] = frame
    return tuple(seen.values())


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _first_line(code: CodeType) -> int:
    return code.co_firstlineno


def _last_line(code: CodeType) -> int:
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(inner) for inner in _inner(code))])


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def sources_of(functions: Mapping[StepName, object], queries: Mapping[StepName, str]) -> StepSources:
    """Return the sources of the steps with these functions and queries."""
    codes = {name: code for name, function in functions.items() if (code := _code(function)) is not None}
    return StepSources(functions=codes, queries=dict(queries))


def _code(function: object) -> CodeType | None:
    inner: object = getattr(function, "__wrapped__", None)
    if inner is not None:
        return _code(inner)
    function = getattr(function, "func", function)  # functools.partial
    code: object = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
