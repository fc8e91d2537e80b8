// All runs at a glance: state, accuracy now, traffic, epsilon against budget, alerts.
import { useEffect, useState } from "preact/hooks";
import { type Run, type ServerState, get } from "../api";
import type { Shared } from "../app";
import { bytes, count, day, decimal, epsilon, percent, recordEpsilon } from "../format";
import { useLive } from "../live";
import { Command, Empty, Failure, Loading, Meter, RunState, WaitingFor } from "../parts";
import { Link } from "../router";
import { TagList } from "../tags";

export function Overview({ session, report }: Shared) {
  const [runs, setRuns] = useState<Run[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [server, setServer] = useState<ServerState | null>(null);
  const [wanted, setWanted] = useState("");
  const load = () => {
    setError(null);
    get<{ runs: Run[] }>("/runs").then((answer) => setRuns(answer.runs), setError);
  };
  useEffect(load, []);
  const live = useLive("/api/v1/live", {
    runs: (data) => {
      setRuns(data.runs);
      setError(null);
    },
    server: setServer,
  });
  useEffect(() => report(live, server), [live, server]);
  useEffect(() => {
    document.title = "Runs · FedREP";
  }, []);
  if (error && !runs) return <Failure error={error} again={load} />;
  if (!runs) return <Loading />;
  const alerts = runs.filter((run) => run.alerts > 0);
  const shown = runs.filter((run) => matches(run, wanted));
  return (
    <>
      <div class="page-head">
        <h1>Runs</h1>
        {session.may_create && (
          <Link to="/new" class="button primary">
            New run
          </Link>
        )}
      </div>
      {runs.length === 0 ? (
        <Empty title="No run has been created yet">
          {session.may_create ? (
            <p>
              <Link to="/new">Create the first run</Link> from a model file, here in the browser.
            </p>
          ) : (
            <p>
              Create one on the command line: <Command text="fedrep run create --config run.toml --model init.safetensors" />
            </p>
          )}
        </Empty>
      ) : (
        <>
        <label class="search">
          <span class="spoken">Search runs</span>
          <input
            type="search"
            placeholder="Search: name, state, rule, tag"
            value={wanted}
            onInput={(event) => setWanted(event.currentTarget.value)}
          />
          <span class="note" role="status">
            {wanted.trim() && `${shown.length} of ${runs.length} runs`}
          </span>
        </label>
        {shown.length === 0 && <Empty title={`No run matches “${wanted.trim()}”`} />}
        <div class="card flush" hidden={shown.length === 0}>
          <table class="runs cards">
            <thead>
              <tr>
                <th>Run</th>
                <th>State</th>
                <th>Rounds</th>
                <th class="num">Accuracy</th>
                <th class="num">Loss</th>
                <th class="num">Sent up · down</th>
                <th>Epsilon</th>
                <th class="num">Silos</th>
                <th>Alerts</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((run) => (
                <RunLine key={run.name} run={run} find={setWanted} />
              ))}
            </tbody>
          </table>
        </div>
        </>
      )}
      {alerts.length > 0 && (
        <section aria-labelledby="alerts">
          <h2 id="alerts">Latest alerts</h2>
          <ul class="alerts">
            {alerts.map((run) => (
              <li key={run.name}>
                <span class="severity alert">! alert</span> <Link to={`/runs/${run.name}`}>{run.name}</Link> {run.last_alert}
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

// Every word must be found somewhere in what the line says.
function matches(run: Run, wanted: string): boolean {
  const said = [run.name, run.state, run.state_reason, run.aggregator.replaceAll("_", " "), ...run.tags].join(" ").toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every((word) => said.includes(word));
}

function RunLine({ run, find }: { run: Run; find: (tag: string) => void }) {
  const budget = run.epsilon_budget;
  return (
    <tr>
      <td class="main-cell">
        <Link to={`/runs/${run.name}`} class="strong">
          {run.name}
        </Link>
        <span class="sub">
          {run.aggregator.replaceAll("_", " ")} · since {day(run.created_at)}
        </span>
        <TagList tags={run.tags} find={find} />
      </td>
      <td data-label="State">
        <span>
          <RunState run={run} />
          {run.state_reason && <span class="sub">{run.state_reason}</span>}
          {run.waiting.standing_still && (
            <span class="sub">
              <WaitingFor waiting={run.waiting} short />
            </span>
          )}
        </span>
      </td>
      <td data-label="Rounds">
        <span>
          {count(run.round)} of {count(run.rounds_planned)}
          <Meter value={run.round} max={run.rounds_planned} label={`round ${run.round} of ${run.rounds_planned}`} />
          {run.rounds_skipped > 0 && <span class="sub">{count(run.rounds_skipped)} skipped</span>}
        </span>
      </td>
      <td class="num" data-label="Accuracy">
        <span>
          <b>{percent(run.accuracy)}</b>
          {run.best_accuracy != null && <span class="sub">best {percent(run.best_accuracy)}</span>}
        </span>
      </td>
      <td class="num" data-label="Loss">
        {decimal(run.loss)}
      </td>
      <td class="num" data-label="Sent up · down">
        {bytes(run.bytes_up)} · {bytes(run.bytes_down)}
      </td>
      <td data-label="Epsilon">
        <span>
          {run.round === 0 ? "–" : epsilon(run.epsilon_total)}
          {budget != null && ` of ${epsilon(budget)}`}
          {budget != null && run.epsilon_total != null && (
            <Meter
              value={run.epsilon_total}
              max={budget}
              limit
              label={`epsilon ${epsilon(run.epsilon_total)} of a budget of ${epsilon(budget)}`}
            />
          )}
          {run.round > 0 && run.epsilon_total == null && <span class="sub">no guarantee</span>}
          {run.records.reporting + run.records.without > 0 && (
            <span class="sub">records {recordEpsilon(run.records.epsilon, run.records.without > 0)}</span>
          )}
        </span>
      </td>
      <td class="num" data-label="Silos">
        {run.silos_present} of {run.silos_allowed}
      </td>
      <td data-label="Alerts">{run.alerts > 0 ? <span class="severity alert">! {run.alerts}</span> : "none"}</td>
    </tr>
  );
}
