// Name, state, tabs and the admin's buttons: the same above all pages of a run.
import { useState } from "preact/hooks";
import { type Run, call } from "./api";
import type { Shared } from "./app";
import { Orders } from "./orders";
import { Ask, RunState, WaitingFor } from "./parts";
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
}

export function RunHead({ run, page, session, server }: HeadProps) {
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
        <RunState run={run} />
        {run.drills && <span class="tag">drills allowed</span>}
        {run.state_reason && <span class="sub">{run.state_reason}</span>}
        {session.role === "admin" && (offered.length > 0 || session.may_create) && (
          <span class="row actions">
            {session.may_act &&
              offered.map((key) => (
                <button key={key} type="button" onClick={() => setAsked(ACTIONS[key]!)}>
                  {ACTIONS[key]!.verb}
                </button>
              ))}
            {offered.length > 0 && (
              <button type="button" onClick={() => setSigning(true)}>
                Roll back, amend
              </button>
            )}
            {session.may_create && (
              <Link to={`/new?from=${run.name}`} class="button">
                Clone
              </Link>
            )}
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
      {run.waiting.standing_still && (
        <p class="standing-still" role="status">
          <WaitingFor waiting={run.waiting} />
        </p>
      )}
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {session.role === "admin" && !session.may_act && <p class="note">{session.note}</p>}
      {signing && <Orders run={run.name} at={server?.address} session={session} done={() => setSigning(false)} />}
      {asked && <Ask title={`${asked.verb}: ${run.name}?`} {...asked} done={answer} />}
    </>
  );
}
