"""POST /jobs and /blobs: what is accepted, what is refused, and that nothing is stored of what is refused."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rest.rest_harness import NEW_ID, A, B, RestHarness

from flintlock.model.errors import Fenced, FlintlockError, Unavailable
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import ArtifactKind, EngineKind
from flintlock.model.operations import Function
from flintlock.model.regions import topological

SPEC: dict[str, Any] = {
    "name": "revenue",
    "params": {"day": "2026-01-01", "n": 3},
    "steps": {
        "out": {"sink": {"format": "parquet", "path": "/out/${day}"}, "inputs": ["clean"]},
        "clean": {"sql": "SELECT * FROM orders", "inputs": ["orders"]},
        "orders": {"source": {"format": "csv", "path": "/in"}},
    },
}
LIB = b"PK a zip"
LIB_KEY = BlobKey("sha256-" + hashlib.sha256(LIB).hexdigest())
WITH_LIB = {**SPEC, "artifacts": ["lib.zip"]}
Files = list[tuple[str, tuple[str | None, bytes | str, str]]]


@pytest.fixture
def rest() -> RestHarness:
    return RestHarness()


def submit(rest: RestHarness, document: object = SPEC, *, key: str | None = None) -> str:
    """Submit as JSON and return the job's id."""
    headers = {} if key is None else {"Idempotency-Key": key}
    response = rest.call("POST", "/jobs", json=document, headers=headers)
    assert response.status_code == 202, response.text
    return response.json()["jobid"]


def parts(document: object, **files: bytes) -> Files:
    """The parts of a multipart submission; `lib_zip` is the file `lib.zip`."""
    request = ("request", (None, json.dumps(document), "application/json"))
    named = [("file", (name.replace("_", "."), content, "application/octet-stream")) for name, content in files.items()]
    return [request, *named]


def test_a_document_is_submitted(rest: RestHarness) -> None:
    """202 with the job's id, once the Dispatcher has it."""
    assert submit(rest) == NEW_ID

    (submission,) = rest.dispatcher.submissions
    assert submission.graph.job_id == NEW_ID
    assert [vertex.name for vertex in submission.graph.vertices] == ["orders", "clean", "out"]
    assert topological(submission.graph.vertices) == ("orders", "clean", "out")
    assert submission.graph.params == {"day": "2026-01-01", "n": 3}
    assert (submission.idempotency_key, submission.digest) == (None, "")


def test_a_client_may_choose_the_jobs_id(rest: RestHarness) -> None:
    """The id in the document is the job's."""
    assert submit(rest, {**SPEC, "jobId": B}) == B


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"])
def test_json_is_taken_however_it_is_announced(rest: RestHarness, content_type: str) -> None:
    """With parameters, or in capitals."""
    response = rest.call("POST", "/jobs", content=json.dumps(SPEC), headers={"content-type": content_type})

    assert response.status_code == 202


def test_files_are_sent_with_the_document(rest: RestHarness) -> None:
    """Stored under their own hash before the job is handed on, and held meanwhile."""
    document = {
        **SPEC,
        "artifacts": ["lib.zip", {"name": "f.pickle", "kind": "pickle"}],
        "steps": {**SPEC["steps"], "clean": {"function": {"pickle": "f.pickle"}, "inputs": ["orders"]}},
    }

    response = rest.call("POST", "/jobs", files=parts(document, lib_zip=LIB, f_pickle=b"pickled"))

    assert response.status_code == 202, response.text
    (submission,) = rest.dispatcher.submissions
    lib, pickle = submission.graph.artifacts
    assert (lib.name, lib.blob, lib.size, lib.kind) == ("lib.zip", LIB_KEY, len(LIB), ArtifactKind.PY_FILE)
    assert (pickle.name, pickle.kind) == ("f.pickle", ArtifactKind.PICKLE)
    assert submission.graph.vertex("clean").operation == Function(pickle="f.pickle")
    assert rest.blobs.content[LIB_KEY] == LIB
    assert set(rest.blobs.pinned[0]) == {lib.blob, pickle.blob} == set(rest.blobs.content)
    assert rest.blobs.open_pins == 0


def test_jars_are_sent_with_the_document_and_need_a_dedicated_engine(rest: RestHarness) -> None:
    response = rest.call("POST", "/jobs", files=parts({**SPEC, "jars": ["own.jar"]}, own_jar=LIB))

    assert response.status_code == 202, response.text
    (submission,) = rest.dispatcher.submissions
    assert [(one.name, one.blob, one.kind) for one in submission.graph.artifacts] == [
        ("own.jar", LIB_KEY, ArtifactKind.JAR)
    ]
    assert submission.graph.engine is EngineKind.DEDICATED


def test_large_files_are_stored_completely(rest: RestHarness) -> None:
    """What is too large for memory waits on disk, and arrives as it was sent."""
    large = bytes(range(256)) * 20_000

    response = rest.call("POST", "/jobs", files=parts(WITH_LIB, lib_zip=large))

    assert response.status_code == 202
    assert [*rest.blobs.content.values()] == [large]


def test_blobs_that_are_there_already_need_not_be_sent_again(rest: RestHarness) -> None:
    """POST /blobs answers with the content's hash and size; a document names it."""
    response = rest.call("POST", "/blobs", content=LIB)
    assert (response.status_code, response.json()) == (201, {"blob": LIB_KEY, "size": len(LIB)})

    submit(rest, {**SPEC, "artifacts": [{"name": "lib.zip", "blob": LIB_KEY}]})

    (artifact,) = rest.dispatcher.submissions[0].graph.artifacts
    assert (artifact.name, artifact.blob, artifact.size) == ("lib.zip", LIB_KEY, len(LIB))


@pytest.mark.parametrize("blob", [LIB_KEY, "nonsense", ""])
def test_a_blob_that_does_not_exist_is_refused(rest: RestHarness, blob: str) -> None:
    """The artifact and the blob are named."""
    errors = rest.refused(400, "POST", "/jobs", json={**SPEC, "artifacts": [{"name": "lib.zip", "blob": blob}]})

    assert errors == [f"job, field 'artifacts': the artifact 'lib.zip' names the blob {blob!r}, which does not exist"]


def test_the_same_key_is_the_same_job(rest: RestHarness) -> None:
    """However often it is sent, and with the keys of the document in any order; the answer says that it is a replay."""
    first = rest.call("POST", "/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
    turned = {key: SPEC[key] for key in reversed(SPEC)} | {"params": {"n": 3, "day": "2026-01-01"}}
    again = rest.call("POST", "/jobs", json=turned, headers={"Idempotency-Key": "k"})

    assert first.json() == again.json() == {"jobid": NEW_ID}
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    assert len(rest.dispatcher.submissions) == 1


def test_files_of_a_replay_are_removed(rest: RestHarness) -> None:
    """The job has those of the first submission."""
    for replay in (False, True):
        key = {"Idempotency-Key": "k"}
        response = rest.call("POST", "/jobs", files=parts(WITH_LIB, lib_zip=LIB), headers=key)
        assert response.status_code == 202, response.text
        assert rest.blobs.abandoned == ([LIB_KEY] if replay else [])


def test_the_same_key_with_another_graph_is_refused(rest: RestHarness) -> None:
    """422: the client has mixed something up."""
    submit(rest, key="k")

    errors = rest.refused(
        422, "POST", "/jobs", json={**SPEC, "params": {"day": "x", "n": 4}}, headers={"Idempotency-Key": "k"}
    )

    assert "idempotency key 'k'" in errors[0]


def digest(rest: RestHarness, document: dict[str, Any], **files: bytes) -> str:
    """Return the digest that a submission has."""
    key = {"Idempotency-Key": str(len(rest.dispatcher.submissions))}
    response = rest.call("POST", "/jobs", files=parts(document, **files), headers=key)
    assert response.status_code == 202, response.text
    return rest.dispatcher.submissions[-1].digest


def test_a_digest_depends_on_documents_and_files_but_not_on_ids() -> None:
    """Equal for equal documents and contents, whatever the job's id; different for anything else."""
    rest = RestHarness()
    base = digest(rest, {**WITH_LIB, "jobId": A}, lib_zip=LIB)

    assert digest(rest, {**WITH_LIB, "jobId": B}, lib_zip=LIB) == base
    assert digest(rest, WITH_LIB, lib_zip=LIB) == base
    assert digest(rest, WITH_LIB, lib_zip=LIB + b"!") != base
    assert digest(rest, {**WITH_LIB, "parallelism": 2}, lib_zip=LIB) != base
    assert digest(rest, {**WITH_LIB, "name": "other"}, lib_zip=LIB) != base
    assert digest(rest, {**WITH_LIB, "artifacts": [{"name": "lib.zip", "kind": "file"}]}, lib_zip=LIB) != base
    assert digest(rest, {**WITH_LIB, "artifacts": ["x.zip"]}, x_zip=LIB) != base


def test_a_digest_is_the_same_for_content_sent_now_or_before() -> None:
    """Only the content counts, not the way it came."""
    rest = RestHarness()
    sent = digest(rest, WITH_LIB, lib_zip=LIB)

    assert digest(rest, WITH_LIB, lib_zip=LIB) == sent


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
def test_a_key_that_is_none_is_refused(rest: RestHarness, key: str) -> None:
    """Empty, endless or unprintable."""
    errors = rest.refused(400, "POST", "/jobs", json=SPEC, headers={"Idempotency-Key": key})

    assert errors == ["header Idempotency-Key: give 1 to 255 printable characters"]
    assert rest.dispatcher.submissions == []


def test_a_known_id_is_a_conflict(rest: RestHarness) -> None:
    """409: one job id is one job."""
    submit(rest, {**SPEC, "jobId": A})

    assert rest.refused(409, "POST", "/jobs", json={**SPEC, "jobId": A}) == [f"job {A} is known already"]


@pytest.mark.parametrize("job_id", ["", "x", "A" * 32, "a" * 31, "a" * 33, "../../../../../../etc/passwd"])
def test_a_bad_job_id_is_refused(rest: RestHarness, job_id: str) -> None:
    """32 lower-case hex digits."""
    (error,) = rest.refused(400, "POST", "/jobs", json={**SPEC, "jobId": job_id})

    assert error == f"job, field 'jobId': {job_id!r} is not a job id: 32 lower-case hex digits"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"{'name': 1}", "the request is not JSON"),
        (b"\xff\xfe", "the request is not JSON"),
        (b"[" * 99_000, "the request is not JSON"),
        (b"[" * 100_001, "the request has about 100002 values; at most 100000 are allowed"),
        (b'{"name": 1e999}', "the request is not JSON"),
        (b"[]", "job: must be a mapping, not a list"),
        (b"null", "job: must be a mapping, not nothing"),
        (b'"x"', "job: must be a mapping, not text"),
    ],
)
def test_a_malformed_body_is_refused(rest: RestHarness, body: bytes, expected: str) -> None:
    """The error names what is wrong; nothing is guessed."""
    (error,) = rest.refused(400, "POST", "/jobs", content=body, headers={"content-type": "application/json"})

    assert error.startswith(expected)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-yaml", "application/x-www-form-urlencoded", "x"])
def test_an_unknown_content_type_is_refused(rest: RestHarness, content_type: str) -> None:
    """With the ones that are known."""
    errors = rest.refused(415, "POST", "/jobs", content=b"{}", headers={"content-type": content_type})

    assert errors == [
        f"the content type {content_type!r} is not accepted: send multipart/form-data or application/json"
    ]


@pytest.mark.parametrize("headers", [{}, {"content-type": ""}])
def test_a_submission_without_a_content_type_is_refused(rest: RestHarness, headers: dict[str, str]) -> None:
    """A web page sends one so, without the browser's question whether it may."""
    errors = rest.refused(415, "POST", "/jobs", content=json.dumps(SPEC), headers=headers)

    assert errors == ["the request has no content type: send multipart/form-data or application/json"]
    assert not rest.dispatcher.submissions


def test_every_problem_is_reported_and_nothing_is_stored(rest: RestHarness) -> None:
    """All problems of graph, parameters, files and configuration at once; neither blobs nor a job are left."""
    document = {
        **SPEC,
        "name": "",
        "jobId": "x",
        "artifacts": ["lib.zip", "gone.zip"],
        "config": {"rest.port": 1, "restart-strategy.typ": "none"},
        "steps": {
            "orders": {"source": {"format": "csv", "path": "${dya}"}},
            "out": {"sink": {"format": "parquet", "path": "/out"}, "inputs": ["order"]},
        },
    }

    errors = rest.refused(400, "POST", "/jobs", files=parts(document, lib_zip=LIB, more_zip=b"x"))

    assert errors == [
        "job, field 'jobId': 'x' is not a job id: 32 lower-case hex digits",
        "job, field 'artifacts': the file 'more.zip' was sent, but is not among the job's artifacts",
        "step 'orders', field 'source': no parameter 'dya' for ${dya}; did you mean 'day'?",
        "job, field 'artifacts': no file was sent for the artifact 'gone.zip'",
        "job, field 'name': the job needs a name",
        "step 'out', field 'inputs': there is no step 'order'; did you mean 'orders'?",
        "job, field 'config.rest.port': is an option of the cluster: a job cannot set it",
        "job, field 'config.restart-strategy.typ': unknown option; did you mean 'restart-strategy.type'?",
    ]
    assert rest.blobs.content == {}
    assert rest.blobs.pinned == []
    assert rest.dispatcher.submissions == []


def test_the_value_of_a_secret_parameter_is_refused_and_neither_stored_nor_quoted(rest: RestHarness) -> None:
    document = {**SPEC, "params": {**SPEC["params"], "n": "hunter2"}, "secretParams": ["n"]}
    refused = rest.call("POST", "/jobs", json=document)
    assert refused.status_code == 400
    assert "'n' is a secret" in refused.text
    assert "hunter2" not in refused.text
    assert rest.dispatcher.submissions == []

    submit(rest, {**SPEC, "params": {**SPEC["params"], "n": "${secret:N}"}, "secretParams": ["n"]})
    assert rest.dispatcher.submissions[0].graph.params["n"] == "${secret:N}"


def test_an_unknown_key_is_reported_with_the_nearest_one(rest: RestHarness) -> None:
    """Nothing in a document is passed over."""
    assert rest.refused(400, "POST", "/jobs", json={**SPEC, "parallelizm": 2}) == [
        "job, field 'parallelizm': unknown key; did you mean 'parallelism'?"
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([("file", ("lib.zip", LIB, "application/zip"))], "needs exactly one part 'request', not 0"),
        ([*parts(SPEC), *parts(SPEC)], "needs exactly one part 'request', not 2"),
        ([*parts(SPEC), ("other", ("x", b"", "text/plain"))], "unknown part 'other' in the multipart body"),
        ([*parts(SPEC), ("file", (None, b"x", "text/plain"))], "a part 'file' needs a file name"),
        (
            [*parts(WITH_LIB, lib_zip=LIB), ("file", ("lib.zip", b"y", "application/zip"))],
            "two parts 'file' have the name 'lib.zip'",
        ),
        ([("request", (None, "{", "application/json"))], "the request is not JSON"),
    ],
)
def test_unexpected_parts_are_refused(rest: RestHarness, files: Files, expected: str) -> None:
    """Which part, and what is wrong with it."""
    (error,) = rest.refused(400, "POST", "/jobs", files=files)

    assert expected in error
    assert rest.blobs.content == {}


def test_the_document_may_come_as_a_file_part(rest: RestHarness) -> None:
    """Some clients give every part a file name."""
    response = rest.call("POST", "/jobs", files=[("request", ("job.json", json.dumps(SPEC), "application/json"))])

    assert response.status_code == 202


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"garbage"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n{'),
        ("multipart/form-data; boundary=x; charset=martian", b"--x\r\n"),
    ],
)
def test_a_broken_multipart_body_is_refused(rest: RestHarness, content_type: str, body: bytes) -> None:
    """However it is broken."""
    rest.refused(400, "POST", "/jobs", content=body, headers={"content-type": content_type})

    assert rest.dispatcher.submissions == []


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_no_multipart_body_is_too_strange_to_be_refused(body: bytes) -> None:
    """Whatever stands between the boundaries."""
    rest = RestHarness()
    start = b'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n'

    rest.refused(
        400, "POST", "/jobs", content=start + body, headers={"content-type": "multipart/form-data; boundary=x"}
    )


async def pieces(size: int) -> AsyncIterator[bytes]:
    """A body without an announced length."""
    for _ in range(size // 1000):
        yield b"x" * 1000


@pytest.mark.parametrize(
    ("path", "headers"), [("/jobs", {"content-type": "application/json"}), ("/blobs", {})], ids=["/jobs", "/blobs"]
)
def test_what_is_announced_too_large_is_refused_unread(path: str, headers: dict[str, str]) -> None:
    """413, before the first byte."""
    rest = RestHarness(**{"rest.server.max-content-length": "10k"})

    (error,) = rest.refused(413, "POST", path, content=b"x" * 20_000, headers=headers)

    assert error == "the body has 20000 bytes; rest.server.max-content-length allows 10240"


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/jobs", "application/json"),
        ("/blobs", "application/octet-stream"),
    ],
)
def test_what_turns_out_too_large_is_refused_as_soon_as_it_is(path: str, content_type: str) -> None:
    """413, though no length was announced; nothing of it stays."""
    rest = RestHarness(**{"rest.server.max-content-length": "10k"})

    async def send() -> tuple[int, dict[str, list[str]]]:
        response = await rest.request("POST", path, content=pieces(50_000), headers={"content-type": content_type})
        return response.status_code, response.json()

    assert asyncio.run(send()) == (
        413,
        {"errors": ["the body is larger than the 10240 bytes that rest.server.max-content-length allows"]},
    )
    assert rest.blobs.content == {}


def test_a_file_that_is_too_large_is_refused_though_its_length_was_not_announced() -> None:
    """Files on their way to disk count like everything else."""
    rest = RestHarness(**{"rest.server.max-content-length": "10k"})
    head = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n"
    )

    async def body() -> AsyncIterator[bytes]:
        yield head
        async for piece in pieces(50_000):
            yield piece

    async def send() -> int:
        kind = {"content-type": "multipart/form-data; boundary=x"}
        return (await rest.request("POST", "/jobs", content=body(), headers=kind)).status_code

    assert asyncio.run(send()) == 413


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/jobs", b"application/json"),
        ("/jobs", b"multipart/form-data; boundary=x"),
        ("/blobs", b"application/octet-stream"),
    ],
)
def test_nothing_remains_of_a_client_that_disconnects(rest: RestHarness, path: str, content_type: bytes) -> None:
    """Half a body is no body, and it is not logged as an error."""
    messages: list[Any] = [
        {"type": "http.request", "body": b'--x\r\nContent-Disposition: form-data; name="request"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def serve() -> None:
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": ""}
        await rest.app({**scope, "headers": [(b"content-type", content_type), *rest.raw_headers]}, receive, send)

    asyncio.run(serve())

    assert sent[0]["status"] == 400
    assert b"the body is incomplete" in sent[1]["body"]
    assert rest.blobs.content == {}
    assert rest.dispatcher.submissions == []


@pytest.mark.parametrize("error", [Unavailable("no JobManager leads"), Fenced("not any more")])
def test_without_a_leader_a_submission_may_be_repeated(rest: RestHarness, error: FlintlockError) -> None:
    """503 with Retry-After; the client's key makes repeating safe."""
    rest.dispatcher.fail_with = error

    response = rest.call("POST", "/jobs", json=SPEC)

    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"errors": [error.public]}


def test_blobs_are_addressed_by_their_content(rest: RestHarness) -> None:
    """The same content twice is one blob; empty content is one, too."""
    keys = [rest.call("POST", "/blobs", content=content).json()["blob"] for content in (LIB, LIB, b"")]

    assert keys[0] == keys[1] == LIB_KEY
    assert rest.blobs.content == {LIB_KEY: LIB, keys[2]: b""}


def test_a_new_id_is_drawn_for_every_submission(rest: RestHarness) -> None:
    """Two submissions without a key are two jobs."""
    assert submit(rest) != submit(rest)
    assert JobId(NEW_ID) in {submission.graph.job_id for submission in rest.dispatcher.submissions}


def test_a_body_in_an_encoding_that_is_not_read_is_415(rest: RestHarness) -> None:
    response = rest.call("POST", "/jobs", content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert response.json() == {"errors": ["Content-Encoding 'gzip' is not supported: send the body as it is"]}
    plain = rest.call(
        "POST",
        "/jobs",
        content=json.dumps(SPEC),
        headers={"content-encoding": "identity", "content-type": "application/json"},
    )
    assert plain.status_code == 202


def test_relative_data_paths_are_refused_with_the_step(rest: RestHarness) -> None:
    """A client makes them absolute; the cluster has no directory that they could start in."""
    steps = {
        "orders": {"source": {"format": "csv", "path": ["in", "s3a://bucket/in"]}},
        "out": {"sink": {"format": "parquet", "path": "out"}, "inputs": ["orders"]},
    }
    errors = rest.refused(400, "POST", "/jobs", json={"name": "j", "directory": "here", "steps": steps})
    assert errors == [
        "job, field 'directory': 'here' is not an absolute path",
        "step 'orders', field 'source': the path 'in' is relative: give an absolute one",
        "step 'out', field 'sink': the path 'out' is relative: give an absolute one",
    ]
