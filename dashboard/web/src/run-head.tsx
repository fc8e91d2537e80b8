// Name, state, tabs and the admin's buttons: the same above all pages of a run.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Model, type Run, call } from "./api";
import type { Shared } from "./app";
import { Ask, Copied, State } from "./parts";
import { Link } from "./router";

interface Action {
  path: string;
  verb: string;
  explain: string;
  withReason: boolean;
}

const ACTIONS: Record<string, Action> = {
  pause: { path: "pause", verb: "Pause", explain: "The open round ends, and no other starts.", withReason: true },
  resume: { path: "resume", verb: "Resume", explain: "Rounds go on with the silos that are present.", withReason: false },
  stop: { path: "stop", verb: "Stop for good", explain: "The run ends and cannot be resumed. Models are kept.", withReason: true },
};

interface HeadProps extends Pick<Shared, "session" | "server"> {
  run: Run;
  page: "run" | "silos" | "round";
  models?: Model[];
}

export function RunHead({ run, page, session, server, models }: HeadProps) {
  const [asked, setAsked] = useState<Action | null>(null);
  const [signing, setSigning] = useState(false);
  const [problem, setProblem] = useState("");
  const offered = run.state === "paused" ? ["resume", "stop"] : ["running", "waiting"].includes(run.state) ? ["pause", "stop"] : [];
  const answer = (reason: string | null) => {
    const action = asked!;
    setAsked(null);
    if (reason === null) return;
    setProblem("");
    const body = action.withReason ? { reason } : undefined;
    call("POST", `/runs/${run.name}/${action.path}`, body).catch((error: Error) => setProblem(error.message));
  };
  return (
    <>
      <div class="page-head">
        <h1>{run.name}</h1>
        <State state={run.state} />
        {run.drills && <span class="tag">drills allowed</span>}
        {run.state_reason && <span class="sub">{run.state_reason}</span>}
        {session.role === "admin" && offered.length > 0 && (
          <span class="row actions">
            {session.may_act &&
              offered.map((key) => (
                <button key={key} type="button" onClick={() => setAsked(ACTIONS[key]!)}>
                  {ACTIONS[key]!.verb}
                </button>
              ))}
            <button type="button" onClick={() => setSigning(true)}>
              Roll back, amend
            </button>
          </span>
        )}
      </div>
      <nav class="tabs" aria-label={`Pages of ${run.name}`}>
        <Link to={`/runs/${run.name}`} current={page === "run"}>
          Run
        </Link>
        <Link to={`/runs/${run.name}/silos`} current={page === "silos"}>
          Silos
        </Link>
        <Link to={`/compare?run=${run.name}`}>Compare</Link>
      </nav>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {session.role === "admin" && !session.may_act && <p class="note">{session.note}</p>}
      {signing && <Signed run={run.name} at={server?.address} models={models} done={() => setSigning(false)} />}
      {asked && <Ask title={`${asked.verb}: ${run.name}?`} {...asked} done={answer} />}
    </>
  );
}

interface SignedProps {
  run: string;
  at?: string;
  models?: Model[];
  done: () => void;
}

// What silos take on an admin's signature alone: this dashboard holds no admin's key to sign with, and should not.
function Signed({ run, at, models = [], done }: SignedProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const version = (models.find((model) => model.best) ?? models[0])?.version ?? "VERSION";
  const server = at ? ` --server ${at}` : "";
  return (
    <dialog ref={dialog} class="wide" onCancel={done} aria-labelledby="signed-title">
      <h2 id="signed-title">Roll back or amend {run}</h2>
      <p>
        Silos follow these two on an admin's signature only. Run the command where your <code>credentials</code> folder lies; the server must be
        reachable from there under the address that is named.
      </p>
      <h3>Go on from an older model</h3>
      <p class="note">
        The open round is skipped.{" "}
        {models.length > 0 ? `Kept versions: ${models.map((model) => model.version).join(", ")}.` : "The run's page lists the kept versions."}
      </p>
      <Copied what="rollback" text={`fedrep run rollback ${run} --to ${version}${server}`} />
      <h3>Change the list of silos</h3>
      <p class="note">From the next epoch on. Both options may be repeated, and one may be left out.</p>
      <Copied what="amend" text={`fedrep run amend ${run} --add SILO --remove SILO${server}`} />
      <div class="row end">
        <button type="button" class="primary" onClick={done}>
          Close
        </button>
      </div>
    </dialog>
  );
}
