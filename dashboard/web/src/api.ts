// The REST interface as the pages use it; shapes follow dashboard/schema.py.

export interface Session {
  signed_in: boolean;
  user: string;
  role: "admin" | "viewer" | "";
  csrf: string;
  may_act: boolean;
  may_create: boolean;
  signer: { name: string; fingerprint: string } | null;
  note: string;
}

export interface ServerState {
  reachable: boolean;
  since: number;
  address: string;
  problem: string;
}

// What silos say that one training record has cost: each about its own records, nothing summed.
export interface RecordTotals {
  epsilon: number | null;
  delta: number | null;
  reporting: number;
  without: number;
}

export interface Waiting {
  what: string;
  sentence: string;
  until: number | null;
  standing_still: boolean;
}

export interface Run {
  name: string;
  state: string;
  state_reason: string;
  created_at: number;
  round: number;
  rounds_planned: number;
  rounds_applied: number;
  rounds_skipped: number;
  model_version: number;
  accuracy: number | null;
  best_accuracy: number | null;
  loss: number | null;
  metrics: Record<string, number>;
  bytes_up: number;
  bytes_down: number;
  epsilon_total: number | null;
  epsilon_budget: number | null;
  records: RecordTotals;
  silos_present: number;
  silos_allowed: number;
  waiting: Waiting;
  aggregator: string;
  drills: boolean;
  tags: string[];
  alerts: number;
  last_alert: string;
}

export interface Epsilon {
  covers: string;
  per_round: number | null;
  total: number | null;
  budget: number | null;
  budget_ends_in_round: number | null;
  meaningful: boolean;
}

export interface Records {
  covers: string;
  epsilon_at_most: number | null;
  delta_at_most: number | null;
}

export type Settings = Record<string, unknown>;

export interface Model {
  version: number;
  hash: string;
  accuracy: number | null;
  size: number;
  best: boolean;
  score: number | null;
}

export interface Traffic {
  sent: number;
  dense: number;
  sentence: string;
}

export interface Pace {
  started_at: number | null;
  ended_at: number | null;
  seconds: number | null;
  rounds_per_hour: number | null;
  seconds_left: number | null;
}

export interface RunDetail {
  run: Run;
  phase: string;
  open_round: number;
  last_event: number;
  settings: Settings;
  options: Settings;
  models: Model[];
  epsilon: Epsilon;
  records: Records;
  traffic: Traffic;
  pace: Pace;
  dense_bytes_per_silo_round: number;
  signed_by: string;
}

export interface Row {
  round: number;
  outcome: "applied" | "skipped";
  reason: string;
  started_at: number;
  phase_seconds: number[];
  consensus_size: number;
  roster_size: number;
  proposed: number;
  survivors: number;
  bytes_up: number;
  bytes_down: number;
  bytes_up_total: number;
  bytes_down_total: number;
  bytes_total: number;
  dense_bytes: number;
  dense_total: number;
  paper_bytes: number;
  paper_total: number;
  epsilon: number | null;
  epsilon_theorem2: number | null;
  epsilon_sum: number | null;
  epsilon_theorem2_sum: number | null;
  clip_rate: number | null;
  update_norm: number | null;
  accuracy: number | null;
  loss: number | null;
  metrics: Record<string, number>;
  records: Record<string, number>;
  silo_accuracy_min: number | null;
  silo_accuracy_median: number | null;
  silo_accuracy_max: number | null;
  silo_loss_min: number | null;
  silo_loss_median: number | null;
  silo_loss_max: number | null;
}

export interface Rounds {
  rows: Row[];
  total: number;
  last_event: number;
}

export interface Buffer {
  number: number;
  members: string[];
  survivors: number;
  opened: boolean;
  discarded: string;
  distance: number | null;
  weight: number | null;
  mark: string;
}

export interface SiloInRound {
  silo: string;
  status: string;
  bytes_up: number;
  bytes_down: number;
  record_epsilon: number | null;
  record_none: boolean;
}

export interface RoundDetail {
  row: Row & { model_version: number; tolerated: number; clip_range: number };
  buffers: Buffer[];
  silos: SiloInRound[];
  previous: number | null;
  following: number | null;
}

export interface Standing {
  silo: string;
  suspected: number;
  judged: number;
  ratio: number;
  chance: number;
  stands_out: boolean;
}

// Who sat in suspected buffers more often than their seats explain.
export interface Suspicion {
  sentence: string;
  caution: string;
  suspected: number;
  silos: Standing[];
}

export interface SeatDetail {
  round: number;
  members: string[];
  weight: number | null;
  why: string;
}

export interface HeatMapData {
  rows: string[];
  first_round: number[];
  last_round: number[];
  cells: string[][];
  values: (number | null)[][];
  details: (SeatDetail | null)[][];
}

export interface RunEvent {
  position: number;
  at: number;
  kind: string;
  severity: string;
  round: number;
  silo: string;
  text: string;
}

export interface Silo {
  name: string;
  state: string;
  last_seen: number | null;
  software_version: string;
  bytes_up: number;
  bytes_down: number;
  certificate_expires: number | null;
  strikes: number;
  back_in_round: number | null;
  epsilon_total: number | null;
  epsilon_budget: number | null;
  drill: string;
  problem: string;
  reason: string;
  given_up: number;
  record_epsilon: number | null;
  record_delta: number | null;
  record_budget: number | null;
  record_none: boolean;
}

export interface Comparison {
  runs: { run: Run; settings: Settings; rows: Row[] }[];
}

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    detail: string,
  ) {
    super(detail);
  }
}

let csrf = "";

export const csrfToken = (): string => csrf;

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = {};
  if (method !== "GET") headers["X-CSRF-Token"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(`/api/v1${path}`, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "DASHBOARD_UNREACHABLE", "The dashboard itself does not answer. Check that it still runs.");
  }
  if (answer.status === 204) return undefined as T;
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    if (answer.status === 401 && path !== "/session") window.dispatchEvent(new Event("signed-out"));
    throw new Problem(answer.status, data.reason ?? "HTTP", data.detail ?? `The dashboard answered ${answer.status}.`);
  }
  return data as T;
}

export const get = <T>(path: string) => call<T>("GET", path);

export async function session(): Promise<Session> {
  return remember(await get<Session>("/session"));
}

export async function signIn(token: string): Promise<Session> {
  return remember(await call<Session>("POST", "/session", { token }));
}

export async function signOut(): Promise<void> {
  await call("DELETE", "/session");
  csrf = "";
}

function remember(found: Session): Session {
  csrf = found.csrf;
  return found;
}
