"""Submissions: the body of POST /jobs becomes blobs and a JobGraph. Nothing is stored until all of it is valid."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, Protocol

import msgspec
from msgspec import Struct, structs
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from flintlock.config.job_problems import job_problems
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, SpecProblem, draft_graph, read_spec
from flintlock.model.checking.problems import Problem
from flintlock.model.errors import Invalid, TooLarge
from flintlock.model.ids import BlobKey, JobId, is_blob_key, is_job_id
from flintlock.model.jobgraph import Artifact, JobGraph
from flintlock.model.jobs import JobSubmission

_CHUNK: Final = 1 << 20
_MAX_FILES: Final = 1000
_MAX_DOCUMENT: Final = 64 << 20  # a document is read into memory; files are not
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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    async with AsyncExitStack() as cleanup:
        if kind == "multipart/form-data":
            document, uploads = await _read_multipart(request, limit, cleanup)
        elif kind in ("application/json", ""):
            document, uploads = await read_document(request, limit), ()
        else:
            raise Invalid(f"content type {kind!r}: send multipart/form-data or application/json")
        spec, problems = read_spec(document)
        if spec is None:
            raise _invalid(problems)
        graph = await _graph(spec, uploads, blobs, new_id)
        key = _key(request)
        digest = "" if key is None else _digest(spec, graph)
        message = JobSubmission(graph=graph, idempotency_key=key, digest=digest)
        yield Submission(message=message, uploads=uploads)


async def store_uploads(submission: Submission, blobs: BlobUploads) -> None:
    """Store the submission's files."""
    for upload in submission.uploads:
        await blobs.put(_pieces(upload.file))


async def read_stream(request: Request, limit: int) -> AsyncGenerator[bytes]:
    """Yield the body piece by piece. Raises TooLarge as soon as it is."""
    _check_length(request, limit)
    seen = 0
    try:
        async for piece in request.stream():
            seen += len(piece)
            if seen > limit:
                raise TooLarge(f"the body is larger than the {limit} bytes that rest.server.max-content-length allows")
            yield piece
    except ClientDisconnect:
        raise Invalid("the body is incomplete") from None


async def read_document(request: Request, limit: int) -> object:
    """Return the body, decoded from JSON. Raises Invalid, TooLarge."""
    return _decode(await _read_body(request, limit))


async def _graph(spec: JobSpec, uploads: tuple[Upload, ...], blobs: BlobUploads, new_id: JobId) -> JobGraph:
    """Return the graph that the document and its files make. Raises Invalid with all that is wrong with it.

    The Dispatcher checks every graph. The check here is only for graphs where it has to come first: before files are
    stored, and to report all problems together with those of the document.
    """
    problems: list[Problem] = []
    if spec.job_id is not None and not is_job_id(spec.job_id):
        text = f"{spec.job_id!r} is not a job id: 32 lower-case hex digits"
        problems.append(Problem(field="jobId", message=text))
    known = {upload.name: Artifact(name=upload.name, blob=upload.key, size=upload.size) for upload in uploads}
    names = {item if isinstance(item, str) else item.name for item in spec.artifacts}
    problems += [
        Problem(field="artifacts", message=f"the file {name!r} was sent, but is not among the job's artifacts")
        for name in known
        if name not in names
    ]
    for item in spec.artifacts:
        if isinstance(item, ArtifactSpec) and item.blob is not None:
            known[item.name] = await _stored(item, blobs, problems)
    graph, unfilled = draft_graph(spec, JobId(spec.job_id or new_id), known)
    problems += unfilled
    if problems or uploads:
        problems += job_problems(graph)
    if problems:
        raise _invalid(problems)
    return graph


async def _stored(item: ArtifactSpec, blobs: BlobUploads, problems: list[Problem]) -> Artifact:
    blob = item.blob or ""
    size = await blobs.size_of(BlobKey(blob)) if is_blob_key(blob) else None
    if size is None:
        text = f"the artifact {item.name!r} names the blob {blob!r}, which does not exist"
        problems.append(Problem(field="artifacts", message=text))
    return Artifact(name=item.name, blob=BlobKey(blob), size=size or 0)


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
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
    lines = tuple(str(problem) for problem in problems)
    return Invalid("; ".join(lines), problems=lines)


def _check_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise TooLarge(f"the body has {length} bytes; rest.server.max-content-length allows {limit}")


async def _read_body(request: Request, limit: int) -> bytes:
    return b"".join([piece async for piece in read_stream(request, limit)])


async def _read_multipart(request: Request, limit: int, cleanup: AsyncExitStack) -> tuple[object, tuple[Upload, ...]]:
    """Read the parts; large files wait on disk until `cleanup` closes them."""
    body = read_stream(request, limit)
    parser = MultiPartParser(
        request.headers, body, max_files=_MAX_FILES, max_fields=_MAX_FILES, max_part_size=min(limit, _MAX_DOCUMENT)
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Invalid(f"the multipart body cannot be read: {error.message}") from None
    finally:
        await body.aclose()
    cleanup.push_async_callback(form.close)
    unknown = [name for name in form if name not in ("request", "file")]
    if unknown:
        raise Invalid(f"unknown part {unknown[0]!r} in the multipart body; known are 'request' and 'file'")
    given = form.getlist("request")
    if len(given) != 1:
        raise Invalid(f"the multipart body needs exactly one part 'request', not {len(given)}")
    document = await given[0].read() if isinstance(given[0], UploadFile) else given[0].encode()
    uploads: dict[str, Upload] = {}
    for item in form.getlist("file"):
        if not isinstance(item, UploadFile) or not item.filename:
            raise Invalid("a part 'file' needs a file name: the artifact's name")
        if item.filename in uploads:
            raise Invalid(f"two parts 'file' have the name {item.filename!r}")
        uploads[item.filename] = await _hashed(item.filename, item)
    return _decode(document), tuple(uploads.values())


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


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"the request is not JSON: {error}") from None
