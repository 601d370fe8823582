"""A failure as text, the user's own part first.

What a user needs is on top: which step, which error, which of their lines. Spark's error class and the fragment of the
query that it refers to follow; the stack traces of Python and the JVM are shown only with `verbose`.
"""

from __future__ import annotations

from collections.abc import Iterator

from flintlock.model.tasks import Failure, Frame

_INDENT = "  "
_LOGGED_CHARACTERS = 500


def render(failure: Failure, *, verbose: bool = False) -> str:
    """Return the failure as lines of plain text, without a newline at the end. Equal failures give equal texts."""
    return "\n".join(_lines(failure, verbose=verbose))


def headline(failure: Failure) -> str:
    """Return the failure in one line: step, type and the first line of the message."""
    first = failure.message.strip().partition("\n")[0]
    place = f"step {failure.step!r}: " if failure.step is not None else ""
    return f"{place}{_typed(failure, first)}"


def log_facts(failure: Failure) -> dict[str, str]:
    """Return the failure as keys of a log line: kind and message, and the step and the user's line if they are known.

    The message is its first line, and no longer than an operator reads.
    """
    facts = {"kind": failure.kind.value}
    if failure.step is not None:
        facts["step"] = failure.step
    if failure.frames:  # the innermost one that is the user's
        frame = failure.frames[-1]
        facts["line"] = f"{frame.file}:{frame.line}"
    message = _typed(failure, failure.message.strip().partition("\n")[0])
    facts["message"] = message if len(message) <= _LOGGED_CHARACTERS else f"{message[:_LOGGED_CHARACTERS]}…"
    return facts


def _lines(failure: Failure, *, verbose: bool) -> Iterator[str]:
    place = f"Step {failure.step!r} failed" if failure.step is not None else "The task failed"
    yield f"{place} ({failure.kind.value})"
    yield from _indented(_typed(failure, failure.message.strip()))
    if failure.query_context:
        yield ""
        yield from _indented(failure.query_context.strip("\n"))
    if failure.frames:
        yield ""
        for frame in failure.frames:
            yield from _frame(frame)
    if failure.error_class is not None and failure.error_class not in failure.message:
        yield ""
        yield f"{_INDENT}Spark's error class: {failure.error_class}"
    if verbose and failure.stack_trace:
        yield from ("", f"{_INDENT}Python stack trace:")
        yield from _indented(failure.stack_trace.strip("\n"), depth=2)
    if verbose and failure.jvm_stack_trace:
        yield from ("", f"{_INDENT}JVM stack trace:")
        yield from _indented(failure.jvm_stack_trace.strip("\n"), depth=2)


def _typed(failure: Failure, message: str) -> str:
    if not failure.exception:
        return message
    return f"{failure.exception}: {message}" if message else failure.exception


def _frame(frame: Frame) -> Iterator[str]:
    yield f'{_INDENT}File "{frame.file}", line {frame.line}, in {frame.function}'
    if frame.source.strip():
        yield f"{_INDENT}{_INDENT}{frame.source.strip()}"


def _indented(text: str, depth: int = 1) -> Iterator[str]:
    for line in text.split("\n"):
        yield f"{_INDENT * depth}{line.rstrip()}".rstrip()
