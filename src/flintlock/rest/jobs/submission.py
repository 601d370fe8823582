"""Submissions: the body of POST /jobs becomes blobs and a JobGraph. Nothing is stored until all of it is valid."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final, Protocol

import msgspec
from msgspec import Struct, structs
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from flintlock.config.job_problems import job_problems
from flintlock.model.checking.graphcheck import submission_problems
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, SpecProblem, draft_graph, named_artifacts, read_spec
from flintlock.model.checking.limits import MAX_ARTIFACTS, MAX_DOCUMENT_BYTES
from flintlock.model.checking.problems import Problem, abbreviated, reported
from flintlock.model.errors import Invalid, TooLarge
from flintlock.model.ids import BlobKey, JobId, is_blob_key, is_job_id
from flintlock.model.jobgraph import Artifact, JobGraph
from flintlock.model.jobs import JobSubmission
from flintlock.rest.server.request_body import (
    SMALL_BYTES,
    decode,
    header,
    off_loop,
    read_document,
    read_stream,
    utf8_problem,
)

_CHUNK: Final = 1 << 20
_MAX_FILES: Final = MAX_ARTIFACTS
_MAX_FIELDS: Final = 8  # one is expected; each is read into memory, files are not
_LONGEST_KEY: Final = 255


class BlobUploads(Protocol):
    """Where uploaded content goes."""

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store content durably; return its key and size."""
        ...

    async def abandon(self, keys: Collection[BlobKey]) -> None:
        """No job will take up these uploads. Raises nothing."""
        ...

    async def size_of(self, key: BlobKey) -> int | None:
        """Return a stored blob's size, or None if it is not there."""
        ...

    def pin(self, keys: Iterable[BlobKey]) -> AbstractContextManager[None]:
        """Keep these blobs while the context lasts, though no job refers to them yet."""
        ...


class Upload(Struct, frozen=True, kw_only=True):
    """One file of a submission, hashed but not stored."""

    name: str
    key: BlobKey
    size: int
    file: UploadFile


class Submission(Struct, frozen=True, kw_only=True):
    """A valid submission, and the files that must be stored before it is handed on."""

    message: JobSubmission
    uploads: tuple[Upload, ...]

    @property
    def blob_keys(self) -> tuple[BlobKey, ...]:
        """All blobs that the graph refers to."""
        return tuple(artifact.blob for artifact in self.message.graph.artifacts)


@asynccontextmanager
async def reading_submission(
    request: Request, blobs: BlobUploads, new_id: JobId, limit: int
) -> AsyncGenerator[Submission]:
    """Read and check the body of POST /jobs; its files can be stored while the context lasts.

    Raises Invalid with every problem, TooLarge.
    """
    kind = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":  # the row of the route allows one other: JSON
        body = await read_document(request, limit)
        yield Submission(message=await _message(request, body, (), blobs, new_id), uploads=())
        return
    form = await _read_form(request, limit)
    try:
        body, uploads = await _parts(form)
        yield Submission(message=await _message(request, body, uploads, blobs, new_id), uploads=uploads)
    finally:
        await form.close()  # large files wait on disk until then


async def _message(
    request: Request, body: bytes, uploads: tuple[Upload, ...], blobs: BlobUploads, new_id: JobId
) -> JobSubmission:
    """Return the submission that a document and its files make. Raises Invalid with every problem."""
    spec = await off_loop(len(body), lambda: _spec(body))
    stored, problems = await _stored_artifacts(spec, uploads, blobs)
    key = idempotency_key(request)
    check = bool(uploads) or len(body) > SMALL_BYTES

    def checked() -> tuple[JobGraph, str]:
        known = {upload.name: Artifact(name=upload.name, blob=upload.key, size=upload.size) for upload in uploads}
        graph = _graph(spec, {**known, **stored}, problems, new_id, check=check)
        return graph, "" if key is None else _digest(spec, graph)

    graph, digest = await off_loop(len(body), checked)
    return JobSubmission(graph=graph, idempotency_key=key, digest=digest)


def graph_of_document(document: bytes, artifacts: Mapping[str, Artifact], job_id: JobId) -> JobGraph:
    """Return the graph of a document whose artifacts are these. Raises Invalid with every problem."""
    spec = _spec(document)
    named = [item.name for item in spec.artifacts if isinstance(item, ArtifactSpec) and item.blob is not None]
    problems = [Problem(field="artifacts", message=f"{name!r} names a blob, not a file") for name in named]
    return _graph(spec, artifacts, problems, job_id, check=True)


async def store_uploads(submission: Submission, blobs: BlobUploads) -> None:
    """Store the submission's files."""
    for upload in submission.uploads:
        await blobs.put(_pieces(upload.file))


def _spec(body: bytes) -> JobSpec:
    spec, problems = read_spec(decode(body))
    if spec is None:
        raise _invalid(problems)
    return spec


def _graph(
    spec: JobSpec,
    artifacts: Mapping[str, Artifact],
    problems: list[Problem],
    new_id: JobId,
    *,
    check: bool,
) -> JobGraph:
    """Return the graph that the document and its files make. Raises Invalid with all that is wrong with it.

    The Dispatcher checks every graph. With `check` the checks come first: before files are stored, for a document that
    is too large for the loop, and (always) to report all problems together with those of the document.
    """
    problems = [*_id_problems(spec), *problems]
    graph, unfilled = draft_graph(spec, JobId(spec.job_id or new_id), artifacts)
    problems += unfilled
    if problems or check or any(submission_problems(graph)):  # the Dispatcher does not look for these
        problems += job_problems(graph)
    if problems:
        raise _invalid(problems)
    return graph


def _id_problems(spec: JobSpec) -> Iterable[Problem]:
    if spec.job_id is not None and not is_job_id(spec.job_id):
        text = f"{abbreviated(spec.job_id)!r} is not a job id: 32 lower-case hex digits"
        yield Problem(field="jobId", message=text)


async def _stored_artifacts(
    spec: JobSpec, uploads: tuple[Upload, ...], blobs: BlobUploads
) -> tuple[dict[str, Artifact], list[Problem]]:
    """Return the artifacts that the document names by their blobs, and what is wrong with artifacts and files."""
    names = {item.name for item in named_artifacts(spec)}
    problems = [
        Problem(field="artifacts", message=f"the file {upload.name!r} was sent, but is not among the job's artifacts")
        for upload in uploads
        if upload.name not in names
    ]
    stored: dict[str, Artifact] = {}
    for item in spec.artifacts[: MAX_ARTIFACTS + 1]:  # one more than is allowed: more are refused unseen
        if isinstance(item, ArtifactSpec) and item.blob is not None:
            stored[item.name] = await _stored(item, blobs, problems)
    return stored, problems


async def _stored(item: ArtifactSpec, blobs: BlobUploads, problems: list[Problem]) -> Artifact:
    blob = item.blob or ""
    size = await blobs.size_of(BlobKey(blob)) if is_blob_key(blob) else None
    if size is None:
        text = f"the artifact {abbreviated(item.name)!r} names the blob {abbreviated(blob)!r}, which does not exist"
        problems.append(Problem(field="artifacts", message=text))
    return Artifact(name=item.name, blob=BlobKey(blob), size=size or 0)


def idempotency_key(request: Request) -> str | None:
    """Return the key under which a submission can be repeated. Raises Invalid."""
    key = header(request, b"idempotency-key")
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
        raise Invalid(f"header Idempotency-Key: give 1 to {_LONGEST_KEY} printable characters")
    return key


def _digest(spec: JobSpec, graph: JobGraph) -> str:
    """What makes two submissions the same: the document and the content of its files, not the job's id.

    Nor the order of keys: a client that repeats itself may write them in another one.
    """
    without_id = structs.replace(spec, job_id=None)
    digest = hashlib.sha256(msgspec.json.encode(without_id, order="deterministic"))
    for artifact in sorted(graph.artifacts, key=lambda item: item.name):
        digest.update(f"{artifact.name}\0{artifact.blob}\0".encode())
    return digest.hexdigest()


def _invalid(problems: Iterable[SpecProblem | Problem]) -> Invalid:
    lines = reported(problems)
    return Invalid("; ".join(lines), problems=lines)


class _FormParser(MultiPartParser):
    """Starlette's parser, except that a field is bounded as a document is, and must be text in its encoding.

    Starlette reads a field that is not UTF-8 as Latin-1: other text than was sent, without an error.
    """

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None and len(self._current_part.data) + end - start > MAX_DOCUMENT_BYTES:
            raise _document_too_large()
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        part = self._current_part
        if part.file is None and self._charset == "utf-8" and (problem := utf8_problem(bytes(part.data))):
            raise Invalid(f"the part {abbreviated(part.field_name)!r} cannot be read: {problem}")
        super().on_part_end()


def _document_too_large() -> TooLarge:
    return TooLarge(f"the job document is larger than {MAX_DOCUMENT_BYTES} bytes")


async def _read_form(request: Request, limit: int) -> FormData:
    """Read the parts of a multipart body. Raises Invalid, TooLarge."""
    body = read_stream(request, limit)
    parser = _FormParser(
        request.headers, body, max_files=_MAX_FILES, max_fields=_MAX_FIELDS, max_part_size=MAX_DOCUMENT_BYTES
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise Invalid(f"the multipart body cannot be read: {error.message}") from None
    finally:
        await body.aclose()


async def _parts(form: FormData) -> tuple[bytes, tuple[Upload, ...]]:
    """Return the document and the files of a form. Raises Invalid, TooLarge."""
    unknown = [name for name in form if name not in ("request", "file")]
    if unknown:
        raise Invalid(f"unknown part {unknown[0]!r} in the multipart body; known are 'request' and 'file'")
    given = form.getlist("request")
    if len(given) != 1:
        raise Invalid(f"the multipart body needs exactly one part 'request', not {len(given)}")
    document = await _document(given[0])
    uploads: dict[str, Upload] = {}
    for item in form.getlist("file"):
        if not isinstance(item, UploadFile) or not item.filename:
            raise Invalid("a part 'file' needs a file name: the artifact's name")
        if item.filename in uploads:
            raise Invalid(f"two parts 'file' have the name {item.filename!r}")
        uploads[item.filename] = await _hashed(item.filename, item)
    return document, tuple(uploads.values())


async def _document(part: UploadFile | str) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if (part.size or 0) > MAX_DOCUMENT_BYTES:
        raise _document_too_large()
    return await part.read()


async def _hashed(name: str, file: UploadFile) -> Upload:
    digest, size = hashlib.sha256(), 0
    async for piece in _pieces(file):
        digest.update(piece)
        size += len(piece)
    return Upload(name=name, key=BlobKey(f"sha256-{digest.hexdigest()}"), size=size, file=file)


async def _pieces(file: UploadFile) -> AsyncIterator[bytes]:
    await file.seek(0)
    while piece := await file.read(_CHUNK):
        yield piece
