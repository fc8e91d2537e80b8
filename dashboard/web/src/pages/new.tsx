// A new run from a form. The preflight answers while one types; its sentences are the server's own.
import { useEffect, useState } from "preact/hooks";
import { type Run, type RunDetail, call, get } from "../api";
import type { Shared } from "../app";
import { useLive } from "../live";
import { Card, Command, Empty, Failure, Loading } from "../parts";
import { go } from "../router";

interface Form {
  name: string;
  silos: string;
  rounds: string;
  fraction: string;
  alpha: string;
  buffer_size: string;
  byzantine_count: string;
  aggregator: string;
  ring_bits: string;
  epsilon_budget: string;
  record_epsilon_at_most: string;
  delta_at_most: string;
  target_accuracy: string;
  propose_seconds: string;
  drills: boolean;
}

interface Answer {
  created: boolean;
  problems: string[];
}

export function NewRun({ session, report }: Shared) {
  const [runs, setRuns] = useState<Run[] | null>(null);
  const [aggregators, setAggregators] = useState<string[]>([]);
  const [error, setError] = useState<Error | null>(null);
  const live = useLive("/api/v1/live", { server: (server) => report(live, server) });
  useEffect(() => report(live, null), [live]);
  useEffect(() => {
    document.title = "New run · FedREP";
    get<{ runs: Run[] }>("/runs").then((answer) => setRuns(answer.runs), setError);
    get<{ aggregators: string[] }>("/choices").then((answer) => setAggregators(answer.aggregators), setError);
  }, []);
  if (error) return <Failure error={error} />;
  if (!runs || !aggregators.length) return <Loading />;
  return (
    <>
      <div class="page-head">
        <h1>New run</h1>
      </div>
      {!session.may_create ? (
        <Empty title="This dashboard cannot create runs">
          <p>{session.note || "It has no admin key to sign a run's rules with."}</p>
          <p>
            On the command line: <Command text="fedrep run create --config run.toml --model init.safetensors" />
          </p>
        </Empty>
      ) : runs.length === 0 ? (
        <Empty title="There is no model to start from yet">
          <p>
            Create the first run from a file: <Command text="fedrep run create --config run.toml --model init.safetensors" />
          </p>
        </Empty>
      ) : (
        <Editor runs={runs} aggregators={aggregators} />
      )}
    </>
  );
}

function Editor({ runs, aggregators }: { runs: Run[]; aggregators: string[] }) {
  const [source, setSource] = useState(runs[0]!.name);
  const [detail, setDetail] = useState<RunDetail | null>(null);
  const [version, setVersion] = useState(0);
  const [form, setForm] = useState<Form | null>(null);
  const [problems, setProblems] = useState<string[] | null>(null);
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    get<RunDetail>(`/runs/${source}`).then((answer) => {
      setDetail(answer);
      setVersion(answer.models.find((model) => model.best)?.version ?? answer.models.at(-1)?.version ?? 0);
      setForm((known) => known ?? fromRun(answer));
    });
  }, [source]);

  const ask = (dry: boolean) =>
    call<Answer>("POST", "/runs", { config: toConfig(form!), model: { run: source, version }, dry_run: dry });
  useEffect(() => {
    if (!form || !detail) return;
    if (!form.name) {
      setProblems(null);
      return;
    }
    let late = false;
    const timer = setTimeout(() => {
      ask(true).then(
        (answer) => late || setProblems(answer.problems),
        (error: Error) => late || setProblems([error.message]),
      );
    }, 400);
    return () => {
      late = true;
      clearTimeout(timer);
    };
  }, [form, source, version, detail]);

  if (!form || !detail) return <Loading />;
  const set = (key: keyof Form) => (event: { currentTarget: { value: string } }) =>
    setForm({ ...form, [key]: event.currentTarget.value });
  const create = (event: Event) => {
    event.preventDefault();
    setBusy(true);
    ask(false)
      .then((answer) => (answer.created ? go(`/runs/${form.name}`) : setProblems(answer.problems)))
      .catch((error: Error) => setProblems([error.message]))
      .finally(() => setBusy(false));
  };
  const text = (key: keyof Form, label: string, hint: string, more: object = {}) => (
    <label>
      {label}
      <input value={String(form[key])} onInput={set(key)} required {...more} />
      <span class="hint">{hint}</span>
    </label>
  );
  const number = { inputMode: "decimal" };
  const optional = { ...number, required: false };
  return (
    <form class="grid" onSubmit={create}>
      <Card title="Who and what">
        <div class="fields">
          {text("name", "Name", "lower-case letters, digits, dashes", { pattern: "[a-z0-9]([a-z0-9._\\-]{0,61}[a-z0-9])?" })}
          {text("rounds", "Rounds", "planned number", number)}
          <label>
            Model of run
            <select value={source} onChange={(event) => setSource(event.currentTarget.value)}>
              {runs.map((run) => (
                <option key={run.name}>{run.name}</option>
              ))}
            </select>
            <span class="hint">the new run starts from one of its kept models</span>
          </label>
          <label>
            Version
            <select value={version} onChange={(event) => setVersion(Number(event.currentTarget.value))}>
              {detail.models.map((model) => (
                <option key={model.version} value={model.version}>
                  {model.version}
                  {model.best ? " (best)" : ""}
                </option>
              ))}
            </select>
          </label>
          <label class="whole">
            Silos allowed
            <textarea rows={11} value={form.silos} onInput={set("silos")} required />
            <span class="hint">one name per line</span>
          </label>
        </div>
      </Card>
      <Card title="Rules">
        <div class="fields">
          <label>
            Aggregator
            <select value={form.aggregator} onChange={set("aggregator")}>
              {aggregators.map((name) => (
                <option key={name} value={name}>
                  {name.replaceAll("_", " ")}
                </option>
              ))}
            </select>
          </label>
          {text("byzantine_count", "Byzantine silos at most (f)", "silos that may send anything", number)}
          {text("buffer_size", "Buffer size (s)", "silos whose sum is opened together", number)}
          {text("ring_bits", "Ring (B)", "8, 16 or 32 bits", number)}
          {text("fraction", "Share of coordinates (K/d)", "sent per round over all silos", number)}
          {text("alpha", "Obfuscation (alpha)", "share of random coordinates; 0 gives no guarantee", number)}
          {text("epsilon_budget", "Stop at epsilon", "0 means never", number)}
          {text("target_accuracy", "Stop at accuracy", "from 0 to 1; 0 means never", number)}
          {text("record_epsilon_at_most", "Record epsilon at most", "promised by each silo; empty: none", optional)}
          {text("delta_at_most", "Record delta at most", "of that promise, 1e-5 for example", optional)}
          {text("propose_seconds", "Time to train and propose, s", "per round", number)}
          <label class="check">
            <input
              type="checkbox"
              checked={form.drills}
              onChange={(event) => setForm({ ...form, drills: event.currentTarget.checked })}
            />{" "}
            silos may run attack drills
          </label>
        </div>
      </Card>
      <div class="card verdict" aria-live="polite">
        {problems === null ? (
          <p class="note">Give the run a name; the preflight then checks all settings together.</p>
        ) : problems.length === 0 ? (
          <p class="fine">✓ The preflight finds no problem.</p>
        ) : (
          <>
            <h2>{problems.length === 1 ? "One problem" : `${problems.length} problems`} to solve first</h2>
            <ul class="problems">
              {problems.map((problem) => (
                <li key={problem}>! {problem}</li>
              ))}
            </ul>
          </>
        )}
        <button type="submit" class="primary" disabled={busy || problems === null || problems.length > 0}>
          {busy ? "Creating…" : "Sign and create"}
        </button>
      </div>
    </form>
  );
}

function fromRun(detail: RunDetail): Form {
  const s = detail.settings as Record<string, number> & { silos: string[]; aggregator: string; deadlines: { propose: number } };
  return {
    name: "",
    silos: (s.silos as string[]).join("\n"),
    rounds: String(s.rounds),
    fraction: String(Number((s.coordinates! / s.parameters!).toPrecision(3))),
    alpha: String(s.alpha),
    buffer_size: String(s.buffer_size),
    byzantine_count: String(s.byzantine),
    aggregator: s.aggregator as string,
    ring_bits: String(s.ring_bits),
    epsilon_budget: String(detail.options.epsilon_budget ?? 0),
    record_epsilon_at_most: String(s.record_epsilon_at_most ?? ""),
    delta_at_most: String(s.delta_at_most ?? ""),
    target_accuracy: String(detail.options.target_accuracy ?? 0),
    propose_seconds: String((s.deadlines as { propose: number }).propose),
    drills: Boolean(s.drills),
  };
}

function toConfig(form: Form) {
  return {
    name: form.name.trim(),
    silos: form.silos.split(/[\s,]+/).filter(Boolean),
    rounds: form.rounds,
    fraction: form.fraction,
    alpha: form.alpha,
    buffer_size: form.buffer_size,
    byzantine_count: form.byzantine_count,
    ring_bits: form.ring_bits,
    drills: form.drills,
    record_epsilon_at_most: form.record_epsilon_at_most.trim() || null,
    delta_at_most: form.delta_at_most.trim() || null,
    aggregator: { name: form.aggregator },
    deadlines: { propose: form.propose_seconds },
    stop: { epsilon_budget: form.epsilon_budget, target_accuracy: form.target_accuracy },
  };
}
