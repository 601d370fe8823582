"""Turn a step's function into bytes that a runner elsewhere can open.

cloudpickle writes functions of the job's own file by value, with the helpers they use; what comes from an installed
package or from `py_files` is written by name and imported where it runs. A module that is beside the job's file and is
not shipped would be missing only on the cluster: it is detected here instead.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, cast

import cloudpickle

from flintlock.client.authoring.package import with_location
from flintlock.model.checking.problems import Problem
from flintlock.model.errors import Invalid

_DEEP: Final = 5  # how far helpers of helpers are searched for what cannot be pickled


def pickle_function(function: Callable[..., object], *, step: str, home: str, folder: Path | None, place: str,
                    shipped: frozenset[str] = frozenset()) -> bytes:  # fmt: skip
    """Return the function as bytes.

    `home` is the module that builds the job: its functions are pickled by value. `folder` is that of its file,
    `shipped` are the top-level modules that are sent with the job. Raises Invalid that names the step
    and what could not be pickled.
    """
    with _by_value(home):
        try:
            content, used = _dumps(function)
        except Exception as error:
            raise _invalid(step, place, _explained(function, error)) from error
    for name, module in used.items():
        if _is_not_shipped(name, module, folder, shipped) and name != home:
            raise _invalid(
                step, place, f"uses the module {name!r} ({module.__file__}), which is not sent with the job: "
                "name it in py_files",
            )  # fmt: skip
    return content


class _Recorder(cloudpickle.Pickler):
    """A cloudpickle pickler that remembers which modules its pickle will import."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, ModuleType] = {}

    def reducer_override(self, obj: Any) -> Any:
        reduced = cast("Any", super().reducer_override(obj))
        if isinstance(obj, ModuleType):
            self.modules[obj.__name__] = obj
        elif reduced is NotImplemented and isinstance(obj, type | FunctionType):
            module = sys.modules.get(obj.__module__)  # written by name: this module is imported where it is opened
            if module is not None:
                self.modules[module.__name__] = module
        return reduced


def _dumps(value: object) -> tuple[bytes, Mapping[str, ModuleType]]:
    buffer = io.BytesIO()
    recorder = _Recorder(buffer)
    recorder.dump(value)
    return buffer.getvalue(), recorder.modules


@contextmanager
def _by_value(home: str) -> Generator[None]:
    """Have cloudpickle write what `home` defines by value, for as long as this lasts."""
    module = sys.modules.get(home)
    if module is None or home == "__main__" or home in cloudpickle.list_registry_pickle_by_value():
        yield  # cloudpickle does so by itself
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_not_shipped(name: str, module: ModuleType, folder: Path | None, shipped: frozenset[str]) -> bool:
    """Whether a module can be imported here only because it is beside the job's file."""
    file = getattr(module, "__file__", None)
    if folder is None or file is None or name.partition(".")[0] in shipped or name == "__main__":
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder.resolve()) and not {"site-packages", "dist-packages"} & set(path.parts)


def _explained(function: Callable[..., object], error: Exception) -> str:
    culprit = _culprit(function, _DEEP)
    what = f"cannot be pickled, because of {culprit}: {_first_line(error)}" if culprit else (
        f"cannot be pickled: {_first_line(error)}"
    )  # fmt: skip
    return f"{what}. Create what it needs inside of it; a session and parameters are passed as `spark` and `params`"


def _culprit(value: object, depth: int) -> str | None:
    """Name the variable that a function uses and that cannot be pickled; helpers are searched too."""
    if not isinstance(value, FunctionType) or depth == 0:
        return None
    used = inspect.getclosurevars(value)
    for name, item in {**used.globals, **used.nonlocals}.items():
        try:
            _dumps(item)
        except Exception:  # noqa: BLE001 user objects may raise anything when they are pickled
            inner = _culprit(item, depth - 1)
            return f"{inner} (used by {name!r})" if inner else f"the variable {name!r} ({type(item).__qualname__})"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _invalid(step: str, place: str, message: str) -> Invalid:
    return Invalid(with_location(place, str(Problem(step=step, field="function", message=message))))
