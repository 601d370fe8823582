"""What Flintlock relies on inside other packages (docs/internals.md) is still as it was when that was written."""

from __future__ import annotations

import atexit
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def printed(code: str) -> str:
    """Run code in a Python of its own, and return what it prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs/internals.md").read_text(encoding="utf-8")
    own = Path(__file__).read_text(encoding="utf-8")
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in own, name
    for path, _, name in re.findall(r"`(tests/[\w/]+\.py)(::(\w+))?`", page):
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), name
    for path in re.findall(r"^\| `([\w/]+\.py)`", page, re.MULTILINE):
        assert (ROOT / "src/flintlock" / path).exists(), path


def test_kazoo_returns_the_read_timeout_from_connect() -> None:
    from kazoo.client import KazooClient
    from kazoo.protocol.connection import ConnectionHandler

    client: Any = KazooClient()
    connect: Any = getattr(ConnectionHandler, "_connect")  # noqa: B009
    source = inspect.getsource(connect)

    assert isinstance(client._connection, ConnectionHandler)
    assert parameters(connect) == ["host", "hostip", "port"]
    assert "read_timeout = negotiated_session_timeout * 2.0 / 3.0" in source
    assert "return read_timeout, connect_timeout" in source


def test_kazoo_runs_the_callbacks_of_an_answer_in_one_method() -> None:
    from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

    answer: Any = AsyncResult(SequentialThreadingHandler())

    assert parameters(answer._do_callbacks) == []
    assert answer._callbacks == []
    for method in (answer.set, answer.set_exception, answer.rawlink):
        assert "_do_callbacks" in inspect.getsource(method) or "_callbacks" in inspect.getsource(method)


def test_the_connect_client_executes_a_request_and_yields_what_arrives() -> None:
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.shell.progress import Progress

    client: Any = SparkConnectClient

    assert parameters(client._execute_plan_request_with_metadata) == ["operation_id"]
    assert parameters(client._execute_and_fetch_as_iterator) == ["req", "observations", "progress"]
    assert "self._progress_handlers" in inspect.getsource(client.__init__)
    assert {"handlers", "operation_id"} <= set(parameters(Progress.__init__))


def test_connect_sets_several_settings_at_once() -> None:
    from pyspark.sql.connect.conf import RuntimeConf

    configuration: Any = RuntimeConf

    assert parameters(configuration._set_all) == ["configs", "silent"]


def test_all_connect_plans_pass_through_one_method() -> None:
    import inspect

    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.plan import LogicalPlan

    client: Any = SparkConnectClient

    assert parameters(client._try_compress_and_set_plan) == ["plan", "message", "op_type"]
    assert list(inspect.signature(client._analyze).parameters) == ["self", "method", "kwargs"]
    assert inspect.getsource(client._analyze).count('kwargs.get("relation")') == 3  # persist, unpersist, storage level
    for way in (client._set_relation_in_plan, client._set_command_in_plan):
        assert "self._try_compress_and_set_plan(" in inspect.getsource(way)
    assert "session._set_relation_in_plan(" in inspect.getsource(LogicalPlan.to_proto)
    for way in (client.execute_command, client.execute_command_as_iterator):
        assert "self._set_command_in_plan(" in inspect.getsource(way)


def test_a_connect_frame_is_made_from_a_plan_with_named_views() -> None:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL, SubqueryAlias

    frame: Any = DataFrame

    assert parameters(frame.__init__) == ["plan", "session"]
    assert "self._plan = plan" in inspect.getsource(frame.__init__)
    assert parameters(SQL.__init__) == ["query", "args", "named_args", "views"]
    assert parameters(SubqueryAlias.__init__) == ["child", "alias"]


def test_the_active_context_is_known_without_making_one() -> None:
    from pyspark import SparkContext

    context: Any = SparkContext

    assert context._active_spark_context is None
    assert "self._jsc" in inspect.getsource(context._do_init)


def test_sparks_daemon_calls_its_worker_by_its_module_name() -> None:
    from pyspark import daemon

    assert parameters(daemon.worker) == ["sock", "authenticated"]
    assert parameters(daemon.manager) == []
    assert "worker(" in inspect.getsource(daemon.manager)


def test_the_client_imports_httpx_without_its_command_line() -> None:
    code = "import sys, flintlock.client.connection.http, httpx; httpx.Client().close()"
    assert printed(f"{code}; print('httpx._main' in sys.modules, 'pygments' in sys.modules)") == "False False"
    assert printed(f"{code}; import httpx._main; print(callable(httpx._main.main))") == "True"


def test_httpcore_takes_a_missing_sniffio_for_asyncio() -> None:
    code = (
        "import asyncio, flintlock.rest.server.upstream, httpcore._synchronization as s\n"
        "async def main(): return s.current_async_library()\n"
        "print(asyncio.run(main()))"
    )
    assert printed(code) == "asyncio"


def test_uvicorn_captures_signals_in_one_method() -> None:
    import uvicorn

    assert "self.capture_signals()" in inspect.getsource(uvicorn.Server.serve)


@pytest.mark.parametrize(("module", "name"), [(atexit, "_clear"), (sys, "_current_frames"), (sys, "_getframe")])
def test_python_has_what_is_used_of_its_insides(module: Any, name: str) -> None:
    assert callable(getattr(module, name))


def test_every_streaming_query_is_represented_by_one_class() -> None:
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectQuery
    from pyspark.sql.streaming.query import StreamingQuery

    assert parameters(ConnectQuery.__init__) == ["session", "queryId", "runId", "name"]
    assert parameters(StreamingQuery.__init__) == ["jsq"]


def test_executors_can_be_opened_again_after_the_threads_were_waited_for() -> None:
    code = """
import threading
from concurrent.futures import ThreadPoolExecutor, thread
threading._shutdown()
try:
    ThreadPoolExecutor(1).submit(print, "no")
except RuntimeError as error:
    print(error)
thread._shutdown = False
print(ThreadPoolExecutor(1).submit(str, "yes").result())
"""
    assert printed(code).split("\n") == ["cannot schedule new futures after interpreter shutdown", "yes"]


def test_spark_files_are_found_in_the_directory_of_a_worker() -> None:
    code = """
from pyspark import SparkFiles
SparkFiles._root_directory, SparkFiles._is_running_on_worker = "/scratch", True
print(SparkFiles.getRootDirectory(), SparkFiles.get("a.csv"))
"""
    assert printed(code) == "/scratch /scratch/a.csv"
