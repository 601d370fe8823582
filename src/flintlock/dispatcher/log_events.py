"""Names of the Dispatcher's log lines: constants, so that they can be searched for and counted on."""

from __future__ import annotations

from typing import Final

JOB_PHASE: Final = "job phase"
JOB_CLEAN: Final = "job clean"
JOB_NOT_ACCEPTED: Final = "job not accepted"
JOB_NOT_INITIALISED: Final = "job could not be initialised"
JOB_MASTER_CRASHED: Final = "JobMaster ended by an error"
JOB_CANCEL_ASKED: Final = "job cancel asked"
JOB_CLIENT_GONE: Final = "attached client was silent for too long: its job is cancelled"
JOB_CANCEL_TOO_LATE: Final = "job cancel came too late"
PROGRESS_UNREADABLE: Final = "progress of a job could not be read"
JOB_NOT_ARCHIVED: Final = "ended job could not be archived"
JOB_NOT_ANSWERING: Final = "JobMaster does not answer"
JOB_QUARANTINED: Final = "job quarantined"
JOB_LEFTOVER: Final = "graph of an ended job found"
ARCHIVE_UNREADABLE: Final = "archived job could not be read"
RESULT_NOT_CLEAN: Final = "result could not be marked clean"
CLEANUP_RETRY: Final = "cleanup will be tried again"
BLOBS_NOT_PRUNED: Final = "blobs of unknown jobs could not be removed"
BLOBS_EXPIRED: Final = "uploads without a job expired"
JOBS_EXPIRED: Final = "ended jobs expired"
JOBS_NOT_EXPIRED: Final = "ended jobs could not be expired"
LEADER_STATE: Final = "leader process"
LEADER_RECOVERED: Final = "jobs recovered"
LEADER_FENCED: Final = "a newer leader has written: this term is over"
