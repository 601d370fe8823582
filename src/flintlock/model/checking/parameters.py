"""Changed values of a job's parameters: converted to the types of the job's own values, and checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flintlock.model.checking.problems import Problem, abbreviated
from flintlock.model.checking.suggestions import did_you_mean
from flintlock.model.checking.type_words import words_of
from flintlock.model.jobgraph import Scalar


def changed_parameters(
    params: Mapping[str, Scalar], given: Mapping[str, Scalar], secret: Collection[str], problems: list[Problem]
) -> dict[str, Scalar]:
    """Return the parameters with the given values; add what is wrong with them to `problems`.

    A text is converted to the type of the job's own value. No message quotes a value of a parameter in `secret`.
    """
    changed = dict(params)
    for name, value in given.items():
        if name not in params:
            known = f"it has {', '.join(params)}" if params else "it has none"
            hint = did_you_mean(name, params) or known
            message = f"the job has no parameter {abbreviated(name)!r}; {hint}"
            problems.append(Problem(field="params", message=message))
            continue
        try:
            changed[name] = typed(value, params[name])
        except ValueError:
            shown = "" if name in secret else f", not {abbreviated(str(value))!r}"
            message = f"{name!r} must be {words_of(params[name])}{shown}"
            problems.append(Problem(field="params", message=message))
    return changed


def typed(value: Scalar, like: Scalar) -> Scalar:
    """Return a value as one of the type of another; a text is read as such a value. Raises ValueError."""
    match like, value:
        case (bool(), str()):
            if value.lower() not in ("true", "false"):
                raise ValueError(value)
            return value.lower() == "true"
        case (bool(), _) | (None, _):
            wrong = like is not None and not isinstance(value, bool)
        case (int(), str()):
            return int(value)
        case (float(), str()):
            return float(value)
        case (int(), _):
            wrong = isinstance(value, bool) or not isinstance(value, int)
        case (float(), _):
            wrong = isinstance(value, bool) or not isinstance(value, int | float)
        case _:
            wrong = not isinstance(value, str)
    if wrong:
        raise ValueError(value)
    return value
