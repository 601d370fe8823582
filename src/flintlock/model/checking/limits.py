"""The limits of a job document: what bounds the work and the memory that one submission can cause.

A document within these limits is decoded and checked in a fraction of a second, its graph is planned in milliseconds,
and its line in a listing is small. Client and server check the same limits; the server also bounds a request's body
before it decodes it. A stored graph is never checked against them: a job that an earlier version accepted still runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Final

from flintlock.model.checking.problems import Problem, abbreviated
from flintlock.model.jobgraph import JobGraph

MAX_DOCUMENT_BYTES: Final = 4 << 20
"""The bytes of a job document, as JSON. Files and pickled functions are artifacts, and do not count."""

MAX_DOCUMENT_VALUES: Final = 100_000
"""The values (lists, mappings, their items) in a document: one decoder call holds Python's lock until it is done."""

MAX_JOB_NAME: Final = 255
MAX_STEPS: Final = 1_000
MAX_STEP_INPUTS: Final = 1_000
MAX_JOB_INPUTS: Final = 10_000
"""The inputs of all steps together."""

MAX_CONFIG_KEYS: Final = 1_000
MAX_PARAMS: Final = 1_000
MAX_ARTIFACTS: Final = 1_000
MAX_KEY: Final = 255
"""The length of a configuration key and of a parameter's name."""

MAX_LABELS: Final = 16
MAX_LABEL: Final = 63
"""The length of a label's key and of its value. Labels are part of a job's line in the listing, which is in memory."""

MAX_ARTIFACT_NAME: Final = 1_024
MAX_VALUE: Final = 1 << 18
"""The length of a parameter's text and of a configuration value."""


def limit_problems(graph: JobGraph) -> Iterator[Problem]:
    """Yield a problem for each limit that the job exceeds; each names the limit."""
    if len(graph.name) > MAX_JOB_NAME:
        yield Problem(field="name", message=f"has {len(graph.name)} characters; at most {MAX_JOB_NAME} are allowed")
    yield from _counted("steps", graph.vertices, MAX_STEPS, "steps")
    yield from _counted("config", graph.config, MAX_CONFIG_KEYS, "settings")
    yield from _counted("params", graph.params, MAX_PARAMS, "parameters")
    yield from _counted("artifacts", graph.artifacts, MAX_ARTIFACTS, "artifacts")
    yield from _counted("packages", graph.packages, MAX_ARTIFACTS, "packages")
    yield from _counted("labels", graph.labels, MAX_LABELS, "labels")
    total = 0
    for vertex in graph.vertices:
        total += len(vertex.inputs)
        if len(vertex.inputs) > MAX_STEP_INPUTS:
            message = f"has {len(vertex.inputs)} inputs; at most {MAX_STEP_INPUTS} are allowed"
            yield Problem(step=vertex.name, field="inputs", message=message)
    if total > MAX_JOB_INPUTS:
        yield Problem(field="steps", message=f"have {total} inputs together; at most {MAX_JOB_INPUTS} are allowed")
    for artifact in graph.artifacts:
        if len(artifact.name) > MAX_ARTIFACT_NAME:
            message = f"the name {abbreviated(artifact.name)!r} has {len(artifact.name)} characters"
            yield Problem(field="artifacts", message=f"{message}; at most {MAX_ARTIFACT_NAME} are allowed")
    yield from _texts("config", graph.config.items())
    yield from _texts("params", graph.params.items())
    yield from _texts("labels", graph.labels.items(), longest_key=MAX_LABEL, longest_value=MAX_LABEL)


def _counted(field: str, items: Sized, limit: int, what: str) -> Iterator[Problem]:
    if len(items) > limit:
        yield Problem(field=field, message=f"there are {len(items)} {what}; at most {limit} are allowed")


def _texts(
    field: str, items: Iterable[tuple[str, object]], *, longest_key: int = MAX_KEY, longest_value: int = MAX_VALUE
) -> Iterator[Problem]:
    for key, value in items:
        if len(key) > longest_key:
            message = f"the key {abbreviated(key)!r} has {len(key)} characters; at most {longest_key} are allowed"
            yield Problem(field=field, message=message)
        if isinstance(value, str) and len(value) > longest_value:
            message = f"the value of {abbreviated(key)!r} has {len(value)} characters"
            yield Problem(field=field, message=f"{message}; at most {longest_value} are allowed")
