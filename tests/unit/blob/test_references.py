from __future__ import annotations

from flintlock.blob.references import References
from flintlock.model.ids import BlobKey, JobId

A, B = JobId("a" * 32), JobId("b" * 32)
X, Y = BlobKey("x"), BlobKey("y")


def test_a_blob_is_protected_by_any_job_pin_or_upload() -> None:
    references = References()
    assert not references.is_referenced(X)

    references.retain(A, [X])
    references.retain(B, [X, Y])
    references.release(A)
    assert references.is_referenced(X)
    assert references.release(B) == {X, Y}
    assert not references.is_referenced(X)

    with references.pin([X]):
        assert references.is_referenced(X)
    assert not references.is_referenced(X)

    references.uploaded(X, 10.0)
    references.expire(10.0)
    assert references.is_referenced(X)
    references.expire(10.5)
    assert not references.is_referenced(X)


def test_each_job_takes_up_one_upload_however_often_it_retains() -> None:
    references = References()
    references.uploaded(X, 1.0)
    references.uploaded(X, 1.0)
    references.retain(A, [X])
    references.retain(A, [X])

    references.release(A)

    assert references.is_referenced(X), "the second upload waits for its job"


def test_a_release_that_is_taken_back_takes_up_no_upload() -> None:
    references = References()
    references.retain(A, [X])
    references.uploaded(X, 1.0)

    references.restore(A, references.release(A))
    assert references.release(A) == {X}

    assert references.is_referenced(X)


def test_a_term_begins_with_its_jobs_and_keeps_uploads_and_holds() -> None:
    references = References()
    references.retain(A, [X])
    references.uploaded(Y, 1.0)

    references.retain_only({B: [], A: []})

    assert not references.is_referenced(X)
    assert references.is_referenced(Y)
    assert references.release(A) == frozenset()
