"""Whether a Python file only defines job graphs: run as a program, it would do nothing and be said to have finished.

The file is read, not run. It does nothing if every statement that runs at its top defines something: an import, a
function, a class, a job and its steps, or a value. Wherever that is not certain the file is taken for a program: a call
of a function that is not known to be without effects may be its work.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

#: Callables and modules that make values, and do nothing else.
_BUILTINS: Final = frozenset({
    "bool", "classmethod", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min", "open",
    "property", "range", "reversed", "set", "sorted", "staticmethod", "str", "sum", "tuple", "zip",
})  # fmt: skip
_MODULES: Final = frozenset({
    "collections", "dataclasses", "datetime", "decimal", "enum", "functools", "itertools", "json", "math", "pathlib",
    "re", "string", "textwrap", "typing",
})  # fmt: skip
#: What a file calls to prepare the process that it runs in.
_SETUP: Final = frozenset({
    ("os", "environ"), ("os", "getenv"), ("os", "path"), ("sys", "path"), ("logging", "basicConfig"),
    ("logging", "getLogger"), ("warnings", "filterwarnings"), ("warnings", "simplefilter"),
})  # fmt: skip
_SESSIONS: Final = frozenset({"SparkSession", "SparkContext", "SQLContext", "HiveContext", "StreamingContext"})


def only_jobs_of(tree: ast.Module) -> list[str]:
    """Return the names of the jobs that a file defines, or of functions that return one, if it does nothing else."""
    reading = _Reading()
    if not all(reading.defines(statement) for statement in tree.body):
        return []
    return reading.jobs or reading.builders


class _Reading:
    """What is known of the names of a file, statement by statement."""

    def __init__(self, outer: _Reading | None = None) -> None:
        self.jobs: Final[list[str]] = [] if outer is None else list(outer.jobs)
        self.builders: Final[list[str]] = [] if outer is None else list(outer.builders)  # functions that return a job
        self._job_classes: Final[set[str]] = set() if outer is None else set(outer._job_classes)  # flintlock.Job
        self._flintlock: Final[set[str]] = set() if outer is None else set(outer._flintlock)  # names of the module
        # Names whose calls, and calls of whose attributes, only make values.
        self._pure: Final[set[str]] = set(_BUILTINS) if outer is None else set(outer._pure)

    def defines(self, statement: ast.stmt) -> bool:
        """Return whether a statement only defines something when it is run, and note what it defines."""
        match statement:
            case ast.Import() | ast.ImportFrom():
                self._import(statement)
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._note_function(statement)
                return self._decorate(statement.decorator_list) and self._all_pure(_defaults(statement.args))
            case ast.ClassDef():
                return self._decorate(statement.decorator_list) and self._all_define(statement.body)
            case ast.Pass() | ast.Raise() | ast.Assert() | ast.Expr(value=ast.Constant()):
                return True
            case ast.Expr(value=ast.Call() as call):
                return (_root(call) in self.jobs or _is_setup(call)) and self._is_pure(call)
            case ast.Return(value=value):
                return value is None or self._is_pure(value)
            case _:
                return self._assigns(statement) or self._contains_definitions(statement)

    def _assigns(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign(targets=targets, value=value):
                return self._assign(targets, value)
            case ast.AnnAssign(target=target, value=value):
                return value is None or self._assign([target], value)
            case ast.AugAssign(target=target, value=value):
                return self._assign([target], value)
            case _:
                return False

    def _contains_definitions(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                return self._is_pure(test) and self._all_define([*body, *orelse])
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                return self._assign([target], iterable) and self._all_define([*body, *orelse])
            case ast.With(items=items, body=body):
                opened = [([item.optional_vars] if item.optional_vars else [], item.context_expr) for item in items]
                return all(self._assign(*item) for item in opened) and self._all_define(body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                handled = [statement for handler in handlers for statement in handler.body]
                return self._all_define([*body, *handled, *orelse, *final])
            case _:
                return False

    def _all_define(self, statements: Iterable[ast.stmt]) -> bool:
        return all(self.defines(statement) for statement in statements)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        if isinstance(statement, ast.ImportFrom):
            module = (statement.module or "").partition(".")[0] if not statement.level else ""
            for alias in statement.names:
                name = alias.asname or alias.name
                if module == "flintlock" and alias.name == "Job":
                    self._job_classes.add(name)
                elif module in _MODULES or (module == "pyspark" and alias.name not in _SESSIONS):
                    self._pure.add(name)
            return
        for alias in statement.names:
            module, name = alias.name.partition(".")[0], alias.asname or alias.name.partition(".")[0]
            if module == "flintlock":
                self._flintlock.add(name)
            elif module in _MODULES or module == "pyspark":
                self._pure.add(name)

    def _note_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Note a function whose body only defines something, too."""
        inside = _Reading(self)
        if isinstance(function, ast.AsyncFunctionDef) or not inside._all_define(function.body):
            return
        self._pure.add(function.name)
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
        required = len(function.args.posonlyargs) + len(function.args.args) - len(function.args.defaults)
        if not required and any(inside._is_job(value) for value in returned):
            self.builders.append(function.name)

    def _is_job(self, value: ast.expr | None) -> bool:
        match value:
            case ast.Call(func=ast.Name(id=name)):
                return name in self._job_classes or name in self.builders
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr="Job")):
                return module in self._flintlock
            case ast.Name(id=name):
                return name in self.jobs
            case _:
                return False

    def _assign(self, targets: Iterable[ast.expr], value: ast.expr) -> bool:
        if not self._is_pure(value):
            return False
        names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        if self._is_job(value):
            self.jobs.extend(name for name in names if name not in self.jobs)
        self._pure.update(names)
        return True

    def _decorate(self, decorators: Iterable[ast.expr]) -> bool:
        return all(_root(decorator) in self._pure and self._is_pure(decorator) for decorator in decorators)

    def _all_pure(self, expressions: Iterable[ast.expr]) -> bool:
        return all(self._is_pure(expression) for expression in expressions)

    def _is_pure(self, expression: ast.expr) -> bool:
        """Return whether every call in an expression makes a value, a job or a step of one."""
        evaluated = list(_evaluated(expression))
        for node in evaluated:
            if isinstance(node, ast.comprehension):
                self._pure.update(name.id for name in ast.walk(node.target) if isinstance(name, ast.Name))
        return all(self._makes_a_value(node) for node in evaluated)

    def _makes_a_value(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _SESSIONS:
                return False
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return False
            case ast.Call():
                root = _root(node)
                return root is None or root in self._pure or self._is_job(node) or _is_setup(node)
            case _:
                return True


def _evaluated(expression: ast.expr) -> Iterable[ast.AST]:
    """Yield the nodes of an expression without the bodies of lambdas, which are defined and not called."""
    pending: list[ast.AST] = [expression]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _is_setup(call: ast.Call) -> bool:
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in _SETUP
        for node in ast.walk(call.func)
    )


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def _root(expression: ast.expr) -> str | None:
    """Return the name that a chain of attributes, calls and items begins with; None if it begins with a value."""
    match expression:
        case ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
            return _root(inner)
        case ast.Name(id=name):
            return name
        case _:
            return None
