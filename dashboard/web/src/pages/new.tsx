// A new run from a form: the first one, or one like another. Preflight and plan answer while one types; both are the server's own.
import { useEffect, useState } from "preact/hooks";
import { type Run, type RunDetail, call, get } from "../api";
import type { Choices, Config, Created } from "../admin-api";
import type { Shared } from "../app";
import { count } from "../format";
import { useLive } from "../live";
import { ModelChoice, type Source } from "../model-choice";
import { Ask, Card, Command, Empty, Failure, Loading } from "../parts";
import { PlanCard, PreflightCard } from "../plan-card";
import { go, useAddress } from "../router";
import { FURTHER, type Field, type Form, RULES, configOf, formOf, freeName, remedied, withShortFraction } from "../run-form";
import { signedAs } from "../signer";

const NAME = "[a-z0-9]([a-z0-9._\\-]{0,61}[a-z0-9])?";

export function NewRun({ session, report }: Shared) {
  const [runs, setRuns] = useState<Run[] | null>(null);
  const [choices, setChoices] = useState<Choices | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const from = useAddress().searchParams.get("from") ?? "";
  const live = useLive("/api/v1/live", { server: (server) => report(live, server) });
  useEffect(() => report(live, null), [live]);
  useEffect(() => {
    document.title = "New run · FedREP";
    get<{ runs: Run[] }>("/runs").then((answer) => setRuns(answer.runs), setError);
    get<Choices>("/choices").then(setChoices, setError);
  }, []);
  if (error) return <Failure error={error} />;
  if (!runs || !choices) return <Loading />;
  return (
    <>
      <div class="page-head">
        <h1>{from ? `New run like ${from}` : runs.length ? "New run" : "The first run"}</h1>
      </div>
      {session.may_create ? (
        <Settings key={from} runs={runs} choices={choices} from={from} signer={signedAs(session)} />
      ) : (
        <Empty title="This dashboard cannot create runs">
          <p>{session.note || "It has no admin key to sign a run's rules with."}</p>
          <p>
            On the command line: <Command text="fedrep run create --config run.toml --model init.safetensors" />
          </p>
        </Empty>
      )}
    </>
  );
}

interface SettingsProps {
  runs: Run[];
  choices: Choices;
  from: string;
  signer: string;
}

// A clone has a name of its own and all else of its run; without one the newest run is the pattern, and for the first the defaults.
function Settings({ runs, choices, from, signer }: SettingsProps) {
  const [pattern, setPattern] = useState(from || (runs[0]?.name ?? ""));
  const [form, setForm] = useState<Form | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let late = false;
    const fill = (filled: Form) => late || setForm((known) => ({ ...filled, name: known?.name ?? (from ? freeName(from, runs.map((run) => run.name)) : "") }));
    if (!pattern) fill({ ...formOf(choices.defaults), silos: form?.silos ?? "" });
    else {
      Promise.all([get<Config>(`/runs/${pattern}/config`), get<RunDetail>(`/runs/${pattern}`)]).then(
        ([config, detail]) => fill(withShortFraction(formOf(config), detail)),
        (problem: Error) => late || setError(problem),
      );
    }
    return () => {
      late = true;
    };
  }, [pattern]);
  if (error) return <Failure error={error} />;
  if (!form) return <Loading />;
  return <Editor {...{ runs, choices, signer, pattern, setPattern, form, setForm }} />;
}

interface EditorProps extends Omit<SettingsProps, "from"> {
  pattern: string;
  setPattern: (name: string) => void;
  form: Form;
  setForm: (form: Form) => void;
}

function Editor({ runs, choices, signer, pattern, setPattern, form, setForm }: EditorProps) {
  const [source, setSource] = useState<Source | null>(null);
  const [model, setModel] = useState("");
  const [answer, setAnswer] = useState<Created | null>(null);
  const [refusal, setRefusal] = useState("");
  const [asked, setAsked] = useState(false);
  const [busy, setBusy] = useState(false);
  const send = async (dry: boolean) => call<Created>("POST", "/runs", { config: configOf(form), model: source, dry_run: dry });
  const judge = (found: Created) => {
    const known = found.preflight.facts.flatMap((fact) => fact.problems);
    setAnswer(found);
    setRefusal(known.length ? "" : found.problems.join("; ")); // what the server knows and the dashboard does not
  };
  const refuse = (error: Error) => {
    setAnswer(null);
    setRefusal(error.message);
  };
  const complete = Boolean(form.name.trim() && form.silos.trim() && source);
  useEffect(() => {
    setRefusal("");
    if (!complete) {
      setAnswer(null);
      return;
    }
    let late = false;
    setBusy(true);
    const timer = setTimeout(() => {
      send(true)
        .then((found) => late || judge(found), (error: Error) => late || refuse(error))
        .finally(() => late || setBusy(false));
    }, 400);
    return () => {
      late = true;
      clearTimeout(timer);
    };
  }, [form, source]);
  const create = (agreed: boolean) => {
    setAsked(false);
    if (!agreed) return;
    setBusy(true);
    send(false)
      .then((found) => (found.created ? go(`/runs/${form.name.trim()}`) : judge(found)), refuse)
      .finally(() => setBusy(false));
  };
  const set = (key: string) => (event: { currentTarget: { value: string } }) => setForm({ ...form, [key]: event.currentTarget.value });
  const field = ({ key, label, hint, text, optional }: Field) => (
    <label key={key}>
      {label}
      <input value={form[key]} onInput={set(key)} required={!optional} inputMode={text ? undefined : "decimal"} />
      {hint && <span class="hint">{hint}</span>}
    </label>
  );
  const silos = form.silos.split(/[\s,]+/).filter(Boolean);
  return (
    <form
      class="grid"
      onSubmit={(event) => {
        event.preventDefault();
        setAsked(true);
      }}
    >
      <Card title="Who and what">
        <div class="fields">
          <label>
            Name
            <input value={form.name} onInput={set("name")} required pattern={NAME} />
            <span class="hint">lower-case letters, digits, dashes</span>
          </label>
          {field({ key: "rounds", label: "Rounds", hint: "planned number" })}
          {runs.length > 0 && (
            <label class="whole">
              Settings of
              <select value={pattern} onChange={(event) => setPattern(event.currentTarget.value)}>
                {runs.map((run) => (
                  <option key={run.name}>{run.name}</option>
                ))}
                <option value="">no run: the defaults</option>
              </select>
              <span class="hint">everything but the name is filled in from there</span>
            </label>
          )}
          <ModelChoice
            runs={runs}
            preferred={pattern}
            largest={choices.largest_model}
            choose={(chosen, words) => {
              setSource(chosen);
              setModel(words);
            }}
          />
          <label class="whole">
            Silos allowed
            <textarea rows={Math.max(4, Math.min(11, silos.length + 1))} value={form.silos} onInput={set("silos")} required placeholder={"hospital-a\nhospital-b"} />
            <span class="hint">one name per line, as each silo was invited; {count(silos.length)} so far</span>
          </label>
        </div>
      </Card>
      <Card title="Rules">
        <div class="fields">
          <label>
            Aggregator
            <select value={form.aggregator} onChange={set("aggregator")}>
              {choices.aggregators.map((name) => (
                <option key={name} value={name}>
                  {name.replaceAll("_", " ")}
                </option>
              ))}
            </select>
          </label>
          {RULES.map(field)}
          <label class="check">
            <input
              type="checkbox"
              checked={form.drills === "yes"}
              onChange={(event) => setForm({ ...form, drills: event.currentTarget.checked ? "yes" : "" })}
            />{" "}
            silos may run attack drills
          </label>
        </div>
        <details class="further">
          <summary>Further settings</summary>
          <div class="fields">{FURTHER.map(field)}</div>
        </details>
      </Card>
      <PreflightCard preflight={answer?.preflight ?? null} refusal={refusal} apply={(settings) => setForm(remedied(form, settings))} />
      <PlanCard plan={answer?.plan ?? null} rounds={form.rounds!} />
      <div class="card verdict">
        <p class="note">{signer}</p>
        <button type="submit" class="primary" disabled={busy || !answer || answer.problems.length > 0 || Boolean(refusal)}>
          Create run
        </button>
      </div>
      {asked && (
        <Ask
          title={`Create ${form.name.trim()}?`}
          verb="Sign and create"
          explain={
            `${count(silos.length)} silos may join, and rounds start by themselves once a quorum has; ${count(Number(form.rounds))} are planned, from ${model}. ` +
            `The rules cannot be changed afterwards, except for the list of silos. ${signer}`
          }
          done={(reason) => create(reason !== null)}
        />
      )}
    </form>
  );
}
