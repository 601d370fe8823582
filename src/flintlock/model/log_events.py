"""Every event that Flintlock logs, with its meaning. `docs/log-events.md` is generated from this table.

An event is named in kebab case: a subject, then what happened to it. Alerts may be built on these names; facts are in
the keys of a log line. The constant of an event is its name in capitals.
"""

from __future__ import annotations

from typing import Final

#: Section, then (event, meaning), in the order of the page.
EVENTS: Final[dict[str, dict[str, str]]] = {}


def _event(section: str, name: str, meaning: str) -> str:
    EVENTS.setdefault(section, {})[name] = meaning
    return name


JOB_PHASE_CHANGED: Final = _event(
    "Jobs (Dispatcher)", "job-phase-changed", "A job moved to another phase in the Dispatcher."
)
JOB_FAILED: Final = _event(
    "Jobs (Dispatcher)",
    "job-failed",
    "A job has failed: its name, the kind of the failure, its message, and the step and the user's line where known.",
)
JOB_CLEANED_UP: Final = _event("Jobs (Dispatcher)", "job-cleaned-up", "Everything that a job left behind was removed.")
JOB_RESULTS_KEPT: Final = _event(
    "Jobs (Dispatcher)",
    "job-results-kept",
    "The blocking results of a failed job are kept for `flintlock rerun --from-failed`; the rest of it was removed.",
)
JOB_NOT_ACCEPTED: Final = _event(
    "Jobs (Dispatcher)", "job-not-accepted", "A submission could not be stored; its client was refused."
)
JOB_INITIALIZATION_FAILED: Final = _event(
    "Jobs (Dispatcher)", "job-initialization-failed", "No JobMaster could be made for a job; the job fails."
)
JOBMASTER_CRASHED: Final = _event(
    "Jobs (Dispatcher)", "jobmaster-crashed", "A JobMaster ended by an error of its own; its job fails."
)
JOB_CANCEL_REQUESTED: Final = _event("Jobs (Dispatcher)", "job-cancel-requested", "A job was asked to cancel.")
JOB_OPERATION_STARTED: Final = _event(
    "Jobs (Dispatcher)", "job-operation-started", "An asynchronous operation of a job was recorded and is carried out."
)
JOB_OPERATION_COMPLETED: Final = _event(
    "Jobs (Dispatcher)", "job-operation-completed", "The outcome of an asynchronous operation of a job was recorded."
)
JOB_OPERATION_NOT_RECORDED: Final = _event(
    "Jobs (Dispatcher)",
    "job-operation-not-recorded",
    "The outcome of an asynchronous operation could not be recorded; the next leader carries the operation out again.",
)
JOB_NOT_DRAINED: Final = _event(
    "Jobs (Dispatcher)",
    "job-not-drained",
    "The attempts of a job that is stopped could not be asked to end: it is tried again.",
)
OPERATION_CRASHED: Final = _event(
    "Jobs (Dispatcher)",
    "operation-crashed",
    "An operation of a job, or the removal of a savepoint, ended by an error of Flintlock's own; that is its outcome.",
)
JOB_OPERATIONS_UNREADABLE: Final = _event(
    "Jobs (Dispatcher)", "job-operations-unreadable", "The recorded operations of a job could not be read."
)
SAVEPOINT_DISPOSED: Final = _event(
    "Jobs (Dispatcher)", "savepoint-disposed", "The outcome of the removal of a savepoint was recorded."
)
SAVEPOINT_DISPOSALS_UNREADABLE: Final = _event(
    "Jobs (Dispatcher)",
    "savepoint-disposals-unreadable",
    "The recorded removals of savepoints could not be read: none that had begun is resumed.",
)
TOKENS_UNREADABLE: Final = _event(
    "Jobs (Dispatcher)", "tokens-unreadable", "The stored access tokens could not be read: none is accepted any more."
)
JOB_CLIENT_TIMED_OUT: Final = _event(
    "Jobs (Dispatcher)", "job-client-timed-out", "An attached client sent no heartbeat in time; its job is cancelled."
)
JOB_CANCEL_IGNORED: Final = _event(
    "Jobs (Dispatcher)", "job-cancel-ignored", "A cancel reached a job that had already ended."
)
JOB_PROGRESS_UNREADABLE: Final = _event(
    "Jobs (Dispatcher)", "job-progress-unreadable", "The recorded progress of a job could not be read."
)
JOB_ARCHIVE_FAILED: Final = _event("Jobs (Dispatcher)", "job-archive-failed", "An ended job could not be archived.")
JOBMASTER_NOT_RESPONDING: Final = _event(
    "Jobs (Dispatcher)",
    "jobmaster-not-responding",
    "A JobMaster did not answer in time; the last known state is shown.",
)
JOB_QUARANTINED: Final = _event(
    "Jobs (Dispatcher)", "job-quarantined", "A job that could not be recovered was quarantined, with its reason."
)
JOB_GRAPH_OF_ENDED_JOB_FOUND: Final = _event(
    "Jobs (Dispatcher)",
    "job-graph-of-ended-job-found",
    "The graph of a job that has ended was found in the store, and is removed.",
)
JOB_ARCHIVE_UNREADABLE: Final = _event(
    "Jobs (Dispatcher)", "job-archive-unreadable", "An archived job could not be read."
)
JOB_RESULT_NOT_MARKED_CLEAN: Final = _event(
    "Jobs (Dispatcher)",
    "job-result-not-marked-clean",
    "A job's result could not be marked clean; the next leader cleans up again.",
)
JOB_CLEANUP_RETRIED: Final = _event(
    "Jobs (Dispatcher)", "job-cleanup-retried", "A part of a job's cleanup failed and is retried."
)
BLOB_PRUNING_FAILED: Final = _event(
    "Jobs (Dispatcher)", "blob-pruning-failed", "Blobs of unknown jobs could not be removed."
)
BLOBS_EXPIRED: Final = _event("Jobs (Dispatcher)", "blobs-expired", "Uploads that no job refers to were removed.")
JOBS_EXPIRED: Final = _event("Jobs (Dispatcher)", "jobs-expired", "Ended jobs were removed after their retention.")
JOB_EXPIRY_FAILED: Final = _event(
    "Jobs (Dispatcher)", "job-expiry-failed", "Ended jobs could not be removed after their retention."
)
LOGS_REMOVED: Final = _event("Jobs (Dispatcher)", "logs-removed", "The output of jobs that expired was removed.")
LOG_REMOVAL_FAILED: Final = _event(
    "Jobs (Dispatcher)", "log-removal-failed", "The output of jobs that expired could not be removed; it is retried."
)
CLOCK_JUMPED: Final = _event(
    "Jobs (Dispatcher)",
    "clock-jumped",
    "The wall clock of the leader's machine was set forward or back. Retention does not depend on it.",
)
LOG_NOT_ROTATED: Final = _event("Processes", "log-not-rotated", "A full log file could not be replaced; it is retried.")
RETENTION_CLOCK_NOT_RECORDED: Final = _event(
    "Jobs (Dispatcher)", "retention-clock-not-recorded", "The time that counts for retention could not be recorded."
)

LEADER_PROCESS_STATE_CHANGED: Final = _event(
    "Leadership", "leader-process-state-changed", "The leader process of a term was started or stopped."
)
JOB_END_NOT_RECORDED: Final = _event(
    "Jobs (Dispatcher)",
    "job-end-not-recorded",
    "The end of the job of a per-job cluster could not be written into the state directory; it is retried, and the"
    " cluster ends once it is written.",
)
JOB_WAITS_FOR_STORAGE: Final = _event(
    "Jobs (Dispatcher)",
    "job-waits-for-storage",
    "Files of a savepoint cannot be read or written now: the disk is full, or the storage cannot be reached. The job"
    " waits until they can, until it is cancelled, or until it reaches its timeout.",
)
JOB_UPGRADE_REVERTED: Final = _event(
    "Jobs (Dispatcher)",
    "job-upgrade-reverted",
    "A job failed before its first batch, and the job whose place it took runs again as its successor.",
)
JOB_UPGRADE_NOT_REVERTED: Final = _event(
    "Jobs (Dispatcher)",
    "job-upgrade-not-reverted",
    "A job failed before its first batch, and the job whose place it took cannot run again by itself.",
)
JOB_CLEANUP_GIVEN_UP: Final = _event(
    "Jobs (Dispatcher)",
    "job-cleanup-given-up",
    "What a job left behind could not be removed until its retention was over, or until its per-job"
    " cluster ended; it stays where the line says.",
)
JOB_RESTORED: Final = _event(
    "Jobs (Dispatcher)", "job-restored", "A quarantined job was put back among those to run, and is recovered."
)
JOB_DROPPED: Final = _event(
    "Jobs (Dispatcher)", "job-dropped", "A quarantined job was given up; what it left behind is removed."
)
ARTIFACTS_NOT_CHECKED: Final = _event(
    "Jobs (Dispatcher)",
    "artifacts-not-checked",
    "The files of artifacts did not answer during recovery; jobs that need them fail by themselves.",
)
JOB_NOT_QUARANTINED: Final = _event(
    "Jobs (Dispatcher)",
    "job-not-quarantined",
    "The record of an unreadable job could not be moved into quarantine; the job is listed as FAILED.",
)
JOBS_RECOVERED: Final = _event("Leadership", "jobs-recovered", "A new leader has read the stored jobs.")
BLOCKING_JOBS_UNREADABLE: Final = _event(
    "Leadership",
    "blocking-jobs-unreadable",
    "A new leader could not read which jobs blocked or ended earlier leaders; none is quarantined for it.",
)
ENDED_JOBS_LISTED: Final = _event(
    "Leadership", "ended-jobs-listed", "The leader has listed all ended jobs of earlier leaders."
)
ENDED_JOBS_NOT_LISTED: Final = _event(
    "Leadership", "ended-jobs-not-listed", "Ended jobs could not be read for the listing; the leader tries again."
)
LEADER_FENCED: Final = _event(
    "Leadership", "leader-fenced", "A newer leader has written to the store; this term is over."
)
LEADER_NOT_FENCED: Final = _event(
    "Leadership",
    "leader-not-fenced",
    "A TaskManager refused a command because it follows another leader, but the store knows of none: the term"
    " continues.",
)
LEADER_ADDRESS_NOT_PUBLISHED: Final = _event(
    "Leadership", "leader-address-not-published", "The leader could not publish its addresses."
)
LEADER_UNREACHABLE: Final = _event("Leadership", "leader-unreachable", "A standby cannot connect to the leader.")
LEADER_DEAD: Final = _event(
    "Leadership", "leader-dead", "The leader's process refuses connections; a standby has it replaced."
)
LEADER_LIVENESS_CHECK_FAILED: Final = _event(
    "Leadership", "leader-liveness-check-failed", "The call that watches the leader's liveness failed."
)
LEADER_REMOVAL_FAILED: Final = _event(
    "Leadership", "leader-removal-failed", "A dead leader's claim could not be removed."
)
LEADER_REMOVED: Final = _event(
    "Leadership", "leader-removed", "A dead leader's claim was removed, so that another can lead at once."
)
LEADERSHIP_NOT_TAKEN: Final = _event(
    "Leadership", "leadership-not-taken", "This process was elected but could not begin its term."
)
LEADERSHIP_GAINED: Final = _event("Leadership", "leadership-gained", "This process leads from now on.")
LEADERSHIP_LOST: Final = _event("Leadership", "leadership-lost", "This process leads no more.")
LEADER_SILENT: Final = _event(
    "Leadership", "leader-silent", "The leader's heartbeat in the store has stopped; a standby ends its process."
)
STORAGE_NOT_REACHED: Final = _event(
    "Leadership",
    "storage-not-reached",
    "The storage directory does not answer this JobManager, or cannot be written; as a standby it lets others lead, as"
    " a leader it steps down if another JobManager can write to the directory.",
)
STORAGE_REACHED_AGAIN: Final = _event(
    "Leadership", "storage-reached-again", "The storage directory answers this JobManager again, and can be written."
)
SILENT_LEADER_SPARED: Final = _event(
    "Leadership",
    "silent-leader-spared",
    "The leader writes no heartbeat, but it answers, or this standby could not do better; it is not killed.",
)
LEADER_HEARTBEAT_WRITTEN_AGAIN: Final = _event(
    "Leadership", "leader-heartbeat-written-again", "The leader can write its heartbeat again."
)
LEADER_HEARTBEAT_NOT_WRITTEN: Final = _event(
    "Leadership", "leader-heartbeat-not-written", "The leader could not write its heartbeat into the store."
)
LEADER_UNREADABLE: Final = _event(
    "Leadership", "leader-unreadable", "The address of the leader could not be read from the store."
)
LEADER_CHANGED: Final = _event(
    "Leadership", "leader-changed", "A TaskManager's leader reports that it no longer leads."
)
LEADER_ADDRESS_CHANGED: Final = _event(
    "Leadership", "leader-address-changed", "A TaskManager learnt of another leader."
)
LEADER_DOES_NOT_KNOW_TASKMANAGER: Final = _event(
    "Leadership",
    "leader-does-not-know-taskmanager",
    "The leader has no registration of this TaskManager; it registers again.",
)

STORE_UNAVAILABLE: Final = _event(
    "Stores", "store-unavailable", "It is not known whether a write took place; it is retried until it is."
)
STORE_SHRUNK: Final = _event("Stores", "store-shrunk", "Unused pages of the embedded store were returned to the disk.")
STORE_NOT_SHRUNK: Final = _event(
    "Stores", "store-not-shrunk", "Unused pages of the embedded store could not be returned; it is retried."
)
RECORD_UNREADABLE: Final = _event("Stores", "record-unreadable", "A stored record could not be read and was left out.")
ZOOKEEPER_HEARTBEAT_UNANSWERED: Final = _event(
    "Stores", "zookeeper-heartbeat-unanswered", "ZooKeeper did not answer the leader's heartbeat in time."
)
ZOOKEEPER_CONNECTION_CHANGED: Final = _event(
    "Stores", "zookeeper-connection-changed", "The connection to ZooKeeper changed its state."
)
ZOOKEEPER_CLIENT_MESSAGE: Final = _event(
    "Stores", "zookeeper-client-message", "A message of the ZooKeeper client library."
)
PAYLOAD_NOT_REMOVED: Final = _event(
    "Stores", "payload-not-removed", "A payload file that nothing points to could not be removed."
)
PAYLOADS_SWEPT: Final = _event("Stores", "payloads-swept", "Payload files that nothing points to were removed.")
PAYLOAD_SWEEP_FAILED: Final = _event(
    "Stores", "payload-sweep-failed", "Payload files that nothing points to could not be searched for."
)
BLOB_DAMAGED: Final = _event("Stores", "blob-damaged", "The content of a blob does not match its key.")
BLOB_NOT_CACHED: Final = _event("Stores", "blob-not-cached", "A local copy of a blob could not be stored.")
UPLOAD_NOT_REMOVED: Final = _event(
    "Stores", "upload-not-removed", "A temporary file of an upload could not be removed."
)

JOBMANAGER_LISTENING: Final = _event("Processes", "jobmanager-listening", "A JobManager accepts connections.")
RPC_ADDRESS_IS_LOOPBACK: Final = _event(
    "Processes",
    "rpc-address-is-loopback",
    "Other machines cannot reach this JobManager: its RPC address is a loopback address.",
)
CLUSTER_SHUTTING_DOWN: Final = _event(
    "Processes", "cluster-shutting-down", "The cluster shuts down as a whole; this process ends."
)
TASKMANAGER_NOT_SHUT_DOWN: Final = _event(
    "Processes", "taskmanager-not-shut-down", "A TaskManager could not be reached when the cluster shut down."
)
HA_DATA_NOT_REMOVED: Final = _event(
    "Processes", "ha-data-not-removed", "The data of a cluster that has ended could not be removed."
)
BLOCKING_JOB_RECORDED: Final = _event(
    "Processes",
    "blocking-job-recorded",
    "Work on a job blocks the event loop; if this process dies in it, that counts against the job.",
)
BLOCKING_JOB_NOT_RECORDED: Final = _event(
    "Processes",
    "blocking-job-not-recorded",
    "The record about a job that blocks or ends the leader could not be written or removed.",
)
EVENT_LOOP_BLOCKED: Final = _event(
    "Processes",
    "event-loop-blocked",
    "One step of the event loop took long, and nothing else ran meanwhile; the stack shows what did.",
)
PROCESS_STOPPING: Final = _event("Processes", "process-stopping", "A process was asked to end.")
VARIABLE_IGNORED: Final = _event(
    "Processes", "variable-ignored", "An environment variable begins with FLINTLOCK_ and sets no option."
)
PROCESS_LOST: Final = _event(
    "Supervisor", "process-lost", "A process of the cluster has failed; it is started again after `restart_in_s`."
)
PROCESS_RESTARTED: Final = _event("Supervisor", "process-restarted", "A process that had failed was started again.")
PROCESS_GIVEN_UP: Final = _event(
    "Supervisor",
    "process-given-up",
    "A process has failed too often and is not started again: remove the cause, then run `flintlock cluster start`.",
)
PROCESS_LEFT_ENDED: Final = _event(
    "Supervisor", "process-left-ended", "A process has ended by intent, and is not started again."
)
SUPERVISION_ENDED: Final = _event(
    "Supervisor", "supervision-ended", "The supervisor ends: nothing is left to supervise."
)
SUPERVISION_FAILED: Final = _event(
    "Supervisor", "supervision-failed", "The supervisor could not start a process; it tries again."
)
PROCESS_NOT_STARTED: Final = _event(
    "Processes", "process-not-started", "A process cannot start or serve here, and ends with the exit code `code`."
)
PROCESS_ABORTED: Final = _event(
    "Processes", "process-aborted", "A server process ends at once because of an error that it cannot clean up after."
)
PROCESS_FAILED: Final = _event(
    "Processes", "process-failed", "A process ends because of an error that it cannot handle."
)
ANNOUNCEMENT_NOT_WRITTEN: Final = _event(
    "Processes",
    "announcement-not-written",
    "The file with the addresses of a JobManager could not be written or removed; it is tried again.",
)
STORE_MISSING: Final = _event(
    "Processes",
    "store-missing",
    "The state directory has been used before, and its store.db is missing or empty; the cluster starts without jobs.",
)
LOG_LINES_DROPPED: Final = _event(
    "Processes",
    "log-lines-dropped",
    "Log lines could not be written (a full or stalled disk, a pipe that is not read) and are missing before this one.",
)
WATCHDOG_REPLACED: Final = _event(
    "Processes", "watchdog-replaced", "The watchdog had ended or was stopped; a new one was started."
)

EXECUTION_STATE_CHANGED: Final = _event(
    "JobMaster", "execution-state-changed", "A job or an attempt changed its state."
)
ATTEMPT_FAILED: Final = _event(
    "JobMaster", "attempt-failed", "An attempt of a task has failed; the restart strategy decides what follows."
)
RESOURCEMANAGER_UNAVAILABLE: Final = _event(
    "JobMaster", "resourcemanager-unavailable", "The ResourceManager could not be reached; requirements are sent again."
)
TASKMANAGER_UNAVAILABLE: Final = _event(
    "JobMaster", "taskmanager-unavailable", "A TaskManager could not be reached; what was sent is sent again."
)
FAILURE_ENRICHERS_SLOW: Final = _event(
    "JobMaster", "failure-enrichers-slow", "Failure enrichers did not answer in time; their labels are missing."
)
FAILURE_ENRICHER_UNKNOWN: Final = _event(
    "JobMaster", "failure-enricher-unknown", "A configured failure enricher does not exist."
)
FAILURE_ENRICHER_DROPPED: Final = _event(
    "JobMaster", "failure-enricher-dropped", "A failure enricher declares labels of another one and is not used."
)
FAILURE_ENRICHER_UNUSABLE: Final = _event(
    "JobMaster", "failure-enricher-unusable", "A failure enricher could not be loaded."
)
FAILURE_ENRICHER_FAILED: Final = _event(
    "JobMaster", "failure-enricher-failed", "A failure enricher raised an error; its labels are missing."
)

WORKER_RELEASED: Final = _event("ResourceManager", "worker-released", "An idle worker was ended.")
TASKMANAGER_UNREGISTERED_TOO_LONG: Final = _event(
    "TaskManager", "taskmanager-unregistered-too-long", "No leader has taken a worker for too long; it ends."
)
WORKERS_TAKEN_OVER: Final = _event(
    "ResourceManager", "workers-taken-over", "A new leader expects workers that an earlier one has started to register."
)
WORKER_STARTED: Final = _event("ResourceManager", "worker-started", "A worker was started.")
WORKER_ENDED: Final = _event("ResourceManager", "worker-ended", "A worker's process has ended.")
WORKER_START_WITHDRAWN: Final = _event(
    "ResourceManager",
    "worker-start-withdrawn",
    "A worker that was requested and had no resources yet is not needed any more.",
)
WORKER_NOT_STARTED: Final = _event("ResourceManager", "worker-not-started", "A worker could not be started.")
WORKER_NOT_RELEASED: Final = _event("ResourceManager", "worker-not-released", "An idle worker could not be ended.")
JOBMASTER_SLOW: Final = _event(
    "ResourceManager", "jobmaster-slow", "A JobMaster does not take messages in time; they are sent again."
)
JOBMASTER_GONE: Final = _event(
    "ResourceManager", "jobmaster-gone", "Messages for a JobMaster that has ended were dropped."
)
TASKMANAGER_REGISTERED: Final = _event("ResourceManager", "taskmanager-registered", "A TaskManager has registered.")
TASKMANAGER_LOST: Final = _event(
    "ResourceManager", "taskmanager-lost", "A TaskManager died or was silent for too long; its tasks are lost."
)
TASKMANAGER_RELEASED: Final = _event("ResourceManager", "taskmanager-released", "A TaskManager has unregistered.")
TASKMANAGER_REFUSED: Final = _event("ResourceManager", "taskmanager-refused", "A registration was refused.")
TASKMANAGER_UNREACHABLE: Final = _event(
    "ResourceManager",
    "taskmanager-unreachable",
    "A TaskManager refuses connections. It gets no new tasks; it is lost only if its heartbeats stop too.",
)
TASKMANAGER_REACHABLE_AGAIN: Final = _event(
    "ResourceManager", "taskmanager-reachable-again", "A TaskManager that refused connections accepts them again."
)
TASKMANAGER_FOLLOWS_HIGHER_EPOCH: Final = _event(
    "ResourceManager",
    "taskmanager-follows-higher-epoch",
    "A TaskManager follows a leader with a higher epoch: the store of this one was removed, or restored from an older"
    " backup. The TaskManager follows this leader once the other one has been silent for a whole lease.",
)
TASKMANAGER_LIVENESS_CHECK_FAILED: Final = _event(
    "ResourceManager", "taskmanager-liveness-check-failed", "The call that watches a TaskManager's liveness failed."
)
FILES_NOT_REMOVED: Final = _event(
    "ResourceManager", "files-not-removed", "A TaskManager could not remove files of a job."
)

REPORTS_UNDELIVERED: Final = _event(
    "TaskManager", "reports-undelivered", "Reports of ended tasks could not be delivered before the TaskManager ended."
)
TASK_DEPLOYED: Final = _event("TaskManager", "task-deployed", "A task was accepted and is being started.")
TASK_COMMANDED: Final = _event("TaskManager", "task-commanded", "A command to a task has arrived, such as a cancel.")
ENGINE_STARTING: Final = _event("TaskManager", "engine-starting", "A Spark engine is being started.")
ENGINE_READY: Final = _event("TaskManager", "engine-ready", "A Spark engine accepts work.")
ENGINE_DIED: Final = _event(
    "TaskManager", "engine-died", "The Spark engine has ended; its tasks are lost and it is started again."
)
ENGINE_START_FAILED: Final = _event("TaskManager", "engine-start-failed", "The Spark engine could not be started.")
ENGINE_STILL_ALIVE: Final = _event(
    "TaskManager", "engine-still-alive", "Tasks failed as if the engine had died, but it is alive."
)
RUNNER_KILLED: Final = _event("TaskManager", "runner-killed", "A task runner was killed.")
RUNNER_NOT_PREPARED: Final = _event(
    "TaskManager", "runner-not-prepared", "A waiting runner could not open its Spark session."
)
RUNNER_NOT_STARTED: Final = _event("TaskManager", "runner-not-started", "A runner could not be forked.")
TEMPLATE_ENDED: Final = _event(
    "TaskManager", "template-ended", "The process that runners are forked from has ended; it is started again."
)
TEMPLATE_NOT_STARTED: Final = _event(
    "TaskManager", "template-not-started", "The process that runners are forked from could not be started."
)
REPORT_REJECTED: Final = _event(
    "TaskManager", "report-rejected", "The JobMaster does not know the attempt of a report."
)
REPORT_REFUSED: Final = _event("TaskManager", "report-refused", "The leader refused a report.")
UNREGISTER_FAILED: Final = _event(
    "TaskManager", "unregister-failed", "The TaskManager could not unregister from its leader before it ended."
)
LEASE_EXPIRED: Final = _event(
    "TaskManager", "lease-expired", "No heartbeat was answered for too long; the TaskManager ended its tasks."
)
REGISTERED_WITH_LEADER: Final = _event(
    "TaskManager", "registered-with-leader", "The TaskManager has registered with the leader."
)
REGISTRATION_REFUSED: Final = _event("TaskManager", "registration-refused", "The leader refused this TaskManager.")
REGISTRATION_FAILED: Final = _event(
    "TaskManager", "registration-failed", "The leader could not be reached to register."
)
EPOCH_WENT_BACK: Final = _event(
    "TaskManager",
    "epoch-went-back",
    "The TaskManager follows a leader with a lower epoch than its former one, which has been silent for a whole lease:"
    " the store was removed, or restored from an older backup.",
)
ENGINE_NOT_PROTECTED: Final = _event(
    "TaskManager",
    "engine-not-protected",
    "The engine's executors run on other machines, and Spark's connections to them are neither authenticated nor"
    " encrypted: set spark.authenticate.secret as the Spark master has it, or spark.authenticate: false to accept it.",
)
CLUSTER_CHANGED: Final = _event(
    "TaskManager",
    "cluster-changed",
    "The leader that the TaskManager finds belongs to another cluster than the one that it followed before: it follows"
    " the new one.",
)
FOREIGN_FILES_REFUSED: Final = _event(
    "TaskManager",
    "foreign-files-refused",
    "A message to the TaskManager named files that do not belong to the message's job; nothing was touched.",
)
HEARTBEAT_UNANSWERED: Final = _event("TaskManager", "heartbeat-unanswered", "The leader did not answer a heartbeat.")
METRIC_COLLECTION_FAILED: Final = _event("TaskManager", "metric-collection-failed", "A metric could not be read.")
CGROUPS_USED: Final = _event("TaskManager", "cgroups-used", "Engine and runners are confined by control groups.")
CGROUPS_NOT_USED: Final = _event(
    "TaskManager", "cgroups-not-used", "Control groups cannot be used here; other limits apply."
)
CGROUP_NOT_MADE: Final = _event("TaskManager", "cgroup-not-made", "A control group could not be made.")
CGROUP_NOT_ENTERED: Final = _event(
    "TaskManager", "cgroup-not-entered", "A process could not be put into its control group."
)

REQUEST_FAILED: Final = _event("REST and RPC", "request-failed", "A request ended in an internal error.")
RESPONSE_ABORTED: Final = _event(
    "REST and RPC", "response-aborted", "The leader's response broke off while it was forwarded."
)
RPC_HANDLER_FAILED: Final = _event("REST and RPC", "rpc-handler-failed", "An RPC ended in an internal error.")
CERTIFICATE_RELOADED: Final = _event(
    "REST and RPC", "certificate-reloaded", "The files of the certificate were replaced; new connections use it."
)
CERTIFICATE_NOT_RELOADED: Final = _event(
    "REST and RPC",
    "certificate-not-reloaded",
    "The files of the certificate have changed and cannot be used; the former certificate stays in use.",
)
RPC_UNAUTHENTICATED: Final = _event(
    "REST and RPC",
    "rpc-unauthenticated",
    "RPCs were refused because their caller is not a member of the cluster; `refused` counts all of them. Logged"
    " once in ten seconds at most.",
)
RPC_REFUSED: Final = _event("REST and RPC", "rpc-refused", "An RPC was refused.")
AUTHENTICATION_DISABLED: Final = _event(
    "REST and RPC",
    "authentication-disabled",
    "REST serves every process of this machine as an administrator, as security.authentication says.",
)
YARN_REGISTERED: Final = _event(
    "YARN", "yarn-registered", "The JobManager is registered as ApplicationMaster; its containers of earlier attempts."
)
YARN_UNREGISTERED: Final = _event("YARN", "yarn-unregistered", "The application has ended for YARN, with this status.")
YARN_CONTAINER_WRITTEN_OFF: Final = _event(
    "YARN",
    "yarn-container-written-off",
    "YARN counts a container as completed that may still run (its node is lost, or it is preempted): the heartbeats of"
    " its TaskManager decide.",
)
YARN_NODES_EXCLUDED: Final = _event(
    "YARN", "yarn-nodes-excluded", "The nodes on which TaskManagers have failed again and again; they get no others."
)
YARN_NODES_NOT_EXCLUDED: Final = _event(
    "YARN", "yarn-nodes-not-excluded", "Such nodes still get TaskManagers: their exclusion has failed."
)
YARN_BRIDGE_SILENT: Final = _event(
    "YARN",
    "yarn-bridge-silent",
    "The bridge to YARN has not answered for `heartbeat.timeout`: it is ended, and the JobManager with it. Running work"
    " continues, where YARN starts another attempt.",
)
YARN_STAGING_NOT_REMOVED: Final = _event(
    "YARN", "yarn-staging-not-removed", "The staging directory of an application that has ended could not be removed."
)
