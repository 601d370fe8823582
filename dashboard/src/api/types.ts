// Made from the routes of the REST API by `make docs`.

/** The numbers of all subtasks together. */
export interface Aggregated {
  readonly metrics: Readonly<Record<string, Spread>>;
  readonly "status-duration": Readonly<Record<string, Spread>>;
}

/** A metric of several subjects by its id; with the aggregations that the request names (`get`, `agg`). */
export interface AggregatedMetric {
  readonly id: string;
  readonly min?: number | null;
  readonly max?: number | null;
  readonly avg?: number | null;
  readonly sum?: number | null;
}

/** One job's share of a TaskManager. */
export interface AllocatedSlotInfo {
  readonly jobId: string;
  readonly resource: ResourceProfileInfo;
  readonly assignedTasks: number;
}

/** GET /applications/:applicationid. */
export interface ApplicationDetails {
  readonly id: string;
  readonly name: string;
  readonly status: ApplicationState;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly timestamps: Readonly<Record<string, number>>;
  readonly jobs: ReadonlyArray<JobsOverviewEntry>;
}

/** The failures of an application's program, or of its only job, newest first. */
export interface ApplicationExceptionHistory {
  readonly entries?: ReadonlyArray<ExceptionHistoryEntry>;
}

/** GET /applications/:applicationid/exceptions. */
export interface ApplicationExceptions {
  readonly exceptionHistory: ApplicationExceptionHistory;
}

/** One entry of GET /applications/overview. `jobs` counts them by state. */
export interface ApplicationOverviewEntry {
  readonly id: string;
  readonly name: string;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly status: ApplicationState;
  readonly jobs: Readonly<Record<string, number>>;
}

/** The state of an application: of its program, or of its only job, and of the jobs that the program has left. */
export type ApplicationState = "CANCELED" | "CANCELING" | "CREATED" | "FAILED" | "FAILING" | "FINISHED" | "RUNNING";

/** GET /applications/overview. */
export interface ApplicationsOverview {
  readonly applications: ReadonlyArray<ApplicationOverviewEntry>;
}

/** What a runner does with an artifact before it runs user code. */
export type ArtifactKind = "environment" | "file" | "jar" | "pickle" | "py-file" | "requirement-file" | "requirements";

/** An artifact by name; `blob` where it has been uploaded already. */
export interface ArtifactSpec {
  readonly name: string;
  readonly blob?: string | null;
  readonly kind?: ArtifactKind;
}

/** One attempt at one region: the model's ExecutionInfo. */
export interface AttemptInfo {
  readonly attempt: number;
  readonly state: ExecutionState;
  readonly "taskmanager-id"?: string | null;
  readonly slots?: number;
  readonly timestamps?: Readonly<Record<string, number>>;
  readonly activity?: string;
  readonly publishing?: number;
  readonly metrics?: AttemptMetrics;
  readonly outputs?: ReadonlyArray<StepOutput>;
  readonly failure?: FailureInfo | null;
}

/** What Spark counted for one attempt: the model's TaskMetrics. */
export interface AttemptMetrics {
  readonly "read-records"?: number;
  readonly "read-bytes"?: number;
  readonly "write-records"?: number;
  readonly "write-bytes"?: number;
  readonly "stages-done"?: number;
  readonly "stages-total"?: number;
  readonly "tasks-done"?: number;
  readonly "tasks-total"?: number;
}

/** Who sends a request, as the cluster sees it. */
export interface CallerInfo {
  readonly name: string;
  readonly role: Role;
  readonly kind: string;
  readonly expires?: number | null;
  readonly token?: string;
}

/** POST /jobs/check: a job document, as for POST /jobs, and the names of the files that would be sent with it. */
export interface CheckRequest {
  readonly document: unknown;
  readonly files?: ReadonlyArray<string>;
}

/** How many checkpoints there were. */
export interface CheckpointCounts {
  readonly restored: number;
  readonly total: number;
  readonly in_progress: number;
  readonly completed: number;
  readonly failed: number;
}

/** A figure of the checkpoints in the history. */
export interface CheckpointStatistic {
  readonly min?: number;
  readonly max?: number;
  readonly avg?: number;
  readonly p50?: number;
  readonly p90?: number;
  readonly p95?: number;
  readonly p99?: number;
  readonly p999?: number;
}

/** The figures of the checkpoints in the history. */
export interface CheckpointSummary {
  readonly checkpointed_size: CheckpointStatistic;
  readonly state_size: CheckpointStatistic;
  readonly end_to_end_duration: CheckpointStatistic;
  readonly alignment_buffered: CheckpointStatistic;
  readonly processed_data: CheckpointStatistic;
  readonly persisted_data: CheckpointStatistic;
}

/** GET /jobs/:jobid/checkpoints. */
export interface CheckpointsResponse {
  readonly counts: CheckpointCounts;
  readonly summary: CheckpointSummary;
  readonly latest: LatestCheckpoints;
  readonly history: ReadonlyArray<CompletedCheckpoint>;
}

/** PATCH /jobs/:jobid/clientHeartbeat: the client is alive until then, in milliseconds since 1970. */
export interface ClientHeartbeatRequest {
  readonly expiredTimestamp: number;
}

/** GET /overview. */
export interface ClusterOverview {
  readonly taskmanagers: number;
  readonly "slots-total": number;
  readonly "slots-available": number;
  readonly "jobs-running": number;
  readonly "jobs-finished": number;
  readonly "jobs-cancelled": number;
  readonly "jobs-failed": number;
  readonly "flink-version": string;
  readonly "flink-commit": string;
}

/** GET /resources: the jobs that wait for slots, in order, and how many TaskManagers are being started. */
export interface ClusterResources {
  readonly waiting?: ReadonlyArray<WaitingJob>;
  readonly starting?: number;
}

/** A committed batch of one query; as the latest savepoint, the savepoint, whose size is not known here. */
export interface CompletedCheckpoint {
  readonly id: number;
  readonly is_savepoint?: boolean;
  readonly savepointFormat?: string | null;
  readonly trigger_timestamp: number;
  readonly latest_ack_timestamp: number;
  readonly checkpointed_size: number;
  readonly state_size: number;
  readonly end_to_end_duration: number;
  readonly alignment_buffered?: number;
  readonly processed_data?: number;
  readonly persisted_data?: number;
  readonly num_subtasks?: number;
  readonly num_acknowledged_subtasks?: number;
  readonly checkpoint_type?: string;
  readonly tasks?: Readonly<Record<string, string>>;
  readonly uid?: string;
  readonly batch?: number;
  readonly className?: string;
  readonly status?: string;
  readonly external_path: string;
  readonly discarded?: boolean;
  readonly "input-rows"?: number;
  readonly "state-rows"?: number;
  readonly offsets?: ReadonlyArray<string>;
  readonly watermark?: string;
}

/** One entry of GET /jobmanager/config. */
export interface ConfigEntry {
  readonly key: string;
  readonly value: string;
}

/** Who the token is for, and what it may be used for. */
export interface CreateTokenRequest {
  readonly name: string;
  readonly role: Role;
  readonly "expires-in"?: string | null;
}

/** A new token. `token` is returned this once. */
export interface CreatedToken {
  readonly id: string;
  readonly name: string;
  readonly role: Role;
  readonly created: number;
  readonly "created-by": string;
  readonly expires?: number | null;
  readonly token: string;
}

/** GET /config. */
export interface DashboardConfig {
  readonly "refresh-interval": number;
  readonly "timezone-name": string;
  readonly "timezone-offset": number;
  readonly "flink-version": string;
  readonly "flink-revision": string;
  readonly features: Features;
}

/** POST /savepoint-disposal: remove a savepoint. Flink's field, and a trigger id of the client. */
export interface DisposalRequest {
  readonly "savepoint-path": string;
  readonly triggerId?: string | null;
}

/** An empty answer. */
export interface Empty {
}

/** The Spark driver that a job runs on. */
export type EngineKind = "auto" | "dedicated" | "shared";

/** GET /jobmanager/environment. `classpath` is the search path of Python modules. */
export interface Environment {
  readonly jvm: Interpreter;
  readonly classpath: ReadonlyArray<string>;
}

/** Every answer that is not a success. */
export interface Errors {
  readonly errors: ReadonlyArray<string>;
}

/** The last failures of a job, newest first. */
export interface ExceptionHistory {
  readonly entries: ReadonlyArray<ExceptionHistoryEntry>;
  readonly truncated: boolean;
}

/** A failure that the job reacted to, and what else failed before it ran again. */
export interface ExceptionHistoryEntry {
  readonly exceptionName: string;
  readonly stacktrace: string;
  readonly timestamp: number;
  readonly failureLabels: Readonly<Record<string, string>>;
  readonly taskName: string | null;
  readonly endpoint: string | null;
  readonly taskManagerId: string | null;
  readonly concurrentExceptions: ReadonlyArray<ExceptionInfo>;
}

/** One failure of a job. */
export interface ExceptionInfo {
  readonly exceptionName: string;
  readonly stacktrace: string;
  readonly timestamp: number;
  readonly failureLabels: Readonly<Record<string, string>>;
  readonly taskName: string | null;
  readonly endpoint: string | null;
  readonly taskManagerId: string | null;
}

/** GET /jobs/:jobid/exceptions. */
export interface ExceptionsResponse {
  readonly exceptionHistory: ExceptionHistory;
}

/** How a step's output reaches its consumers. */
export type Exchange = "blocking" | "pipelined";

/** How a job was configured. */
export interface ExecutionConfig {
  readonly "restart-strategy": string;
  readonly "job-parallelism": number;
  readonly "object-reuse-mode": boolean;
  readonly "user-config": Readonly<Record<string, string>>;
}

/** How a job ended. */
export interface ExecutionResult {
  readonly id: string;
  readonly "application-status": string;
  readonly "accumulator-results": Readonly<Record<string, string>>;
  readonly "net-runtime": number;
  readonly "failure-cause"?: FailureCause | null;
}

/** GET /jobs/:jobid/execution-result. */
export interface ExecutionResultResponse {
  readonly status: QueueStatus;
  readonly "job-execution-result"?: ExecutionResult | null;
}

/** The state of one attempt at one region.

    INITIALIZING is Flink's state of a task that restores its state. No attempt of Flintlock is ever in it; it exists
    because Flink's REST API reports a count for every state. */
export type ExecutionState = "CANCELED" | "CANCELING" | "CREATED" | "DEPLOYING" | "FAILED" | "FINISHED" | "INITIALIZING" | "RECONCILING" | "RUNNING" | "SCHEDULED";

/** The batch that an attempt at a query had begun, or was to begin, when it failed; the next attempt repeats it.

    When it began is not known: all times are that of the failure. */
export interface FailedCheckpoint {
  readonly id: number;
  readonly is_savepoint?: boolean;
  readonly savepointFormat?: string | null;
  readonly trigger_timestamp: number;
  readonly latest_ack_timestamp: number;
  readonly checkpointed_size: number;
  readonly state_size: number;
  readonly end_to_end_duration: number;
  readonly alignment_buffered?: number;
  readonly processed_data?: number;
  readonly persisted_data?: number;
  readonly num_subtasks?: number;
  readonly num_acknowledged_subtasks?: number;
  readonly checkpoint_type?: string;
  readonly tasks?: Readonly<Record<string, string>>;
  readonly uid?: string;
  readonly batch?: number;
  readonly className?: string;
  readonly status?: string;
  readonly failure_timestamp: number;
  readonly failure_message: string;
}

/** Why a job failed, as Flink's clients read it. */
export interface FailureCause {
  readonly class: string;
  readonly "stack-trace": string;
  readonly "serialized-throwable": string;
}

/** The model's Failure, complete. */
export interface FailureInfo {
  readonly kind: FailureKind;
  readonly message: string;
  readonly exception?: string;
  readonly step?: string | null;
  readonly frames?: ReadonlyArray<Frame>;
  readonly "error-class"?: string | null;
  readonly "query-context"?: string | null;
  readonly "stack-trace"?: string;
  readonly "jvm-stack-trace"?: string | null;
}

/** Why an attempt failed: decides whether a retry can help. */
export type FailureKind = "TaskManager lost" | "analysis" | "configuration" | "engine lost" | "internal" | "missing artifact" | "missing input" | "no resources" | "no space left" | "out of memory" | "publication" | "runner lost" | "spark task failure" | "timeout" | "user code";

/** One failure of a job in a line; its attempt and the exception history have the complete one. */
export interface FailureSummary {
  readonly timestamp: number;
  readonly region?: number | null;
  readonly attempt?: number;
  readonly "taskmanager-id"?: string | null;
  readonly kind?: string;
  readonly headline?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly concurrent?: boolean;
}

/** What a dashboard may offer. */
export interface Features {
  readonly "web-submit": boolean;
  readonly "web-cancel": boolean;
  readonly "web-rescale": boolean;
  readonly "web-history": boolean;
}

/** A stack frame in user code. */
export interface Frame {
  readonly file: string;
  readonly line: number;
  readonly function: string;
  readonly source?: string;
}

/** What one of a JVM's garbage collectors did. */
export interface GarbageCollector {
  readonly name: string;
  readonly count: number;
  readonly time: number;
}

/** What a TaskManager's machine has. */
export interface HardwareDescription {
  readonly cpuCores: number;
  readonly physicalMemory: number;
  readonly freeMemory: number;
  readonly managedMemory: number;
}

/** GET /healthz and /readyz. */
export interface Health {
  readonly status: string;
}

/** What the process runs on: Python, where Flink has its JVM. */
export interface Interpreter {
  readonly version: string;
  readonly arch: string;
  readonly options: ReadonlyArray<string>;
}

/** GET /jobs/:jobid/accumulators: as a client of Flink expects them, and always empty. */
export interface JobAccumulators {
  readonly "job-accumulators": ReadonlyArray<unknown>;
  readonly "user-task-accumulators": ReadonlyArray<unknown>;
  readonly "serialized-user-task-accumulators": Readonly<Record<string, string>>;
}

/** GET /jobs/:jobid/attempts: everything that a display of a job needs. */
export interface JobAttempts {
  readonly jobid: string;
  readonly name: string;
  readonly status: JobStatus;
  readonly engine?: string;
  readonly regions?: ReadonlyArray<RegionAttempts>;
  readonly publishing?: PublishingProgress | null;
  readonly failure?: FailureInfo | null;
  readonly failures?: ReadonlyArray<FailureSummary>;
  readonly "failures-omitted"?: number;
  readonly "submitted-by"?: string;
  readonly "rerun-of"?: string;
  readonly "upgrade-of"?: string;
  readonly successor?: string;
  readonly "waits-for"?: string;
  readonly continuable?: boolean;
  readonly labels?: Readonly<Record<string, string>>;
  readonly "start-time"?: number;
  readonly "end-time"?: number;
}

/** A cancel, a rescaling or a savepoint of a job: who requested it and when, and what came of it. */
export interface JobChange {
  readonly kind: string;
  readonly requested: number;
  readonly "requested-by"?: string;
  readonly status?: string;
  readonly failure?: string;
  readonly location?: string;
}

/** GET /jobs/:jobid/changes: who submitted the job, and what was requested of it since, the earliest first. */
export interface JobChanges {
  readonly "submitted-by"?: string;
  readonly changes?: ReadonlyArray<JobChange>;
}

/** POST /jobs/check: the plan of a document and the steps of its regions, or what is wrong with it. */
export interface JobCheck {
  readonly plan?: Plan | null;
  readonly regions?: ReadonlyArray<ReadonlyArray<string>>;
  readonly problems?: ReadonlyArray<JobCheckProblem>;
  readonly omitted?: number;
}

/** One thing that is wrong with a job document: the keys that lead to it, and what it is. */
export interface JobCheckProblem {
  readonly path: ReadonlyArray<string>;
  readonly message: string;
}

/** GET /jobs/:jobid/config. */
export interface JobConfigResponse {
  readonly jid: string;
  readonly name: string;
  readonly "execution-config": ExecutionConfig;
  readonly params?: Readonly<Record<string, string | number | number | boolean | null>>;
}

/** GET /jobs/:jobid. `waits-for`: slots, or what holds it up; not there if it goes on. */
export interface JobDetails {
  readonly jid: string;
  readonly "application-id": string;
  readonly name: string;
  readonly isStoppable: boolean;
  readonly state: string;
  readonly "job-type": string;
  readonly schedulerType: string;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly maxParallelism: number;
  readonly now: number;
  readonly timestamps: Readonly<Record<string, number>>;
  readonly vertices: ReadonlyArray<Vertex>;
  readonly "status-counts": Readonly<Record<string, number>>;
  readonly plan: Plan;
  readonly "pending-operators": number;
  readonly "waits-for"?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly "submitted-by"?: string;
  readonly "rerun-of"?: string;
  readonly "upgrade-of"?: string;
  readonly successor?: string;
}

/** One entry of GET /jobs. */
export interface JobIdStatus {
  readonly id: string;
  readonly status: string;
}

/** GET /jobs. */
export interface JobIds {
  readonly jobs: ReadonlyArray<JobIdStatus>;
}

/** GET /jobs/:jobid/logs. */
export interface JobLogs {
  readonly logs?: ReadonlyArray<LogPart>;
}

/** One JobManager: where it is reached, and the epoch in which it leads, 0 for a standby.

    `since`: since when it leads, or watches the leader. */
export interface JobManagerSummary {
  readonly rest: string;
  readonly rpc: string;
  readonly host?: string;
  readonly epoch?: number;
  readonly since?: number;
}

/** GET /jobmanagers: the leader, then its standbys. */
export interface JobManagersResponse {
  readonly jobmanagers?: ReadonlyArray<JobManagerSummary>;
}

/** The whole document. */
export interface JobSpec {
  readonly version?: number;
  readonly name?: string;
  readonly jobId?: string | null;
  readonly type?: JobType | null;
  readonly parallelism?: number | null;
  readonly engine?: EngineKind | null;
  readonly directory?: string;
  readonly params?: Readonly<Record<string, string | number | number | boolean | null>>;
  readonly secretParams?: ReadonlyArray<string>;
  readonly artifacts?: ReadonlyArray<string | ArtifactSpec>;
  readonly jars?: ReadonlyArray<string>;
  readonly packages?: ReadonlyArray<string>;
  readonly requirements?: string;
  readonly pyenv?: string;
  readonly config?: Readonly<Record<string, string | number | number | boolean>>;
  readonly labels?: Readonly<Record<string, string | number | number | boolean>>;
  readonly steps?: Readonly<Record<string, StepSpec>>;
  readonly client?: Versions | null;
  readonly clientTimeout?: number | null;
  readonly fixedParams?: ReadonlyArray<string>;
}

/** The state of a job. */
export type JobStatus = "CANCELED" | "CANCELLING" | "CREATED" | "FAILED" | "FAILING" | "FINISHED" | "INITIALIZING" | "RECONCILING" | "RESTARTING" | "RUNNING" | "SUSPENDED";

/** GET /jobs/:jobid/status. */
export interface JobStatusResponse {
  readonly status: JobStatus;
}

/** Whether a job's inputs end. */
export type JobType = "BATCH" | "STREAMING";

/** One entry of GET /jobs/overview. `waits-for`: slots, or what holds it up; not there if it goes on.

    `first-run`: when its first attempt ran; not there before that, nor where an earlier leader alone knew it.
    `upgrade-of` and `successor`: the job whose place this one takes, and the job that has taken its place. */
export interface JobsOverviewEntry {
  readonly jid: string;
  readonly name: string;
  readonly jobType: string;
  readonly schedulerType: string;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly state: JobStatus;
  readonly "last-modification": number;
  readonly tasks: OverviewTasks;
  readonly "pending-operators": number;
  readonly "waits-for"?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly "submitted-by"?: string;
  readonly "first-run"?: number;
  readonly "upgrade-of"?: string;
  readonly successor?: string;
}

/** GET /jobs/overview; `next` is where the next page begins, if `limit` was given and there is one. */
export interface JobsOverviewResponse {
  readonly jobs: ReadonlyArray<JobsOverviewEntry>;
  readonly next?: string | null;
}

/** The latest checkpoint of each kind. */
export interface LatestCheckpoints {
  readonly completed?: CompletedCheckpoint | null;
  readonly savepoint?: CompletedCheckpoint | null;
  readonly failed?: FailedCheckpoint | null;
  readonly restored?: RestoredCheckpoint | null;
}

/** A log file. */
export interface LogFile {
  readonly name: string;
  readonly size: number;
  readonly mtime: number;
}

/** GET /jobmanager/logs. */
export interface LogFiles {
  readonly logs: ReadonlyArray<LogFile>;
}

/** A piece of one attempt's output. */
export interface LogPart {
  readonly region: number;
  readonly attempt: number;
  readonly "taskmanager-id"?: string | null;
  readonly offset?: number;
  readonly "next-offset": number;
  readonly size?: number;
  readonly complete?: boolean;
  readonly text?: string;
  readonly stderr?: ReadonlyArray<TextSpan>;
}

/** A link that logs a browser in, relative to the cluster's address. */
export interface LoginCode {
  readonly path: string;
  readonly "expires-in": number;
}

/** The code of a link. */
export interface LoginRequest {
  readonly code: string;
}

/** A TaskManager's memory as Flink divides it; the engine's heap is the task heap, the rest does not exist here. */
export interface MemoryConfiguration {
  readonly frameworkHeap: number;
  readonly taskHeap: number;
  readonly frameworkOffHeap: number;
  readonly taskOffHeap: number;
  readonly networkMemory: number;
  readonly managedMemory: number;
  readonly jvmMetaspace: number;
  readonly jvmOverhead: number;
  readonly totalFlinkMemory: number;
  readonly totalProcessMemory: number;
}

/** A metric by its id; with its value if the request names it (`get`). */
export interface Metric {
  readonly id: string;
  readonly value?: string | null;
}

/** What came of an operation; without a failure cause it was carried out. */
export interface OperationOutcome {
  readonly location?: string | null;
  readonly "failure-cause"?: FailureCause | null;
}

/** GET /jobs/:jobid/rescaling/:triggerid, savepoints/:triggerid. `operation` is there once it is COMPLETED. */
export interface OperationResponse {
  readonly status: OperationStatusId;
  readonly operation?: OperationOutcome | null;
}

/** Whether the outcome of an operation is known. Flink's names. */
export type OperationStatus = "COMPLETED" | "IN_PROGRESS";

/** Whether the outcome of an operation is known. */
export interface OperationStatusId {
  readonly id: OperationStatus;
}

/** Which rows of a query's result each micro-batch writes. Spark's names. */
export type OutputMode = "append" | "complete" | "update";

/** Steps of a job, counted by state. */
export interface OverviewTasks {
  readonly running: number;
  readonly canceling: number;
  readonly canceled: number;
  readonly total: number;
  readonly created: number;
  readonly scheduled: number;
  readonly deploying: number;
  readonly reconciling: number;
  readonly finished: number;
  readonly initializing: number;
  readonly failed: number;
}

/** How many slots a step may have. */
export interface ParallelismBounds {
  readonly lowerBound?: number;
  readonly upperBound: number;
}

/** How many slots a step may have. */
export interface ParallelismBoundsRequest {
  readonly lowerBound?: number;
  readonly upperBound: number;
}

/** `function: {pickle: …}`: the name of an artifact that holds a cloudpickled function, and where it was defined. */
export interface PickleSpec {
  readonly pickle: string;
  readonly place?: string;
}

/** A job's plan. */
export interface Plan {
  readonly jid: string;
  readonly name: string;
  readonly type: string;
  readonly nodes: ReadonlyArray<PlanNode>;
}

/** An edge of the plan. */
export interface PlanInput {
  readonly num: number;
  readonly id: string;
  readonly ship_strategy: string;
  readonly exchange: string;
}

/** A node of the plan. `definition`: the step's query, or what it does in a line. */
export interface PlanNode {
  readonly id: string;
  readonly operator: string;
  readonly parallelism: number;
  readonly operator_strategy: string;
  readonly description: string;
  readonly optimizer_properties: Readonly<Record<string, unknown>>;
  readonly inputs?: ReadonlyArray<PlanInput>;
  readonly step?: string;
  readonly kind?: string;
  readonly definition?: string;
  readonly guarantee?: string;
  readonly uid?: string;
  readonly schema?: string;
}

/** GET /jobs/:jobid/plan. */
export interface PlanResponse {
  readonly plan: Plan;
}

/** `program:` of a step. */
export interface ProgramSpec {
  readonly file: string;
  readonly args?: ReadonlyArray<string>;
  readonly module?: string;
  readonly env?: Readonly<Record<string, string | number | number | boolean>>;
  readonly path?: string;
}

/** How many files are published. */
export interface PublishingProgress {
  readonly done: number;
  readonly total: number;
}

/** A job that is stored and cannot be run. `since` is -1, and `name` empty, where nothing is known of it. */
export interface QuarantineEntry {
  readonly jid: string;
  readonly name: string;
  readonly reason: string;
  readonly since: number;
  readonly readable: boolean;
  readonly directories?: ReadonlyArray<string>;
  readonly artifacts?: ReadonlyArray<string>;
}

/** GET /quarantine. */
export interface QuarantineListing {
  readonly jobs: ReadonlyArray<QuarantineEntry>;
}

/** GET /jobs/:jobid/queries. */
export interface QueriesResponse {
  readonly queries: ReadonlyArray<QueryInfo>;
  readonly now?: number;
}

/** A query, by its latest batch; `batch` is -1 before its first one.

    `running-since`: since when a batch runs that is not committed yet, as its runner has seen it; 0: none runs.
    `behind-ms`: for how long its batches have taken longer than the interval of the trigger, or the backlog has grown;
    it grows while a batch runs. `falls-behind`: that is for a minute or more.
    `idle-since`: since when its sources have had no rows, for ten seconds at least: its rates are 0; 0: it is not idle. */
export interface QueryInfo {
  readonly name: string;
  readonly uid?: string;
  readonly region?: number;
  readonly attempt?: number;
  readonly "query-id": string;
  readonly "run-id": string;
  readonly active: boolean;
  readonly error?: string;
  readonly batch: number;
  readonly started: number;
  readonly "trigger-interval-ms": number;
  readonly "input-rows": number;
  readonly "input-rows-per-second": number;
  readonly "processed-rows-per-second": number;
  readonly "duration-ms": number;
  readonly durations: Readonly<Record<string, number>>;
  readonly backlog?: number | null;
  readonly watermark: string;
  readonly "state-rows": number;
  readonly "state-bytes": number;
  readonly "late-rows": number;
  readonly "running-since"?: number;
  readonly "idle-since"?: number;
  readonly "behind-ms": number;
  readonly "falls-behind": boolean;
  readonly sources: ReadonlyArray<QuerySource>;
  readonly operators: ReadonlyArray<QueryOperator>;
}

/** A stateful operator of a query in its latest batch. `late-rows` were dropped because of the watermark. */
export interface QueryOperator {
  readonly name: string;
  readonly rows: number;
  readonly "updated-rows": number;
  readonly memory: number;
  readonly "late-rows": number;
}

/** A source of a query in its latest batch. `backlog` is null where the source does not say what waits in it. */
export interface QuerySource {
  readonly description: string;
  readonly "input-rows": number;
  readonly "input-rows-per-second": number;
  readonly "processed-rows-per-second": number;
  readonly backlog?: number | null;
}

/** COMPLETED or IN_PROGRESS. */
export interface QueueStatus {
  readonly id: string;
}

/** One region with its first and its latest attempts, the latest last. */
export interface RegionAttempts {
  readonly region: number;
  readonly steps?: ReadonlyArray<string>;
  readonly parallelism?: number | null;
  readonly reads?: ReadonlyArray<string>;
  readonly materialises?: ReadonlyArray<string>;
  readonly attempts?: ReadonlyArray<AttemptInfo>;
  readonly omitted?: number;
}

/** POST /jobs/:jobid/rerun: run the job again; `params` have other values than in the earlier job.

    `from-failed`: what had finished before the earlier job failed is not run again. */
export interface RerunRequest {
  readonly params?: Readonly<Record<string, string | number | number | boolean | null>>;
  readonly "from-failed"?: boolean;
}

/** A share of a TaskManager. */
export interface ResourceProfileInfo {
  readonly cpuCores: number;
  readonly taskHeapMemory: number;
  readonly taskOffHeapMemory: number;
  readonly managedMemory: number;
  readonly networkMemory: number;
  readonly extendedResources: Readonly<Record<string, unknown>>;
}

/** The checkpoint that the latest attempt of a query continued from. */
export interface RestoredCheckpoint {
  readonly id: number;
  readonly restore_timestamp: number;
  readonly is_savepoint?: boolean;
  readonly external_path: string;
}

/** A column of a result, with Spark's name for its type. */
export interface ResultColumn {
  readonly name: string;
  readonly type?: string;
}

/** GET /jobs/:jobid/results. */
export interface ResultNames {
  readonly results?: ReadonlyArray<string>;
}

/** `result:` of a step. */
export interface ResultSpec {
  readonly limit?: number;
}

/** GET /jobs/:jobid/results/:name. */
export interface ResultTable {
  readonly name: string;
  readonly truncated?: boolean;
  readonly columns?: ReadonlyArray<ResultColumn>;
  readonly rows?: ReadonlyArray<ReadonlyArray<unknown>>;
}

/** What a caller may do. Each role includes the ones before it. */
export type Role = "admin" | "operator" | "submitter" | "viewer";

/** What a sink does about data that is already at its target. Spark's names. */
export type SaveMode = "append" | "errorifexists" | "ignore" | "overwrite";

/** POST /jobs/:jobid/savepoints: make a savepoint while the job runs. Flink's fields. */
export interface SavepointRequest {
  readonly "target-directory"?: string | null;
  readonly "cancel-job"?: boolean;
  readonly formatType?: string;
  readonly triggerId?: string | null;
}

/** `sink:` of a step. */
export interface SinkSpec {
  readonly format?: string | null;
  readonly path?: string | null;
  readonly table?: string | null;
  readonly mode?: SaveMode;
  readonly partitionBy?: ReadonlyArray<string>;
  readonly options?: Readonly<Record<string, string | number | number | boolean>>;
}

/** `source:` of a step. */
export interface SourceSpec {
  readonly format?: string | null;
  readonly path?: string | ReadonlyArray<string>;
  readonly table?: string | null;
  readonly schema?: string | null;
  readonly options?: Readonly<Record<string, string | number | number | boolean>>;
  readonly stream?: boolean;
}

/** A link to Spark's own UI of an engine, relative to the cluster's address. It is a credential for that UI. */
export interface SparkUiLink {
  readonly path: string;
  readonly "expires-in": number;
}

/** How a number is spread over the subtasks. */
export interface Spread {
  readonly min: number;
  readonly max: number;
  readonly avg: number;
  readonly sum: number;
  readonly median: number;
  readonly p25: number;
  readonly p75: number;
  readonly p95: number;
}

/** Rows and bytes of one output step. */
export interface StepOutput {
  readonly step: string;
  readonly rows?: number;
  readonly bytes?: number;
}

/** One step: exactly one of source, sql, function, sink, result, program, foreachBatch says what it does. */
export interface StepSpec {
  readonly source?: SourceSpec | null;
  readonly sql?: string | null;
  readonly function?: string | PickleSpec | null;
  readonly sink?: SinkSpec | null;
  readonly result?: ResultSpec | null;
  readonly program?: ProgramSpec | null;
  readonly foreachBatch?: string | PickleSpec | null;
  readonly inputs?: ReadonlyArray<string>;
  readonly exchange?: Exchange;
  readonly parallelism?: number | null;
  readonly cache?: boolean;
  readonly cpu?: number | null;
  readonly memory?: string | number | null;
  readonly watermark?: WatermarkSpec | null;
  readonly uid?: string | null;
  readonly outputMode?: OutputMode | null;
  readonly trigger?: TriggerSpec | null;
}

/** POST /jobs/:jobid/stop: end a streaming job with a savepoint. Flink's fields. */
export interface StopRequest {
  readonly targetDirectory?: string | null;
  readonly drain?: boolean;
  readonly formatType?: string;
  readonly triggerId?: string | null;
}

/** POST /blobs. */
export interface StoredBlob {
  readonly blob: string;
  readonly size: number;
}

/** POST /jobs: the job is durable. */
export interface SubmittedJob {
  readonly jobid: string;
}

/** The current attempt at a step's region. `status-duration` is -1 for states that it has not been in. */
export interface Subtask {
  readonly subtask: number;
  readonly status: string;
  readonly attempt: number;
  readonly endpoint: string;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly metrics: VertexMetrics;
  readonly "taskmanager-id": string;
  readonly "status-duration": Readonly<Record<string, number>>;
  readonly start_time: number;
}

/** One subtask's accumulators. */
export interface SubtaskAccumulators {
  readonly subtask: number;
  readonly attempt: number;
  readonly endpoint: string;
  readonly "user-accumulators": ReadonlyArray<unknown>;
}

/** When a subtask entered each state; 0 for states that it has not been in. */
export interface SubtaskTimes {
  readonly subtask: number;
  readonly endpoint: string;
  readonly duration: number;
  readonly timestamps: Readonly<Record<string, number>>;
}

/** GET /jobs/:jobid/vertices/:vertexid/subtasks/accumulators. */
export interface SubtasksAccumulators {
  readonly id: string;
  readonly parallelism: number;
  readonly subtasks: ReadonlyArray<SubtaskAccumulators>;
}

/** GET /taskmanagers/:taskmanagerid. */
export interface TaskManagerDetails {
  readonly id: string;
  readonly path: string;
  readonly dataPort: number;
  readonly jmxPort: number;
  readonly timeSinceLastHeartbeat: number;
  readonly slotsNumber: number;
  readonly freeSlots: number;
  readonly assignedTasks: number;
  readonly totalResource: ResourceProfileInfo;
  readonly freeResource: ResourceProfileInfo;
  readonly hardware: HardwareDescription;
  readonly memoryConfiguration: MemoryConfiguration;
  readonly sparkMaster?: string;
  readonly allocatedSlots: ReadonlyArray<AllocatedSlotInfo>;
  readonly metrics: TaskManagerMetrics;
}

/** A TaskManager's memory in use, as Flink's dashboard reads it; 0 where Flintlock does not measure it. */
export interface TaskManagerMetrics {
  readonly heapUsed?: number;
  readonly heapCommitted?: number;
  readonly heapMax?: number;
  readonly nonHeapUsed?: number;
  readonly nonHeapCommitted?: number;
  readonly nonHeapMax?: number;
  readonly directCount?: number;
  readonly directUsed?: number;
  readonly directMax?: number;
  readonly mappedCount?: number;
  readonly mappedUsed?: number;
  readonly mappedMax?: number;
  readonly nettyShuffleMemorySegmentsAvailable?: number;
  readonly nettyShuffleMemorySegmentsUsed?: number;
  readonly nettyShuffleMemorySegmentsTotal?: number;
  readonly nettyShuffleMemoryAvailable?: number;
  readonly nettyShuffleMemoryUsed?: number;
  readonly nettyShuffleMemoryTotal?: number;
  readonly garbageCollectors?: ReadonlyArray<GarbageCollector>;
}

/** One entry of GET /taskmanagers. */
export interface TaskManagerSummary {
  readonly id: string;
  readonly path: string;
  readonly dataPort: number;
  readonly jmxPort: number;
  readonly timeSinceLastHeartbeat: number;
  readonly slotsNumber: number;
  readonly freeSlots: number;
  readonly assignedTasks: number;
  readonly totalResource: ResourceProfileInfo;
  readonly freeResource: ResourceProfileInfo;
  readonly hardware: HardwareDescription;
  readonly memoryConfiguration: MemoryConfiguration;
  readonly sparkMaster?: string;
}

/** GET /taskmanagers. */
export interface TaskManagersResponse {
  readonly taskmanagers: ReadonlyArray<TaskManagerSummary>;
}

/** A part of a text: its first character, and the one behind its last. */
export interface TextSpan {
  readonly start: number;
  readonly end: number;
}

/** The stacks of a process: its threads, and the tasks of its event loop if it has one. */
export interface ThreadDump {
  readonly threadInfos: ReadonlyArray<ThreadInfo>;
}

/** What one thread, or one task of the event loop, does now. */
export interface ThreadInfo {
  readonly threadName: string;
  readonly stringifiedThreadInfo: string;
}

/** What is known of a token. */
export interface TokenEntry {
  readonly id: string;
  readonly name: string;
  readonly role: Role;
  readonly created: number;
  readonly "created-by": string;
  readonly expires?: number | null;
}

/** All tokens that are valid, the earliest first. */
export interface TokenListing {
  readonly tokens: ReadonlyArray<TokenEntry>;
}

/** An operation was triggered: ask for its outcome by this id. */
export interface TriggerResponse {
  readonly "request-id": string;
}

/** `trigger:` of a step: exactly one of its keys. */
export interface TriggerSpec {
  readonly processingTime?: string | null;
  readonly availableNow?: boolean | null;
  readonly realTime?: string | null;
}

/** What a process runs: pickled functions need the same Python and PySpark on both sides. */
export interface Versions {
  readonly flintlock: string;
  readonly python: string;
  readonly pyspark: string;
}

/** One step in GET /jobs/:jobid. */
export interface Vertex {
  readonly id: string;
  readonly slotSharingGroupId: string;
  readonly name: string;
  readonly maxParallelism: number;
  readonly parallelism: number;
  readonly status: string;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly tasks: Readonly<Record<string, number>>;
  readonly metrics: VertexMetrics;
}

/** GET /jobs/:jobid/vertices/:vertexid/accumulators: Spark's accumulators are not shown here. */
export interface VertexAccumulators {
  readonly id: string;
  readonly "user-accumulators": ReadonlyArray<unknown>;
}

/** GET /jobs/:jobid/vertices/:vertexid. */
export interface VertexDetails {
  readonly id: string;
  readonly name: string;
  readonly parallelism: number;
  readonly maxParallelism: number;
  readonly now: number;
  readonly subtasks: ReadonlyArray<Subtask>;
  readonly aggregated: Aggregated;
}

/** What a step read and wrote. `…-complete` is false where Spark has not reported it, or not for this step alone. */
export interface VertexMetrics {
  readonly "read-bytes": number;
  readonly "read-bytes-complete": boolean;
  readonly "write-bytes": number;
  readonly "write-bytes-complete": boolean;
  readonly "read-records": number;
  readonly "read-records-complete": boolean;
  readonly "write-records": number;
  readonly "write-records-complete": boolean;
  readonly "accumulated-backpressured-time": number;
  readonly "accumulated-idle-time": number;
  readonly "accumulated-busy-time": number;
}

/** What one step may use: a value of GET /jobs/:jobid/resource-requirements, by vertex id. */
export interface VertexRequirements {
  readonly parallelism: ParallelismBounds;
}

/** What one step may use: a value of PUT /jobs/:jobid/resource-requirements. */
export interface VertexRequirementsRequest {
  readonly parallelism: ParallelismBoundsRequest;
}

/** What of a step runs on one TaskManager. */
export interface VertexTaskManager {
  readonly endpoint: string;
  readonly status: string;
  readonly "start-time": number;
  readonly "end-time": number;
  readonly duration: number;
  readonly metrics: VertexMetrics;
  readonly "status-counts": Readonly<Record<string, number>>;
  readonly "taskmanager-id": string;
  readonly aggregated: Aggregated;
}

/** GET /jobs/:jobid/vertices/:vertexid/taskmanagers. */
export interface VertexTaskManagers {
  readonly id: string;
  readonly name: string;
  readonly now: number;
  readonly taskmanagers: ReadonlyArray<VertexTaskManager>;
}

/** GET /jobs/:jobid/vertices/:vertexid/subtasktimes. */
export interface VertexTimes {
  readonly id: string;
  readonly name: string;
  readonly now: number;
  readonly subtasks: ReadonlyArray<SubtaskTimes>;
}

/** A position in the queue for slots: the model's WaitingRequest. */
export interface WaitingJob {
  readonly jobid: string;
  readonly name?: string;
  readonly priority?: number;
  readonly request?: string;
  readonly slots?: number | null;
  readonly since?: number;
  readonly "behind-streaming"?: boolean;
}

/** `watermark:` of a step. */
export interface WatermarkSpec {
  readonly column: string;
  readonly delay: string;
}
