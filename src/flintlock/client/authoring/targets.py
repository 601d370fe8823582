"""What `flintlock run` is pointed at: a document, a job in Python by its file or module, queries, or a program.

A Python file with a graph is imported as a module of its own, with its folder first on `sys.path`, as `python file.py`
would have it, but not as `__main__`: code under `if __name__ == "__main__"` does not run. A module of a package
(`package.module:name`) is imported under its own name, with the current directory first on `sys.path`, as `python -m`
would have it, and its package is sent with the job. A program's file is only sent, never run here; so are the modules
beside it that it imports. A program may also be a module (`--module`), which is then run as `python -m` runs it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Final

from msgspec import structs

from flintlock.client.authoring.app_names import app_name
from flintlock.client.authoring.connect_reading import reading_for_connect
from flintlock.client.authoring.driver_needs import DriverNeed, driver_need
from flintlock.client.authoring.files.artifact_files import absolute_place, plain_file, py_file
from flintlock.client.authoring.files.module_files import MODULE_NAME, find_module, module_exists
from flintlock.client.authoring.files.sibling_modules import parsed, siblings
from flintlock.client.authoring.graph_files import only_jobs_of
from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, Packable, finish
from flintlock.client.authoring.source_locations import display_path
from flintlock.config.extras import install_command
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, StepSpec
from flintlock.model.checking.suggestions import did_you_mean, suggestion
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import EngineKind
from flintlock.model.operations import ProgramSpec

FORMS: Final = (
    "job.yaml or job.json, file.py:name or package.module:name (a job graph), file.sql (queries), file.py (a program), "
    "or - (a document on stdin)"
)


class ProgramJob:
    """An unmodified PySpark script and its arguments; with `module`, the module of that name and its package."""

    def __init__(
        self,
        file: Path,
        args: Sequence[str] = (),
        need: DriverNeed | None = None,
        siblings: Sequence[Path] = (),
        *,
        module: str = "",
        package: Path | None = None,
        app_name: str = "",
    ) -> None:
        self.file: Final = file
        self.module: Final = module
        self._app_name: Final = app_name  # in the script; empty if it has none
        self._package: Final = package or file  # the package (a folder) or file that the module is in
        self.siblings: Final = tuple(siblings)  # modules and packages beside it, which are sent with it
        self.need: Final = need  # what it uses that needs a driver of its own
        self.pickles: Final = False
        self.args: Final = tuple(args)

    @property
    def name(self) -> str:
        """The name of the script's Spark application, else the script's own."""
        return self._app_name or self._script_name

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the script packaged as a job of one step. Raises Invalid with every problem found."""
        step = re.sub(r"\W", "_", self._script_name, flags=re.ASCII)
        step = step if step and not step[0].isdigit() else f"program_{step}"
        script = py_file(self._package) if self.module else plain_file(self.file)
        path = absolute_place(self._package if self.module else self.file)
        program = ProgramSpec(file=script.name, args=self.args, module=self.module, path=path)
        spec = JobSpec(
            name=self.name,
            steps={step: StepSpec(program=program)},
            artifacts=(ArtifactSpec(name=script.name, kind=script.kind),),
            engine=self._engine(overrides),
        )
        named = {path.resolve() for path in overrides.py_files}
        beside = [py_file(path, module=True) for path in self.siblings if path.resolve() not in named]
        overrides = structs.replace(overrides, engine=None)
        return finish(spec, [script, *beside], overrides, lambda _: display_path(self.file))

    def note(self, overrides: Overrides = AS_WRITTEN) -> str | None:
        """Return why the script is given a driver of its own, if that was not requested."""
        if self.need is None or overrides.engine not in (None, EngineKind.AUTO):
            return None
        place = f"{display_path(self.file)}:{self.need.line}"
        return f"{place}: {self.need.what} needs a Spark driver of its own: the job runs on a dedicated engine"

    @property
    def _script_name(self) -> str:
        return self.module or self.file.stem

    def _engine(self, overrides: Overrides) -> EngineKind:
        if self.note(overrides) is not None:
            return EngineKind.DEDICATED
        return overrides.engine or EngineKind.AUTO


def read_target(
    target: str,
    args: Sequence[str] = (),
    *,
    connect: bool = True,
    as_module: bool = False,
    application: bool = False,
) -> Packable:
    """Return the job that `target` names; `connect`: its steps run in a session of Spark Connect.

    With `as_module` the target is the name of a module that is a program. A program of an `application` may run jobs.

    Raises Refused if there is no such file or name, or if the user's file raises (then with the user's own frames);
    Invalid with every problem of a YAML file.
    """
    if as_module:
        return read_module_program(target, args, application=application)
    if target == "-":
        from flintlock.client.authoring.yaml_form import read_yaml_text

        _refuse_arguments(target, args)
        return read_yaml_text(Path("stdin"), sys.stdin.buffer.read())
    path_text, colon, name = target.rpartition(":")
    if colon and path_text.endswith(".py"):
        _refuse_arguments(target, args)
        return read_python_job(_existing(path_text), name, connect=connect)
    if colon and MODULE_NAME.fullmatch(path_text) and not Path(target).exists():
        _refuse_arguments(target, args)
        return read_module_job(path_text, name, connect=connect)
    if MODULE_NAME.fullmatch(target) and not Path(target).exists() and module_exists(target, Path.cwd()):
        raise Refused(
            f"{target!r} is a module: run it as a program with --module {target}, or a job in it as {target}:NAME"
        )
    if target.endswith(".jar"):
        raise Refused(f"{target!r} is an application in Java or Scala, which Flintlock does not run: give {FORMS}")
    path = _existing(target)
    if path.suffix in (".yaml", ".yml", ".json"):
        from flintlock.client.authoring.yaml_form import read_yaml_job

        _refuse_arguments(target, args)
        return read_yaml_job(path)
    if path.suffix == ".sql":
        from flintlock.client.authoring.sql_form import SqlFileJob

        _refuse_arguments(target, args)
        return SqlFileJob(path)
    if path.suffix == ".py":
        return read_program(path, args, application=application)
    if path.suffix == ".ipynb":
        raise Refused(
            f"{target!r} is a notebook: submit jobs from inside of it (flintlock.connect), or export it as a program "
            f"with `jupyter nbconvert --to script {target}`"
        )
    raise Refused(f"{target!r} cannot be run: give {FORMS}")


def read_python_job(file: Path, name: str, *, connect: bool = True) -> Job:
    """Import the file and return the Job of that name, or the one that the function of that name returns."""
    with reading_for_connect() if connect else nullcontext():
        module = _imported(file)
        job = _job_in(module, name, file)
    if connect and job.needs_driver:  # known only now, and then functions and columns are those of a classic session
        del sys.modules[module.__name__]
        return read_python_job(file, name, connect=False)
    return job


def read_jobs(file: Path) -> dict[str, Job]:
    """Import the file and return the jobs that it defines, by name. Raises Refused if the file raises."""
    with reading_for_connect():
        module = _imported(file)
    jobs = {name: value for name, value in vars(module).items() if isinstance(value, Job)}
    if any(job.needs_driver for job in jobs.values()):
        del sys.modules[module.__name__]  # as in read_python_job
        module = _imported(file)
        jobs = {name: value for name, value in vars(module).items() if isinstance(value, Job)}
    return jobs


def read_module_job(module: str, name: str, *, connect: bool = True) -> PackagedJob:
    """Import the module of a package and return its Job of that name. Its top-level package is sent with the job."""
    top = Path.cwd() / module.partition(".")[0]
    file = (Path.cwd() / module.replace(".", "/")).with_suffix(".py")
    file = file if file.is_file() else file.with_suffix("") / "__init__.py"
    if not file.is_file():
        raise Refused(f"there is no module {module!r} in the current directory: give {FORMS}")
    if top.is_dir() and not (top / "__init__.py").is_file():
        raise Refused(f"the package {top.name!r} has no __init__.py, so it cannot be sent with the job")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with reading_for_connect() if connect else nullcontext():
            with _user_errors(file, "reading it"):
                imported = importlib.import_module(module)
            job = _job_in(imported, name, file)
    finally:
        sys.path.remove(str(Path.cwd()))
    if connect and job.needs_driver:  # as in read_python_job
        for loaded in [one for one in sys.modules if one == top.name or one.startswith(f"{top.name}.")]:
            del sys.modules[loaded]
        return read_module_job(module, name, connect=False)
    return PackagedJob(job, top if top.is_dir() else top.with_suffix(".py"))


class PackagedJob:
    """A job graph in a module of a package, which is sent with it."""

    def __init__(self, job: Job, package: Path) -> None:
        self.job: Final = job
        self._package: Final = package

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def pickles(self) -> bool:
        """Whether Python functions are pickled."""
        return self.job.pickles

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged with its package. Raises Invalid with every problem found."""
        return self.job.package(structs.replace(overrides, py_files=(*overrides.py_files, self._package)))


def _job_in(module: ModuleType, name: str, file: Path) -> Job:
    value: object = getattr(module, name, None)
    if callable(value) and not isinstance(value, Job | type):
        with _user_errors(file, f"calling {name}()"):
            value = value()
    if isinstance(value, Job):
        return value
    jobs = [key for key, item in vars(module).items() if isinstance(item, Job)]
    hint = did_you_mean(name, jobs)
    known = f"its jobs are {', '.join(jobs)}" if jobs else "no name in it is a flintlock.Job"
    what = f"{name!r} is {type(value).__name__}, not a flintlock.Job" if hasattr(module, name) else f"has no {name!r}"
    raise Refused(f"{display_path(file)}: {what}; " + (hint or known))


def read_module_program(module: str, args: Sequence[str] = (), *, application: bool = False) -> ProgramJob:
    """Return a module of the current directory as a program, with what it imports from there.

    Raises Refused if there is no such module, if it is not Python, only defines job graphs, or runs one by itself.
    """
    files = find_module(module, Path.cwd())
    tree = _parsed_program(files.file, module, application=application)
    need = driver_need(tree) or next(
        (
            DriverNeed(what=f"{need.what} in {display_path(path)}", line=1)
            for path in files.reached
            if (other := parsed(path)) is not None and (need := driver_need(other)) is not None
        ),
        None,
    )
    return ProgramJob(files.file, args, need, files.beside, module=module, package=files.top, app_name=app_name(tree))


def read_program(file: Path, args: Sequence[str] = (), *, application: bool = False) -> ProgramJob:
    """Return the script as a job. Raises Refused if it is not Python, only defines job graphs, or runs one itself."""
    tree = _parsed_program(file, application=application)
    beside = siblings(file.resolve(), tree)
    need = driver_need(tree) or next(
        (
            DriverNeed(what=f"{need.what} in {sibling.path.name}", line=1)
            for sibling in beside
            for part in sibling.trees
            if (need := driver_need(part)) is not None
        ),
        None,
    )
    return ProgramJob(file, args, need, [sibling.path for sibling in beside], app_name=app_name(tree))


def _parsed_program(file: Path, module: str = "", *, application: bool) -> ast.Module:
    named = module or display_path(file)
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise Refused("".join(traceback.format_exception_only(error)).rstrip()) from error
    line = None if application else _runs_a_graph(tree)
    if line is not None:
        raise Refused(
            f"{display_path(file)}:{line}: calls flintlock.run, which starts a job graph by itself: run the graph with "
            f"`flintlock run {display_path(file)}:NAME`, the file with `python {display_path(file)}`, or as an"
            " application with -t application"
        )
    jobs = only_jobs_of(tree)
    if jobs:
        targets = " or ".join(f"`flintlock run {named}:{name}`" for name in jobs)
        raise Refused(
            f"{display_path(file)} only defines a job graph and would do nothing as a program:"
            f" run the graph with {targets}"
        )
    return tree


def _existing(text: str) -> Path:
    path = Path(text)
    if path.is_file():
        return path
    if path.is_dir():
        raise Refused(f"{text!r} is a folder: give {FORMS}")
    folder = path.parent
    names = [str(item) for item in folder.iterdir()] if folder.is_dir() else []
    raise Refused(f"there is no file {text!r}" + suggestion(str(path), names))


def _refuse_arguments(target: str, args: Sequence[str]) -> None:
    if args:
        raise Refused(f"{args[0]!r}: {target} takes no arguments of its own; set parameters with --param key=value")


def _imported(file: Path) -> ModuleType:
    name = _module_name(file)
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise Refused(f"{display_path(file)} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its functions are pickled by value under this name, its classes found by it
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with _user_errors(file, "reading it"):
            spec.loader.exec_module(module)
    except Refused:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def _module_name(file: Path) -> str:
    """Return the file's own name where nothing else is called so."""
    name = re.sub(r"\W", "_", file.stem)
    taken = (
        name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None if name.isidentifier() else True
    )
    return f"job_{name}" if taken else name


@contextmanager
def _user_errors(file: Path, doing: str) -> Generator[None]:
    """Turn what the user's file raises into a Refused that shows the user's frames and none of ours."""
    try:
        yield
    except Refused as refusal:
        raise refusal.with_traceback(None) from None
    except KeyboardInterrupt:
        raise
    except SystemExit as exit_:
        raise Refused(
            f"{display_path(file)}: ended with exit code {exit_.code} while {doing}; it must only build a job"
        ) from None
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "pyspark":
            raise Refused(
                f"{display_path(file)} imports PySpark, which is not installed here: {install_command('cluster')}"
            ) from None
        summary = traceback.TracebackException.from_exception(error)
        users = [
            frame
            for frame in summary.stack
            if "importlib" not in frame.filename and not frame.filename.startswith(_OWN)
        ]
        summary.stack = traceback.StackSummary.from_list(users)
        text = "".join(summary.format()).rstrip()
        raise Refused(f"{display_path(file)}: an error occurred while {doing}:\n{text}") from error


_OWN: Final = str(Path(__file__).parent)


def _runs_a_graph(tree: ast.Module) -> int | None:
    """Return the line of a call of `flintlock.run`, by whatever name it was imported."""
    modules: set[str] = set()
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name for alias in node.names if alias.name == "flintlock"}
        elif isinstance(node, ast.ImportFrom) and node.module == "flintlock":
            functions |= {alias.asname or alias.name for alias in node.names if alias.name == "run"}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="run")) if owner in modules:
                return node.lineno
            case ast.Call(func=ast.Name(id=called)) if called in functions:
                return node.lineno
            case _:
                pass
    return None
