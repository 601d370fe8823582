"""The files of a module that is run as a program: where it is, what it imports, and what is sent with the job.

As for `python -m`, the current directory is where modules are searched for. Nothing is imported here: imports are read
from the source. A module's top-level package is sent whole; so are the modules and packages beside it that are imported
by the module, directly or through others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from flintlock.client.authoring.files.sibling_modules import parsed
from flintlock.model.checking.suggestions import suggestion
from flintlock.model.errors import Refused

MODULE_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class ModuleFiles(Struct, frozen=True, kw_only=True):
    """A module, its top-level package or file, and what it reaches by imports inside the same directory."""

    file: Path  # what is run: the module's own file, or the __main__.py of a package
    top: Path  # the top-level package or file, which is sent
    beside: tuple[Path, ...]  # other packages and files of the directory that are sent
    reached: tuple[Path, ...]  # the sources that are imported, without `file`


def find_module(module: str, directory: Path) -> ModuleFiles:
    """Return the files of a module below the directory. Raises Refused with the remedy if it cannot be run."""
    path = Path(module)
    if path.suffix == ".py" and path.is_file() and not path.is_absolute():
        name = ".".join(path.with_suffix("").parts)
        raise Refused(
            f"{module!r} names a file: to run it, leave out --module; to run it as a module, give its name {name!r}"
        )
    if not MODULE_NAME.fullmatch(module):
        raise Refused(f"{module!r} is not the name of a module: --module takes package.module, as python -m does")
    top_name = module.partition(".")[0]
    top = directory / top_name if (directory / top_name).is_dir() else directory / f"{top_name}.py"
    file = _source(directory, module, main=True)
    if file is None:
        raise Refused(_missing(module, directory))
    if top.is_dir() and not (top / "__init__.py").is_file():
        raise Refused(f"the package {top.name!r} has no __init__.py, so it cannot be sent with the job")
    package = module if file.name == "__main__.py" else module.rpartition(".")[0]
    reached = _reached(directory, file, package)
    tops = {directory / path.relative_to(directory).parts[0] for path in reached}
    return ModuleFiles(file=file, top=top, beside=tuple(sorted(tops - {top})), reached=tuple(sorted(reached - {file})))


def module_exists(module: str, directory: Path) -> bool:
    """Return whether there is a module of that name below the directory that can be run as a program."""
    return _source(directory, module, main=True) is not None


def _missing(module: str, directory: Path) -> str:
    package = directory / module.replace(".", "/")
    if package.is_dir():
        modules = sorted(f"{module}.{path.stem}" for path in package.glob("*.py") if path.stem != "__init__")
        known = f"give one of its modules: {', '.join(modules)}" if modules else "it has no modules"
        return f"the package {module!r} has no __main__.py, so it cannot be run; {known}"
    if _source(directory / "src", module, main=True) is not None:
        return f"the module {module!r} is in {str(Path('src'))!r}: run the command in that directory"
    parent, _, _ = module.rpartition(".")
    folder = directory / parent.replace(".", "/")
    names = [".".join(filter(None, (parent, path.stem))) for path in folder.glob("*.py")] if folder.is_dir() else []
    return f"there is no module {module!r} in the current directory" + suggestion(module, names)


def _source(directory: Path, module: str, *, main: bool = False) -> Path | None:
    """Return the source of a module; `main`: of a package the one that `python -m` runs, not its __init__.py."""
    path = directory / module.replace(".", "/")
    package = path / ("__main__.py" if main else "__init__.py")
    return next((file for file in (package, path.with_name(f"{path.name}.py")) if file.is_file()), None)


def _reached(directory: Path, file: Path, package: str) -> set[Path]:
    """Return the file and all sources below the directory that it imports, directly or through others."""
    reached: set[Path] = set()
    pending = [(file, package)]
    while pending:
        source, package = pending.pop()
        if source in reached:
            continue
        reached.add(source)
        for name in _imports(source, package):
            for prefix in _prefixes(name):
                found = _source(directory, prefix)
                if found is not None:
                    pending.append((found, prefix if found.name == "__init__.py" else prefix.rpartition(".")[0]))
    return reached


def _prefixes(name: str) -> Iterator[str]:
    """Yield `a`, `a.b`, `a.b.c`: importing a module imports the packages that it is in."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _imports(source: Path, package: str) -> Iterator[str]:
    """Yield the absolute names of what a source imports. A source that is not valid Python imports nothing."""
    tree = parsed(source)
    if tree is None:
        return
    if package:
        yield package
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = package.split(".") if level and package else []
                base = ".".join([*parts[: len(parts) - level + 1 if level else 0], *([module] if module else [])])
                if base:
                    yield base
                    yield from (f"{base}.{alias.name}" for alias in names if alias.name != "*")
            case _:
                pass
