// The failures of a job in the order in which a reader wants them: what ended the job first, then the latest ones.
import type { AttemptInfo, FailureInfo, JobAttempts, RegionAttempts } from "../../api/types.ts";

export interface ShownFailure {
  readonly failure: FailureInfo;
  /** The attempt that failed; null: it is the job as a whole. */
  readonly attempt: { readonly region: RegionAttempts; readonly info: AttemptInfo } | null;
  /** Whether it ended the job. */
  readonly ended: boolean;
  readonly at: number;
}

/** Returns the failures of a job, each once. */
export function failuresOf(attempts: JobAttempts): readonly ShownFailure[] {
  const cause = attempts.failure ?? null;
  const found: ShownFailure[] = [];
  for (const region of attempts.regions ?? [])
    for (const info of region.attempts ?? [])
      if (info.failure) found.push({ failure: info.failure, attempt: { region, info }, ended: false, at: endOf(info) });
  found.sort((one, other) => other.at - one.at);
  if (cause === null) return found;
  const same = found.findIndex(({ failure }) => isSame(failure, cause));
  const [known] = same < 0 ? [] : found.splice(same, 1);
  const first = known ?? { failure: cause, attempt: null, at: attempts["end-time"] ?? -1 };
  return [{ ...first, ended: true }, ...found];
}

function isSame(one: FailureInfo, other: FailureInfo): boolean {
  return one.kind === other.kind && one.message === other.message && one.step === other.step;
}

function endOf(attempt: AttemptInfo): number {
  return Math.max(-1, ...Object.values(attempt.timestamps ?? {}));
}
