// Name, state, tabs and the admin's buttons: the same above both pages of a run.
import { useState } from "preact/hooks";
import { type Run, call } from "./api";
import type { Shared } from "./app";
import { Ask, State } from "./parts";
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

export function RunHead({ run, page, session }: { run: Run; page: "run" | "silos" } & Pick<Shared, "session">) {
  const [asked, setAsked] = useState<Action | null>(null);
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
        {session.may_act && offered.length > 0 && (
          <span class="row actions">
            {offered.map((key) => (
              <button key={key} type="button" onClick={() => setAsked(ACTIONS[key]!)}>
                {ACTIONS[key]!.verb}
              </button>
            ))}
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
      {asked && <Ask title={`${asked.verb}: ${run.name}?`} {...asked} done={answer} />}
    </>
  );
}
