"""/openapi.json describes what is there, and what is there behaves as described, whatever it is sent."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
import schemathesis
import schemathesis.checks
import uvicorn
from hypothesis import HealthCheck, settings
from msgspec import structs
from schemathesis.config import SchemathesisConfig
from tests.unit.rest.rest_harness import RESOURCES, SECRET, T0, A, B, RestHarness, ended, running

from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.model.commands import JobOperation, RescaleJob, ThreadsDumped
from flintlock.model.diagnostics import (
    DumpProcessThreads,
    EngineUiPage,
    ListProcessLogs,
    ProcessLogRead,
    ProcessLogsListed,
    ProcessSettingsRead,
    ProcessThreadsDumped,
    ReadEngineUi,
    ReadProcessLog,
    ReadProcessSettings,
    ThreadStack,
)
from flintlock.model.errors import Invalid
from flintlock.model.ids import StepName, TaskManagerId, TriggerId
from flintlock.model.jobgraph import vertex_id
from flintlock.model.jobs import QuarantinedJob
from flintlock.model.states import JobStatus
from flintlock.model.streaming.savepoints import SavepointDisposal
from flintlock.model.tasks import ResultRows
from flintlock.rest.server.openapi import openapi
from flintlock.rest.server.routes import ROUTES
from flintlock.security.spark_ui_links import SparkUiLinks

DESCRIPTION: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi(ROUTES, "0.1.0")))
TRIGGER = TriggerId("7" * 32)
STACK = ThreadStack(name="MainThread", text="stands")
AUTH = RestHarness().auth
STREAMS = {row.path for row in ROUTES if row.streams}
FEW = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
#: A graph that fits the schema may still be a bad one.
ANYTHING_MAY_BE_WRONG = [schemathesis.checks.positive_data_acceptance]


def described(*, coverage: bool) -> Any:
    """The description without the stream of events, which has no end.

    And without the credential, which every request has: the tests of access control leave it out and forge it.
    """
    paths: dict[str, Any] = {
        path: {method: {**operation, "security": []} for method, operation in item.items()}
        for path, item in DESCRIPTION["paths"].items()
        if path not in STREAMS
    }
    return schemathesis.openapi.from_dict(
        deepcopy({**DESCRIPTION, "paths": paths}),
        config=SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": coverage}}}),
    )


PASS = SparkUiLinks(SECRET).make(TaskManagerId("tm-1"), T0)
schema = described(coverage=True)
#: Trying out every corner of the form of a job takes long; a few random ones have to do.
submission = described(coverage=False).include(method="POST", path="/jobs")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The REST application on a real socket, with jobs in every state that answers differ by."""
    folder = tmp_path_factory.mktemp("log")
    log = folder / "jobmanager.log"
    log.write_text("a line\n")
    (folder / "assets").mkdir()
    (folder / "assets" / "index-1.js").write_text("0;")
    rest = RestHarness(ProcessLogs(directory=folder, log=log, stdout=log), folder)
    rest.resource_manager.seen = RESOURCES
    manager, read = TaskManagerId("tm-1"), ProcessLogRead(data=b"a line\n")
    rest.resource_manager.process_answers = {
        DumpProcessThreads(task_manager=manager): ProcessThreadsDumped(stacks=(STACK,)),
        ListProcessLogs(task_manager=manager): ProcessLogsListed(files=()),
        ReadProcessSettings(task_manager=manager): ProcessSettingsRead(settings={"rest.port": "0"}),
        ReadProcessLog(task_manager=manager): read,
        ReadProcessLog(task_manager=manager, stdout=True): read,
        ReadProcessLog(task_manager=manager, engine=True): read,
        ReadProcessLog(task_manager=manager, file="jobmanager.log"): read,
        ReadEngineUi(task_manager=manager, path="/", root=f"/spark-ui/{PASS}"): EngineUiPage(
            status=200, content_type="text/html;charset=utf-8", body=b"<html></html>"
        ),
    }
    finished = structs.replace(ended(running(B), JobStatus.FINISHED), result_names=(StepName("top"),))
    rest.dispatcher.put(running(A), finished)
    rest.dispatcher.results[B, "top"] = ResultRows(
        name=StepName("top"),
        rows=1,
        truncated=False,
        arrow=b"",
        json=b'{"columns":[{"name":"k","type":"int"}],"rows":[[1]]}',
    )
    rest.dispatcher.quarantine[B] = QuarantinedJob(job_id=B, name="b", reason="unreadable", since_ms=1, readable=True)
    rest.dispatcher.operations[TRIGGER] = JobOperation(
        trigger_id=TRIGGER, command=RescaleJob(job_id=B, parallelism=2), started_ms=1
    ).completed(None, 2)
    disposal = SavepointDisposal(trigger_id=TRIGGER, path="/s/one")
    rest.dispatcher.disposals[TRIGGER] = disposal.failed(Invalid("there is none"))
    rest.dispatcher.answer = ThreadsDumped(threads=(STACK,))
    server = uvicorn.Server(uvicorn.Config(rest.app, port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="uvicorn")
    thread.start()
    while not server.started:
        thread.join(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join()


def test_the_description_is_openapi() -> None:
    """It has the form that OpenAPI 3.1 prescribes, and is served as JSON."""
    schema.validate()

    response = RestHarness().call("GET", "/openapi.json")
    assert response.json() == DESCRIPTION
    assert DESCRIPTION["openapi"] == "3.1.0"


def test_every_reference_leads_somewhere() -> None:
    """No schema is named that is not there."""
    named = set(re.findall(r"#/components/schemas/([\w.]+)", repr(DESCRIPTION)))

    assert named == set(DESCRIPTION["components"]["schemas"])


def test_every_endpoint_is_described_once() -> None:
    """Routes and description come from the same table; operations have names of their own."""
    described = {(method.upper(), path) for path, item in DESCRIPTION["paths"].items() for method in item}
    names = [operation["operationId"] for item in DESCRIPTION["paths"].values() for operation in item.values()]

    assert described == {(row.method, row.path) for row in ROUTES}
    assert len(set(names)) == len(names)


@schema.exclude(method="POST", path="/jobs").parametrize()
@FEW
def test_nothing_that_is_sent_breaks_anything(case: Any, address: str) -> None:
    """Good and bad requests alike get a described status, content type and shape; never a 5xx."""
    case.call_and_validate(base_url=address, headers=AUTH, excluded_checks=ANYTHING_MAY_BE_WRONG)


@submission.parametrize()
@settings(FEW, max_examples=10)
def test_no_submission_breaks_anything(case: Any, address: str) -> None:
    """Whatever is sent as a job is accepted or refused as described."""
    case.call_and_validate(base_url=address, headers=AUTH, excluded_checks=ANYTHING_MAY_BE_WRONG)


@pytest.mark.parametrize("path", [row.path for row in ROUTES if row.method == "GET" and not row.streams])
def test_answers_have_the_described_shape(path: str, address: str) -> None:
    """Of jobs that are there, with all that they have."""
    known = {
        "taskmanagerid": "tm-1", "name": "top", "jobid": B, "vertexid": vertex_id(B, "clean"), "subtaskindex": "0",
        "file": "jobmanager.log", "triggerid": TRIGGER, "asset": "index-1.js", "pass": PASS,
    }  # fmt: skip
    operation: Any = schema[path]["GET"]
    case = operation.Case(path_parameters={name: known[name] for name in re.findall(r"{(\w+)}", path)})
    response = case.call(base_url=address, headers=AUTH)

    assert response.status_code == 200
    case.validate_response(response)
