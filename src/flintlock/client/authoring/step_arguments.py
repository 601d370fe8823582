"""Arguments of the methods of `fl.Job`, checked and brought into the form that documents have."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from flintlock.client.authoring.package import with_location
from flintlock.model.checking.problems import Problem
from flintlock.model.errors import Invalid

INJECTED_ARGS: Final = ("params", "spark")
"""Keyword arguments that a step function may declare."""


def check_signature(function: object, step: str, inputs: int, place: str) -> None:
    """Raise Invalid if a step's function cannot be called with that many inputs."""
    if not callable(function):
        raise Invalid(with_location(place, f"@job.step needs a function, not {type(function).__name__}"))
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise Invalid(with_location(place, str(Problem(step=step, field="function", message="must return a DataFrame: neither async nor yield"))))  # fmt: skip # noqa: E501
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a function of C has no signature
    injected = {name: None for name in INJECTED_ARGS if name in signature.parameters}
    try:
        signature.bind(*[None] * inputs, **injected)
    except TypeError as error:
        many = "1 input" if inputs == 1 else f"{inputs} inputs"
        also = f" and {', '.join(injected)}" if injected else ""
        message = f"the function {signature} cannot be called with {many}{also}: {error}"
        raise Invalid(with_location(place, str(Problem(step=step, field="inputs", message=message)))) from None


def check_batch_function(function: object, step: str, place: str) -> None:
    """Raise Invalid if a function cannot be called with a batch and its id."""
    if not callable(function):
        raise Invalid(with_location(place, f"@job.foreach_batch needs a function, not {type(function).__name__}"))
    problem = None
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        problem = "must write the batch before it returns: neither async nor yield"
    else:
        try:
            inspect.signature(function).bind(None, 0)
        except TypeError as error:
            problem = f"the function {inspect.signature(function)} cannot be called with a batch and its id: {error}"
        except ValueError:
            return  # a function of C has no signature
    if problem is not None:
        raise Invalid(with_location(place, str(Problem(step=step, field="foreach_batch", message=problem))))


def watermark_document(given: object, step: str, place: str) -> object:
    """Return a watermark as documents have it. Raises Invalid if it is not a pair."""
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(cast("Sequence[object]", given)) != 2:
        message = f"is a column and a delay, such as ('ts', '10 minutes'), not {given!r}"
        raise Invalid(with_location(place, str(Problem(step=step, field="watermark", message=message))))
    column, delay = cast("Sequence[object]", given)
    return {"column": column, "delay": delay}


def as_list(inputs: object) -> list[Any]:
    """Return one input, or several, as a list."""
    return (
        list(cast("Iterable[Any]", inputs))
        if isinstance(inputs, Iterable) and not isinstance(inputs, str)
        else [inputs]
    )


def without_none(**values: object) -> dict[str, object]:
    """Return the values that are given."""
    return {name: value for name, value in values.items() if value is not None}


def path_text(path: object) -> Any:
    """Return a path as text."""
    return str(path) if isinstance(path, Path) else path


def path_texts(paths: object) -> object:
    """Return paths as texts; what is no list of them, as it is."""
    return [path_text(item) for item in cast("Iterable[object]", paths)] if isinstance(paths, Iterable) else paths


def schema_text(schema: object) -> object:
    """Return a schema as text that Spark reads: DDL as it is, a PySpark StructType as JSON (DDL needs a session)."""
    write = getattr(schema, "json", None)
    return write() if callable(write) and hasattr(schema, "fieldNames") else schema


def save_mode(mode: str) -> str:
    """Accept capital letters, as Spark does."""
    return mode.lower() if isinstance(cast("object", mode), str) else mode
