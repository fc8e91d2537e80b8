// What admins ask for when they create, amend or roll back a run; shapes follow creation.py, planning.py, uploads.py and orders.py.
import { Problem, csrfToken } from "./api";

// A run's settings as the run file has them.
export interface Config {
  name: string;
  silos: string[];
  aggregator: { name: string; settings: Record<string, unknown>; pre: unknown[] };
  deadlines: Record<string, number>;
  stop: Record<string, number>;
  [setting: string]: unknown;
}

export interface Choices {
  aggregators: string[];
  defaults: Config;
  largest_model: number;
}

export interface Preflight {
  conclusion: string;
  facts: { topic: string; text: string; problems: string[] }[];
  remedies: { settings: Record<string, unknown>; text: string }[];
}

export interface Plan {
  bytes: {
    round_up: number;
    round_down: number;
    round_dense: number;
    total_up: number;
    total_down: number;
    total_dense: number;
    once: number;
    comparison: string;
  } | null;
  coordinates: {
    per_round: number | null;
    total: number | null;
    meaningful: boolean;
    meaning: string;
    remedy: string;
    covers: string;
  } | null;
  records: { epsilon_at_most: number | null; delta_at_most: number | null; meaning: string; covers: string };
}

export interface Created {
  created: boolean;
  problems: string[];
  preflight: Preflight;
  plan: Plan;
}

export interface Amended {
  done: boolean;
  from_round: number;
  silos: string[];
  quorum: number;
  replaces: string[];
  problems: string[];
  conclusion: string;
}

export interface Uploaded {
  upload: string;
  file: string;
  parameters: number;
  tensors: number | null;
  hash: string;
}

// fetch does not say how far it is; a model of some hundred megabytes takes a while.
export function uploadModel(file: File, progress: (share: number) => void): { answer: Promise<Uploaded>; stop: () => void } {
  const request = new XMLHttpRequest();
  const answer = new Promise<Uploaded>((resolve, reject) => {
    request.open("POST", `/api/v1/models?name=${encodeURIComponent(file.name)}`);
    request.setRequestHeader("X-CSRF-Token", csrfToken());
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => progress(event.total ? event.loaded / event.total : 0);
    request.onload = () => {
      const data = parsed(request.responseText);
      if (request.status === 401) window.dispatchEvent(new Event("signed-out"));
      if (request.status === 200) resolve(data as unknown as Uploaded);
      else reject(new Problem(request.status, data.reason ?? "HTTP", data.detail ?? unexplained(request.status)));
    };
    request.onerror = () => reject(new Problem(0, "DASHBOARD_UNREACHABLE", "The upload broke off. Check that the dashboard still runs."));
    request.onabort = () => reject(new Problem(0, "STOPPED", "The upload was stopped."));
    request.send(file);
  });
  return { answer, stop: () => request.abort() };
}

// Not the dashboard's words, then: a proxy in front of it has limits of its own.
const unexplained = (status: number): string =>
  status === 413
    ? "A proxy before this dashboard takes no file of that size. Raise its limit, or use the command line: fedrep run create."
    : `The answer was ${status}, without a reason.`;

function parsed(text: string): Record<string, string> {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
