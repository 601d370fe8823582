"""Every option of Flintlock, declared once. The reference page and `flintlock config` are made from this list.

Keys are Flink's where the meaning is Flink's.
"""

from __future__ import annotations

from typing import Any, Final, cast

from flintlock.config.configuration import (
    Option,
    Scope,
    boolean,
    file_name,
    integer,
    names,
    number,
    one_of,
    parallelisms,
    znode_path,
)
from flintlock.model.jobgraph import UPGRADE_OF_KEY
from flintlock.model.quantities import MemoryUpTo, duration_s, memory_bytes, positive_duration_s

_DURATION = "a duration, such as '10 s'"
_MEMORY = "a memory size, such as '512m'"
_WHOLE = "a whole number"
_TEXT = "text"
_YES_NO = "true or false"

REST_ADDRESS: Final = Option(
    key="rest.address", parse=str, kind=_TEXT, default="127.0.0.1",
    description="The address that clients and the other JobManagers reach this one's REST endpoint at, and that it"
    " listens on. 0.0.0.0 or :: listens on all addresses and is advertised as the address of the default route.",
)  # fmt: skip
REST_BIND_ADDRESS: Final = Option(
    key="rest.bind-address", parse=str, kind=_TEXT, default="", unset="`rest.address`",
    description="The address that the REST endpoint listens on, if it differs from the advertised one.",
)  # fmt: skip
REST_PORT: Final = Option(
    key="rest.port", parse=integer(0, 65535), kind=_WHOLE, default=8081,
    description="The REST endpoint's port; 0 chooses a free one.",
)  # fmt: skip
JM_RPC_ADDRESS: Final = Option(
    key="jobmanager.rpc.address", parse=str, kind=_TEXT, default="127.0.0.1",
    description="The address that TaskManagers and the other JobManagers reach this one at, and that it listens on."
    " 0.0.0.0 or :: is advertised as for `rest.address`.",
)  # fmt: skip
JM_BIND_HOST: Final = Option(
    key="jobmanager.bind-host", parse=str, kind=_TEXT, default="", unset="`jobmanager.rpc.address`",
    description="The address that the JobManager listens on, if it differs from the advertised one.",
)  # fmt: skip
JM_RPC_PORT: Final = Option(
    key="jobmanager.rpc.port", parse=integer(0, 65535), kind=_WHOLE, default=0,
    description="The JobManager's port for TaskManagers; 0 chooses a free one and writes it to cluster.json.",
)  # fmt: skip
TM_HOST: Final = Option(
    key="taskmanager.host", parse=str, kind=_TEXT, default="127.0.0.1",
    description="The address that a TaskManager listens on and gives to the JobManager. 0.0.0.0 or :: is advertised"
    " as for `rest.address`.",
)  # fmt: skip
TM_BIND_HOST: Final = Option(
    key="taskmanager.bind-host", parse=str, kind=_TEXT, default="", unset="`taskmanager.host`",
    description="The address that a TaskManager listens on, if it differs from the advertised one.",
)  # fmt: skip
TM_RPC_PORT: Final = Option(
    key="taskmanager.rpc.port", parse=integer(0, 65535), kind=_WHOLE, default=0,
    description="A TaskManager's port; 0 chooses a free one.",
)  # fmt: skip
TM_SLOTS: Final = Option(
    key="taskmanager.numberOfTaskSlots", parse=integer(0, 1024), kind=_WHOLE, default=0,
    unset="the machine's cores",
    description="Number of slots of a TaskManager; its engine gets as many cores, those of its executors together where"
    " spark.master is a cluster. 0: as many as the machine has.",
)  # fmt: skip
TM_RESOURCE_ID: Final = Option(
    key="taskmanager.resource-id", parse=str, kind=_TEXT, default="",
    unset="host name, an id that is kept in the run directory, and --index",
    description="A TaskManager's permanent id; a TaskManager that registers with it replaces its previous incarnation."
    " No two TaskManagers of a cluster may have the same.",
)  # fmt: skip
TM_WARM_RUNNERS: Final = Option(
    key="taskmanager.warm-runners", parse=integer(0, 64), kind=_WHOLE, default=-1, unset="one for each slot",
    description="Number of runners that wait for a task with an open Spark session.",
)  # fmt: skip
PYTHON_REQUIREMENTS: Final = Option(
    key="python.requirements", parse=str, kind="a path", default="", unset="none",
    description="A file of requirements for pip on the TaskManagers' machines: what all jobs need beside the packages"
    " of the cluster's own Python. It is installed into an environment of its own, once for the same content, before an"
    " engine starts.",
)  # fmt: skip
TM_ENGINE_MEMORY: Final = Option(
    key="taskmanager.engine.memory", parse=memory_bytes, kind=_MEMORY, default=1 << 30,
    description="The heap of the engine's JVM.",
)  # fmt: skip
TM_ENGINE_START: Final = Option(
    key="taskmanager.engine.start-timeout", parse=positive_duration_s, kind=_DURATION, default=300.0,
    description="How long an engine may take to start, executors of its cluster included. One that takes longer is"
    " ended and started again; the TaskManager's log has the end of the engine's log.",
)  # fmt: skip
TASK_CANCEL_TIMEOUT: Final = Option(
    key="task.cancellation.timeout", parse=duration_s, kind=_DURATION, default=5.0, scope=Scope.JOB,
    description="How long a cancelled runner may take to exit before it is killed.",
)  # fmt: skip
CLUSTER_ID: Final = Option(
    key="cluster.id", parse=str, kind=_TEXT, default="default",
    description="Names the cluster, and its state directory.",
)  # fmt: skip
SUPERVISE: Final = Option(
    key="cluster.supervise", parse=boolean, kind=_YES_NO, default=True,
    description="Whether `flintlock cluster start` also starts a supervisor, which starts the other processes again"
    " when they fail. Processes that were stopped stay stopped.",
)  # fmt: skip
SUPERVISE_MAX_FAILURES: Final = Option(
    key="cluster.supervise.max-failures", parse=integer(0, 1000), kind=_WHOLE, default=10,
    description="How many failures of a process within `cluster.supervise.failure-interval` the supervisor answers by"
    " starting it again, after 1 s, 2 s and so on up to a minute. After one more it gives the process up.",
)  # fmt: skip
SUPERVISE_INTERVAL: Final = Option(
    key="cluster.supervise.failure-interval", parse=positive_duration_s, kind=_DURATION, default=600.0,
    description="The time within which the supervisor counts the failures of a process.",
)  # fmt: skip
HEARTBEAT_INTERVAL: Final = Option(
    key="heartbeat.interval", parse=positive_duration_s, kind=_DURATION, default=2.0,
    description="Interval of a TaskManager's heartbeats.",
)  # fmt: skip
HEARTBEAT_TIMEOUT: Final = Option(
    key="heartbeat.timeout", parse=positive_duration_s, kind=_DURATION, default=50.0,
    description="A TaskManager without a heartbeat for this long is declared lost. On YARN, a bridge to YARN that does"
    " not answer for this long is ended, and its JobManager with it.",
)  # fmt: skip
HA_TYPE: Final = Option(
    key="high-availability.type", parse=one_of("embedded", "zookeeper"), kind="embedded or zookeeper",
    default="embedded",
    description="Where jobs are stored and the leader is elected: 'embedded' is an SQLite database in the state"
    " directory, for JobManagers of one machine; 'zookeeper' is an ensemble, for JobManagers of several.",
)  # fmt: skip
HA_QUORUM: Final = Option(
    key="high-availability.zookeeper.quorum", parse=str, kind="addresses such as 'a:2181,b:2181'", default="",
    unset="none", description="The servers of the ZooKeeper ensemble.",
)  # fmt: skip
HA_CREDENTIALS_FILE: Final = Option(
    key="high-availability.zookeeper.client.credentials-file", parse=str, kind="a path", default="", unset="none",
    description="A file with `user:password`, readable by its owner only, with which JobManagers, TaskManagers and"
    " clients authenticate at ZooKeeper (digest).",
)  # fmt: skip
HA_ACL: Final = Option(
    key="high-availability.zookeeper.client.acl", parse=one_of("creator", "open"), kind="creator or open",
    default="creator",
    description="Who may use the cluster's znodes, if there are credentials: only processes with the same credentials,"
    " or every process that reaches the ensemble.",
)  # fmt: skip
HA_TLS: Final = Option(
    key="high-availability.zookeeper.client.tls", parse=boolean, kind=_YES_NO, default=False,
    description="Whether to connect to ZooKeeper with TLS, at its secure client port: with this machine's certificate"
    " (`security.tls.certificate-file`), trusting `security.tls.ca-file`.",
)  # fmt: skip
HA_ROOT: Final = Option(
    key="high-availability.zookeeper.path.root", parse=znode_path, kind="a path such as '/flintlock'",
    default="/flintlock",
    description="The parent of the nodes of all clusters in ZooKeeper.",
)  # fmt: skip
HA_CLUSTER_ID: Final = Option(
    key="high-availability.cluster-id", parse=file_name, kind="a name", default="", unset="`cluster.id`",
    description="Names the cluster in ZooKeeper and in the storage directory.",
)  # fmt: skip
HA_STORAGE_DIR: Final = Option(
    key="high-availability.storageDir", parse=str, kind="a path or URL", default="", unset="none",
    description="Where graphs, results, progress and uploaded files are stored with ZooKeeper, which has only"
    " pointers to them. Every JobManager must be able to reach it. Any URL that fsspec knows.",
)  # fmt: skip
HA_SESSION_TIMEOUT: Final = Option(
    key="high-availability.zookeeper.client.session-timeout", parse=positive_duration_s, kind=_DURATION, default=10.0,
    description="ZooKeeper session timeout: a standby takes over after this long without contact. A leader that"
    " ZooKeeper does not answer steps down after 0.7 of it. The ensemble has its own limits and may grant another.",
)  # fmt: skip
HA_CONNECTION_TIMEOUT: Final = Option(
    key="high-availability.zookeeper.client.connection-timeout", parse=positive_duration_s, kind=_DURATION,
    default=15.0,
    description="How long a starting JobManager or TaskManager waits for ZooKeeper before it exits.",
)  # fmt: skip
HA_SILENCE: Final = Option(
    key="high-availability.embedded.silence-timeout", parse=positive_duration_s, kind=_DURATION, default=10.0,
    description="How long a leader may write no heartbeat into the state directory before a standby kills it and"
    " takes over, unless the leader answers calls or the standby could not write either. The death of a leader is"
    " noticed immediately; this timeout is for a frozen one.",
)  # fmt: skip
HA_RECOVERY: Final = Option(
    key="high-availability.recovery-time", parse=positive_duration_s, kind=_DURATION, default=15.0,
    description="How long a new leader may take to recover all jobs before it serves TaskManagers; 15 s are enough for"
    " 10,000 stored jobs. A JobManager refuses to start if running work would not outlive a change of leader: 0.8 of"
    " heartbeat.timeout must be more than this and the session timeout (embedded: the silence timeout) together.",
)  # fmt: skip
WORK_DIR: Final = Option(
    key="execution.work-dir", parse=str, kind=_TEXT, default="",
    unset="<high-availability.storageDir>/work, else <state directory>/work, or in `taskmanager.runner.directory`",
    description="Where blocking exchanges are materialised: a path that all TaskManagers can read and write."
    " Spark's own file systems are used.",
)  # fmt: skip
CHECKPOINTS_DIR: Final = Option(
    key="state.checkpoints.dir", parse=str, kind="a path or URL", default="",
    unset="<high-availability.storageDir>/checkpoints, else <state directory>/checkpoints, or in"
    " `taskmanager.runner.directory`",
    description="Where the queries of streaming jobs have their checkpoints, each in a directory of its job and uid: a"
    " path that all TaskManagers can read and write. Spark's own file systems are used.",
)  # fmt: skip
SAVEPOINTS_DIR: Final = Option(
    key="state.savepoints.dir", parse=str, kind="a path", default="",
    unset="<high-availability.storageDir>/savepoints, else <state directory>/savepoints",
    description="Where savepoints are made, unless a request names another directory: a path that all JobManagers can"
    " read and write. On the file system of `state.checkpoints.dir` a savepoint is made of hard links.",
)  # fmt: skip
RESTORE_PATH: Final = Option(
    key="execution.state-recovery.path", parse=str, kind="a path", default="", scope=Scope.JOB,
    unset="the job starts from the beginning",
    description="The savepoint that a streaming job begins from (`flintlock run -s`), or the checkpoints that a job has"
    " left: a directory that the JobManagers can read.",
)  # fmt: skip
RESTORE_IGNORE_UNCLAIMED: Final = Option(
    key="execution.state-recovery.ignore-unclaimed-state", parse=boolean, kind=_YES_NO, default=False, scope=Scope.JOB,
    description="Drop the state of saved queries whose uid no query of the job has (`flintlock run -n`). Otherwise such"
    " a job is refused.",
)  # fmt: skip
RESTORE_CLAIM_MODE: Final = Option(
    key="execution.state-recovery.claim-mode", parse=one_of("NO_CLAIM", "CLAIM"), kind="NO_CLAIM or CLAIM",
    default="NO_CLAIM", scope=Scope.JOB,
    description="Whether the restored queries get new ids (NO_CLAIM), or continue under the ids that were saved (CLAIM,"
    " `flintlock run --claim`). The savepoint itself is never changed.",
)  # fmt: skip
RESTORE_REWIND_SINKS: Final = Option(
    key="execution.state-recovery.rewind-sinks", parse=boolean, kind=_YES_NO, default=False, scope=Scope.JOB,
    description="Move what file sinks have got after the savepoint out of them (`flintlock run --rewind-sinks`), into"
    " `.flintlock-rewound-<job>` in the sink. Otherwise a sink that is ahead of the savepoint is refused.",
)  # fmt: skip
UPGRADE_OF: Final = Option(
    key=UPGRADE_OF_KEY, parse=str, kind="the id of a job", default="", scope=Scope.JOB,
    unset="the job takes the place of no other",
    description="The running streaming job whose place this one takes (`flintlock upgrade`): that one is stopped with a"
    " savepoint, which this one begins from.",
)  # fmt: skip
CHECKPOINT_RETENTION: Final = Option(
    key="execution.checkpointing.externalized-checkpoint-retention",
    parse=one_of("DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION", "NO_EXTERNALIZED_CHECKPOINTS"),
    kind="DELETE_ON_CANCELLATION, RETAIN_ON_CANCELLATION or NO_EXTERNALIZED_CHECKPOINTS",
    default="DELETE_ON_CANCELLATION", scope=Scope.JOB,
    description="Which checkpoints of an ended streaming job are kept: those of one that FAILED, of one that FAILED or"
    " was CANCELED, or none; `flintlock run -s` begins from them. Those of a FINISHED job are removed.",
)  # fmt: skip
ANALYZE_FIRST: Final = Option(
    key="execution.analyze-first", parse=boolean, kind=_YES_NO, default=True, scope=Scope.JOB,
    description="Resolve the schemas of the complete graph before the first Spark job runs. Step functions of later "
    "regions are then called once more, so they should only build DataFrames.",
)  # fmt: skip
SYNC_FILES: Final = Option(
    key="execution.sync-files", parse=boolean, kind=_YES_NO, default=True,
    description="Make files that Spark wrote on a local file system (`file:`) durable, with their directories, before"
    " they are recorded as materialised or published, and those of streaming queries before their job is FINISHED."
    " Without it, a loss of power can empty files of finished jobs.",
)  # fmt: skip
PUBLICATION_TIMEOUT: Final = Option(
    key="execution.publication.retry-timeout", parse=positive_duration_s, kind=_DURATION, default=600.0,
    scope=Scope.JOB,
    description="How long the publication of files is retried without progress before the job fails: at most 2 min if"
    " access is denied or a file is gone. Only the time between the tries counts.",
)  # fmt: skip
MAX_RESULTS_BYTES: Final = 60 << 20
"""The most that all results of one attempt may hold, in both forms together: they travel in one message of RPC."""
RESULT_BYTES: Final = Option(
    key="execution.result.max-bytes", kind=_MEMORY, default=16 << 20, scope=Scope.JOB,
    parse=MemoryUpTo(MAX_RESULTS_BYTES // 2, "a result travels in one message, as Arrow and as JSON; write more rows"
                     " with a sink"),
    description="Maximum size of one result in each of its forms, Arrow and JSON; a larger one fails the job. At most"
    " 30m, and 60m for all forms of all results of one region.",
)  # fmt: skip
DEFAULT_PARALLELISM: Final = Option(
    key="parallelism.default", parse=integer(0, 1 << 15), kind=_WHOLE, default=1, scope=Scope.JOB,
    description="The parallelism of jobs that set none: the slots that each of their regions takes. 0: all slots of one"
    " TaskManager.",
)  # fmt: skip
RESTART_TYPE: Final = Option(
    key="restart-strategy.type",
    parse=one_of("none", "off", "disable", "fixed-delay", "failure-rate", "exponential-delay"),
    kind="none, fixed-delay, failure-rate or exponential-delay", default="", scope=Scope.JOB,
    unset="exponential-delay for streaming jobs, none for batch jobs",
    description="What happens to a job whose task failed for a retryable reason.",
)  # fmt: skip
FIXED_ATTEMPTS: Final = Option(
    key="restart-strategy.fixed-delay.attempts", parse=integer(0), kind=_WHOLE, default=1, scope=Scope.JOB,
    description="Maximum restarts of fixed-delay.",
)  # fmt: skip
FIXED_DELAY: Final = Option(
    key="restart-strategy.fixed-delay.delay", parse=duration_s, kind=_DURATION, default=1.0,
    scope=Scope.JOB, description="Delay before each restart of fixed-delay.",
)  # fmt: skip
RATE_FAILURES: Final = Option(
    key="restart-strategy.failure-rate.max-failures-per-interval", parse=integer(1), kind=_WHOLE, default=1,
    scope=Scope.JOB, description="Maximum number of failures per interval before the job fails.",
)  # fmt: skip
RATE_INTERVAL: Final = Option(
    key="restart-strategy.failure-rate.failure-rate-interval", parse=duration_s, kind=_DURATION, default=60.0,
    scope=Scope.JOB, description="Interval in which failure-rate counts failures.",
)  # fmt: skip
RATE_DELAY: Final = Option(
    key="restart-strategy.failure-rate.delay", parse=duration_s, kind=_DURATION, default=1.0,
    scope=Scope.JOB, description="Delay before each restart of failure-rate.",
)  # fmt: skip
EXP_INITIAL: Final = Option(
    key="restart-strategy.exponential-delay.initial-backoff", parse=duration_s, kind=_DURATION, default=1.0,
    scope=Scope.JOB, description="First delay of exponential-delay.",
)  # fmt: skip
EXP_MAX: Final = Option(
    key="restart-strategy.exponential-delay.max-backoff", parse=duration_s, kind=_DURATION, default=60.0,
    scope=Scope.JOB, description="Maximum delay of exponential-delay.",
)  # fmt: skip
EXP_MULTIPLIER: Final = Option(
    key="restart-strategy.exponential-delay.backoff-multiplier", parse=number(1.0), kind="a number", default=1.5,
    scope=Scope.JOB, description="Factor by which each delay grows.",
)  # fmt: skip
EXP_JITTER: Final = Option(
    key="restart-strategy.exponential-delay.jitter-factor", parse=number(0.0, 1.0), kind="a number", default=0.1,
    scope=Scope.JOB, description="Fraction of each delay that is added or subtracted at random.",
)  # fmt: skip
EXP_RESET: Final = Option(
    key="restart-strategy.exponential-delay.reset-backoff-threshold", parse=duration_s, kind=_DURATION, default=3600.0,
    scope=Scope.JOB, description="Time without a failure after which the delay is reset.",
)  # fmt: skip
EXP_ATTEMPTS: Final = Option(
    key="restart-strategy.exponential-delay.attempts-before-reset-backoff", parse=integer(0), kind=_WHOLE,
    default=(1 << 31) - 1, unset="unlimited", scope=Scope.JOB,
    description="Maximum restarts of exponential-delay before the job fails.",
)  # fmt: skip
INFRASTRUCTURE_ATTEMPTS: Final = Option(
    key="restart.infrastructure-attempts", parse=integer(0), kind=_WHOLE, default=3, scope=Scope.JOB,
    description="Restarts allowed for lost TaskManagers and engines and for full disks, in addition to those of the"
    " restart strategy: they are not the job's fault.",
)  # fmt: skip
FAILURE_ENRICHERS: Final = Option(
    key="jobmanager.failure-enrichers", parse=names, kind="names, with commas between them", default=(),
    unset="none",
    description="Plug-ins that add labels to failures, by the names of their entry points in the group"
    " 'flintlock.failure_enrichers'.",
)  # fmt: skip
PARALLELISM_OVERRIDES: Final = Option(
    key="pipeline.jobvertex-parallelism-overrides", parse=parallelisms, kind="pairs such as 'id:2,id:4'", default={},
    unset="none", scope=Scope.JOB,
    description="The parallelism of steps by their ids; overrides the graph. Applies to new submissions.",
)  # fmt: skip
JOB_PRIORITY: Final = Option(
    key="job.priority", parse=integer(-1000, 1000), kind=_WHOLE, default=0, scope=Scope.JOB,
    description="Jobs with a higher priority get slots before those with a lower one that wait longer.",
)  # fmt: skip
JOB_TIMEOUT: Final = Option(
    key="job.timeout", parse=duration_s, kind=_DURATION, default=0.0, unset="none", scope=Scope.JOB,
    description="A job that has not ended this long after its submission fails. Time under earlier leaders counts;"
    " while no JobManager leads, no time passes for it. 0: none.",
)  # fmt: skip
CLIENT_HEARTBEAT_INTERVAL: Final = Option(
    key="client.heartbeat.interval", parse=positive_duration_s, kind=_DURATION, default=30.0,
    scope=Scope.JOB, description="Interval of an attached client's heartbeats.",
)  # fmt: skip
CLIENT_HEARTBEAT_TIMEOUT: Final = Option(
    key="client.heartbeat.timeout", parse=positive_duration_s, kind=_DURATION, default=180.0,
    scope=Scope.JOB, description="A job is cancelled after this long without a heartbeat of its attached client.",
)  # fmt: skip
PER_JOB_RESULT_TIMEOUT: Final = Option(
    key="jobmanager.per-job.result-timeout", parse=duration_s, kind=_DURATION, default=300.0,
    description="How long a per-job cluster keeps the result of its job for the `flintlock run` that waits for it,"
    " before it ends all the same.",
)  # fmt: skip
LOAD_BALANCE: Final = Option(
    key="taskmanager.load-balance.mode", parse=one_of("NONE", "SLOTS"), kind="NONE or SLOTS", default="NONE",
    description="How slots are chosen. NONE fills one TaskManager before the next, so that others have slots"
    " free for tasks that need many of one; SLOTS spreads tasks over all of them.",
)  # fmt: skip
MAX_SLOTS: Final = Option(
    key="slotmanager.number-of-slots.max", parse=integer(0), kind=_WHOLE, default=0, unset="no limit",
    description="Maximum number of slots of the cluster: a TaskManager that would exceed it is refused.",
)  # fmt: skip
MAX_CPU: Final = Option(
    key="slotmanager.max-total-resource.cpu", parse=number(0.0), kind="a number", default=0.0, unset="no limit",
    description="Maximum number of cores of all TaskManagers together.",
)  # fmt: skip
MAX_MEMORY: Final = Option(
    key="slotmanager.max-total-resource.memory", parse=memory_bytes, kind=_MEMORY, default=0, unset="no limit",
    description="Maximum memory of all TaskManagers together.",
)  # fmt: skip
STANDALONE_START_UP: Final = Option(
    key="resourcemanager.standalone.start-up-time", parse=duration_s, kind=_DURATION, default=30.0,
    description="How long after its start a cluster waits for larger TaskManagers before a request that none of the"
    " registered ones can ever serve fails its job.",
)  # fmt: skip
MAX_TASK_MANAGERS: Final = Option(
    key="resourcemanager.max-taskmanagers", parse=integer(0, 1000), kind=_WHOLE, default=0,
    description="Maximum number of TaskManagers that the JobManager starts when jobs wait for slots: on its machine, or"
    " in containers of YARN, where 0 means 1000.",
)  # fmt: skip
TASK_MANAGER_IDLE: Final = Option(
    key="resourcemanager.taskmanager-timeout", parse=duration_s, kind=_DURATION, default=30.0,
    description="How long a TaskManager that the JobManager has started may be idle before it is released.",
)  # fmt: skip
START_RETRY: Final = Option(
    key="resourcemanager.start-worker.retry-interval", parse=positive_duration_s, kind=_DURATION, default=3.0,
    description="How long to wait before a TaskManager that died or did not start is replaced; twice as long after"
    " each further failure.",
)  # fmt: skip
REGISTRATION_TIMEOUT: Final = Option(
    key="resourcemanager.taskmanager-registration.timeout", parse=positive_duration_s, kind=_DURATION, default=300.0,
    description="How long a TaskManager that was started may take to register before it is stopped.",
)  # fmt: skip
UNREGISTERED_TIMEOUT: Final = Option(
    key="taskmanager.registration.timeout", parse=positive_duration_s, kind=_DURATION, default=300.0,
    description="How long a TaskManager that a leader started (`resourcemanager.max-taskmanagers`) keeps running"
    " without being registered with a leader, before it ends. Other TaskManagers wait for a leader without a limit.",
)  # fmt: skip
YARN_APPLICATION_ID: Final = Option(
    key="yarn.application.id", parse=str, kind="an id such as 'application_1700000000000_0001'", default="",
    unset="the session that was started or attached last",
    description="The session on YARN that `flintlock run -t yarn-session` uses.",
)  # fmt: skip
YARN_APPLICATION_NAME: Final = Option(
    key="yarn.application.name", parse=str, kind=_TEXT, default="Flintlock session cluster",
    description="The name of the application on YARN.",
)  # fmt: skip
YARN_QUEUE: Final = Option(
    key="yarn.application.queue", parse=str, kind=_TEXT, default="default",
    description="The queue of YARN that the application is submitted to.",
)  # fmt: skip
YARN_NODE_LABEL: Final = Option(
    key="yarn.application.node-label", parse=str, kind=_TEXT, default="", unset="the queue's",
    description="Containers of the application run on nodes with this label.",
)  # fmt: skip
YARN_PRIORITY: Final = Option(
    key="yarn.application.priority", parse=integer(-1), kind=_WHOLE, default=-1, unset="the queue's",
    description="The priority of the application within its queue; higher ones come first.",
)  # fmt: skip
YARN_TAGS: Final = Option(
    key="yarn.tags", parse=names, kind="names, with commas between them", default=(), unset="none",
    description="Tags of the application, to find it by in YARN.",
)  # fmt: skip
YARN_ATTEMPTS: Final = Option(
    key="yarn.application-attempts", parse=integer(1, 1000), kind=_WHOLE, default=0,
    unset="2 with ZooKeeper, else 1",
    description="How often YARN starts the JobManager, counting failures within"
    " `yarn.application-attempt-failures-validity-interval`. More than one needs `high-availability.type: zookeeper`:"
    " what is stored otherwise is lost with the container. TaskManagers and their work outlive an attempt.",
)  # fmt: skip
YARN_ATTEMPTS_INTERVAL: Final = Option(
    key="yarn.application-attempt-failures-validity-interval", parse=positive_duration_s, kind=_DURATION, default=600.0,
    description="How long a failure of the JobManager counts for `yarn.application-attempts`.",
)  # fmt: skip
YARN_SHIP_FILES: Final = Option(
    key="yarn.ship-files", parse=names, kind="paths, with commas between them", default=(), unset="none",
    description="Files and directories of the client's machine that every container has in its working directory.",
)  # fmt: skip
YARN_SHIP_ARCHIVES: Final = Option(
    key="yarn.ship-archives", parse=names, kind="paths, with commas between them", default=(), unset="none",
    description="Archives of the client's machine (.zip, .jar, .tar, .tar.gz, .tgz) that every container has in its"
    " working directory, unpacked into a directory of the archive's name: a Python environment, for example.",
)  # fmt: skip
YARN_PROVIDED: Final = Option(
    key="yarn.provided.lib.dirs", parse=names, kind="URLs or paths, with commas between them", default=(), unset="none",
    description="Directories on YARN's file system whose files and directories every container has in its working"
    " directory. They are not copied for each application, and nodes keep them for the next one. Together"
    " they have 1000 files at most.",
)  # fmt: skip
YARN_ROLLED_LOGS: Final = Option(
    key="yarn.rolled-logs.include-pattern", parse=str, kind="a regular expression", default="", unset="none",
    description="Log files of containers that YARN aggregates while they run; all others when they have ended.",
)  # fmt: skip
YARN_STAGING: Final = Option(
    key="yarn.staging-directory", parse=str, kind="a path or URL", default="",
    unset="the user's home directory on YARN's file system",
    description="Where the files of an application are, in `.flintlock/<application id>`; all machines reach it. Files"
    " and blocking results of the application are removed when it ends.",
)  # fmt: skip
YARN_PYTHON: Final = Option(
    key="yarn.python", parse=str, kind="a path", default="", unset="the path of the client's own Python",
    description="The Python interpreter on the nodes of YARN, with Flintlock installed; a relative path is in the"
    " working directory of containers, as `environment.tar.gz/bin/python` of `yarn.ship-archives`.",
)  # fmt: skip
YARN_MASTER_VCORES: Final = Option(
    key="yarn.appmaster.vcores", parse=integer(1, 1024), kind=_WHOLE, default=1,
    description="The virtual cores of the JobManager's container.",
)  # fmt: skip
YARN_CONTAINER_VCORES: Final = Option(
    key="yarn.containers.vcores", parse=integer(1, 1024), kind=_WHOLE, default=0, unset="one for each slot",
    description="The virtual cores of a TaskManager's container.",
)  # fmt: skip
JM_PROCESS_MEMORY: Final = Option(
    key="jobmanager.memory.process.size", parse=memory_bytes, kind=_MEMORY, default=768 << 20,
    description="The memory of the JobManager's container on YARN.",
)  # fmt: skip
TM_PROCESS_MEMORY: Final = Option(
    key="taskmanager.memory.process.size", parse=memory_bytes, kind=_MEMORY, default=0,
    unset="`taskmanager.engine.memory`, 640m and 192m for each slot",
    description="The memory of a TaskManager's container on YARN: of the engine and of all runners together.",
)  # fmt: skip
YARN_HEARTBEAT: Final = Option(
    key="yarn.heartbeat.interval", parse=positive_duration_s, kind=_DURATION, default=5.0,
    description="Interval of the JobManager's heartbeats to YARN.",
)  # fmt: skip
YARN_HEARTBEAT_WAITING: Final = Option(
    key="yarn.heartbeat.container-request-interval", parse=positive_duration_s, kind=_DURATION, default=0.5,
    description="The same while a container is awaited, or the end of one.",
)  # fmt: skip
YARN_NODE_FAILURES: Final = Option(
    key="yarn.blacklist.failures", parse=integer(0, 1000), kind=_WHOLE, default=3,
    description="How many TaskManagers must fail on a node until it gets no others; 0: it always does. At most half of"
    " the nodes are excluded.",
)  # fmt: skip
YARN_NODE_EXCLUSION: Final = Option(
    key="yarn.blacklist.duration", parse=positive_duration_s, kind=_DURATION, default=3600.0,
    description="How long the failure of a TaskManager counts for `yarn.blacklist.failures`.",
)  # fmt: skip
RUNNER_MEMORY: Final = Option(
    key="taskmanager.runner.memory", parse=memory_bytes, kind=_MEMORY, default=0, unset="no limit",
    description="Maximum memory of a runner (the process that runs the user code of one task), unless the steps of"
    " its task set another limit.",
)  # fmt: skip
WORKER_MEMORY: Final = Option(
    key="taskmanager.python-worker.memory", parse=memory_bytes, kind=_MEMORY, default=0, unset="no limit",
    description="Maximum memory of each of Spark's Python workers (which run UDFs).",
)  # fmt: skip
RUNNER_USER: Final = Option(
    key="taskmanager.runner.user", parse=str, kind="the name of a user", default="", unset="the TaskManager's own user",
    description="The user of the operating system whom user code runs as: runners, the engine and its Python workers."
    " Needs a TaskManager that runs as root. User code can then neither read the state directory, with the cluster's"
    " secret in it, nor signal the cluster's processes.",
)  # fmt: skip
RUNNER_DIRECTORY: Final = Option(
    key="taskmanager.runner.directory", parse=str, kind="a path", default="/var/lib/flintlock-runner",
    description="Where the files of `taskmanager.runner.user` are, if there is one: copies of artifacts, the"
    " directories of engine and tasks, and blocking results unless `execution.work-dir` is set.",
)  # fmt: skip
PASSED_VARIABLES: Final = Option(
    key="taskmanager.environment.passed", parse=names, kind="names, with commas between them", default=(), unset="none",
    description="Environment variables of a TaskManager that user code inherits, beside those that programs generally"
    " need (`PATH`, `HOME`, `LANG`, `PYTHON*`, `SPARK_*`, `HADOOP_*` and the like): names, with `*` for any characters,"
    " such as `AWS_*`.",
)  # fmt: skip
SECRETS_DIRECTORY: Final = Option(
    key="security.secrets.directory", parse=str, kind=_TEXT, default="", unset="`secrets` in the state directory",
    description="The directory on each TaskManager's machine in which jobs find their secrets: one file for each"
    " `${secret:NAME}`, named after it, readable by its owner only.",
)  # fmt: skip
SECRETS_PREFIX: Final = Option(
    key="security.secrets.environment-prefix", parse=str, kind=_TEXT, default="SECRET_",
    description="Environment variables of a TaskManager whose names start with this are secrets of jobs:"
    " `SECRET_DB` is `${secret:DB}`. User code does not inherit them.",
)  # fmt: skip
TASK_OUTPUT: Final = Option(
    key="taskmanager.task-output.max-bytes", parse=memory_bytes, kind=_MEMORY, default=64 << 20,
    description="Maximum output of an attempt that is stored; beyond that, only the end.",
)  # fmt: skip
LOG_FILE_SIZE: Final = Option(
    key="env.log.size", parse=memory_bytes, kind=_MEMORY, default=64 << 20,
    description="The size at which a log file in the state directory is replaced by a new one: those of JobManagers,"
    " TaskManagers and engines. Logs that go to a service manager are not affected.",
)  # fmt: skip
LOG_FILES: Final = Option(
    key="env.log.max", parse=integer(0, 1000), kind=_WHOLE, default=5,
    description="How many replaced log files remain, as `<name>.1` (the latest), `<name>.2` and so on.",
)  # fmt: skip
LOG_FILE_INTERVAL: Final = Option(
    key="env.log.interval", parse=duration_s, kind=_DURATION, default=7 * 86400.0,
    description="How long a process writes into one log file before that is replaced by a new one, whatever its size."
    " 0: as long as it is not full.",
)  # fmt: skip
JOB_RETENTION: Final = Option(
    key="job-result-store.retention", parse=duration_s, kind=_DURATION, default=7 * 86400.0,
    description="How long an ended job, its results, its id and its idempotency key are stored, counting the time in "
    "which the cluster has a leader.",
)  # fmt: skip
BLOB_RETENTION: Final = Option(
    key="blob.upload-retention", parse=positive_duration_s, kind=_DURATION, default=3600.0,
    description="How long an uploaded file that no job refers to is stored.",
)  # fmt: skip
ENDED_JOB_BLOBS: Final = Option(
    key="blob.ended-jobs.max-size", parse=memory_bytes, kind=_MEMORY, default=1 << 30,
    description="How much of the files of ended jobs is stored, for `flintlock rerun`: at most as long as the jobs "
    "are, and the oldest are removed first. 0: none.",
)  # fmt: skip
FAILED_JOB_RESULTS: Final = Option(
    key="execution.failed-jobs.results-retention", parse=duration_s, kind=_DURATION, default=86400.0,
    description="How long the blocking results of a failed job are kept in execution.work-dir, for `flintlock rerun"
    " --from-failed`: at most as long as the job is stored. 0: they are removed when the job has failed.",
)  # fmt: skip
FAILED_JOB_RESULTS_SIZE: Final = Option(
    key="execution.failed-jobs.max-size", parse=memory_bytes, kind=_MEMORY, default=10 << 30,
    description="Maximum size of the blocking results that are kept of failed jobs: the oldest are removed first. Those"
    " that a job uses at the moment stay until it has ended.",
)  # fmt: skip
UPLOAD_LIMIT: Final = Option(
    key="rest.server.max-content-length", parse=memory_bytes, kind=_MEMORY, default=512 << 20,
    description="Maximum size of a submission, files included.",
)  # fmt: skip
WEB_REFRESH: Final = Option(
    key="web.refresh-interval", parse=positive_duration_s, kind=_DURATION, default=3.0,
    description="How often dashboards refresh.",
)  # fmt: skip
WEB_CANCEL: Final = Option(
    key="web.cancel.enable", parse=boolean, kind=_YES_NO, default=True,
    description="Whether dashboards offer to cancel a job, or to stop it with a savepoint.",
)  # fmt: skip
EXCEPTION_HISTORY: Final = Option(
    key="web.exception-history-size", parse=integer(1, 10_000), kind=_WHOLE, default=16,
    description="Number of failures of a job that are stored.",
)  # fmt: skip
CLEANUP_INITIAL: Final = Option(
    key="cleanup-strategy.exponential-delay.initial-backoff", parse=duration_s, kind=_DURATION, default=1.0,
    description="First delay before cleanup is retried.",
)  # fmt: skip
CLEANUP_MAX: Final = Option(
    key="cleanup-strategy.exponential-delay.max-backoff", parse=duration_s, kind=_DURATION, default=3600.0,
    description="Maximum delay between retries of cleanup, which never gives up.",
)  # fmt: skip
AUTHENTICATION: Final = Option(
    key="security.authentication", parse=one_of("required", "none"), kind="required or none", default="required",
    description="Whether REST serves only callers with a credential. 'none' makes every process of this machine an"
    " administrator of the cluster, and is possible only on a loopback address.",
)  # fmt: skip
TOKEN: Final = Option(
    key="security.token", parse=str, kind=_TEXT, default="", unset="none",
    description="The token that clients send to the cluster. Prefer `security.token-file`, or the environment.",
)  # fmt: skip
TOKEN_FILE: Final = Option(
    key="security.token-file", parse=str, kind="a path", default="", unset="none",
    description="A file with the token that clients send to the cluster. Without a token, a client of the user who"
    " runs the cluster uses the cluster's secret.",
)  # fmt: skip
ALLOWED_HOSTS: Final = Option(
    key="security.allowed-hosts", parse=names, kind="names, with commas between them", default=(), unset="none",
    description="Names by which clients may address REST, in addition to IP addresses, localhost, the name of the"
    " machine and `rest.address`: those of a proxy, for example. Requests for other names are refused, as they come"
    " from web pages that pretend to be this cluster.",
)  # fmt: skip
ALLOWED_ORIGINS: Final = Option(
    key="security.allowed-origins", parse=names, kind="origins, with commas between them", default=(), unset="none",
    description="Origins (such as https://portal.example.com) whose web pages may use REST with a token. Requests of"
    " all other web pages are refused.",
)  # fmt: skip
CONCURRENT_REQUESTS: Final = Option(
    key="rest.max-concurrent-requests", parse=integer(1), kind=_WHOLE, default=1000,
    description="Maximum number of requests that a JobManager serves at once; more get 503. Those whose response is"
    " delayed are counted by `rest.max-waiting-requests`.",
)  # fmt: skip
WAITING_REQUESTS: Final = Option(
    key="rest.max-waiting-requests", parse=integer(1), kind=_WHOLE, default=4000,
    description="Maximum number of long polls and streams of events that a JobManager has open; more get 503.",
)  # fmt: skip
CONCURRENT_UPLOADS: Final = Option(
    key="rest.max-concurrent-uploads", parse=integer(1), kind=_WHOLE, default=16,
    description="Maximum number of requests with a body of more than 1 MiB, or of unknown size, that a JobManager"
    " receives at once; more get 503.",
)  # fmt: skip
UPLOAD_BYTES: Final = Option(
    key="rest.max-upload-bytes", parse=memory_bytes, kind=_MEMORY, default=2 << 30,
    description="Maximum size of all large bodies together that a JobManager receives at once; more get 503. One of"
    " unknown size counts as `rest.server.max-content-length`.",
)  # fmt: skip
RATE_LIMIT: Final = Option(
    key="security.rate-limit", parse=number(0.0), kind="a number", default=500.0,
    description="Maximum number of requests a second with one token or session; more get 429. 0: no limit. Credentials"
    " made with the cluster's secret have none.",
)  # fmt: skip
OIDC_ISSUER: Final = Option(
    key="security.oidc.issuer", parse=str, kind="an https address", default="", unset="none",
    description="The OpenID Connect provider whose bearer tokens are accepted, as its tokens name it (`iss`).",
)  # fmt: skip
OIDC_AUDIENCE: Final = Option(
    key="security.oidc.audience", parse=str, kind=_TEXT, default="", unset="none",
    description="The audience (`aud`) that a bearer token must be for: the name of this cluster at the provider.",
)  # fmt: skip
OIDC_JWKS_URL: Final = Option(
    key="security.oidc.jwks-url", parse=str, kind="an https address", default="",
    unset="as `<issuer>/.well-known/openid-configuration` says",
    description="Where the provider's public keys are.",
)  # fmt: skip
OIDC_ROLE_CLAIM: Final = Option(
    key="security.oidc.role-claim", parse=str, kind=_TEXT, default="flintlock-role",
    description="The claim of a bearer token with the role: viewer, submitter, operator or admin, or a list of which"
    " the highest counts. A token without one is refused.",
)  # fmt: skip
OIDC_NAME_CLAIM: Final = Option(
    key="security.oidc.name-claim", parse=str, kind=_TEXT, default="sub",
    description="The claim of a bearer token with the name of its bearer. It is recorded as `oidc:<name>`.",
)  # fmt: skip
SECRET_FILE: Final = Option(
    key="security.secret-file", parse=str, kind="a path", default="",
    unset="`cluster-secret` in the state directory, made at the first start",
    description="The file with the cluster's secret: at least 32 bytes in hexadecimal digits, readable by its owner"
    " only. Every host of a cluster needs the same one. Who can read it is an administrator of the cluster.",
)  # fmt: skip

TLS_MEMBER: Final = Option(
    key="security.tls.certificate-file", parse=str, kind="a path", default="", unset="no TLS",
    description="The file with this machine's private key and certificate, in PEM, readable by its owner only:"
    " `member.pem` of `flintlock certs issue`. JobManagers and TaskManagers then use TLS, and require a certificate of"
    " each other. A file that is replaced is read again.",
)  # fmt: skip
TLS_AUTHORITIES: Final = Option(
    key="security.tls.ca-file", parse=str, kind="a path", default="", unset="none",
    description="The file with the certificates of the authorities, in PEM, that certificates of the cluster have to"
    " come from: `ca.pem` of `flintlock certs init`. Clients need it for https addresses of the cluster.",
)  # fmt: skip

#: All of them, in the order of the reference page.
OPTIONS: Final[tuple[Option[Any], ...]] = tuple(
    cast("Option[Any]", value) for value in dict(globals()).values() if isinstance(value, Option)
)
