// Two or more runs on the same axes, by round, by what they sent or by time, and the settings in which they differ.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Comparison, type Row, type Run, type ServerState, get } from "../api";
import type { Shared } from "../app";
import { endOf } from "../axis";
import { Chart, type Line } from "../chart";
import { bytes, bytesTick, decimal, elapsed, epsilon, numberTick, percent, percentTick, recordEpsilon } from "../format";
import { useLive } from "../live";
import { Card, Empty, Failure, State } from "../parts";
import { go } from "../router";

const TONES = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];
const DASHES = [undefined, [7, 4], [2, 3], [10, 3, 2, 3], [4, 2], [12, 5], [1, 2], [6, 2, 2, 2]];
const MOST = 8;
const AXES = { round: "rounds", bytes: "bytes sent in total", time: "time since the first round" };
type Axis = keyof typeof AXES;

export function Compare({ address, report }: { address: URL } & Shared) {
  const chosen = address.searchParams.getAll("run").slice(0, MOST);
  const asked = address.searchParams.get("by") ?? "";
  const by: Axis = asked in AXES ? (asked as Axis) : "round";
  const [runs, setRuns] = useState<Run[]>([]);
  const [data, setData] = useState<Comparison | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [server, setServer] = useState<ServerState | null>(null);
  const progress = runs.filter((run) => chosen.includes(run.name)).map((run) => run.round).join();
  const live = useLive("/api/v1/live", { runs: (answer) => setRuns(answer.runs), server: setServer });
  useEffect(() => report(live, server), [live, server]);
  useEffect(() => {
    document.title = "Compare · FedREP";
    get<{ runs: Run[] }>("/runs").then((answer) => setRuns(answer.runs), setError);
  }, []);
  const query = chosen.map((name) => `run=${name}`).join("&");
  useEffect(() => {
    if (!query) {
      setData(null);
      return;
    }
    get<Comparison>(`/compare?${query}`).then((answer) => {
      setData(answer);
      setError(null);
    }, setError);
  }, [query, progress]);
  const show = (names: string[], axis: string) => {
    const parts = names.map((name) => `run=${name}`);
    go(`/compare?${[...parts, ...(axis === "round" ? [] : [`by=${axis}`])].join("&")}`, true);
  };
  const toggle = (name: string) => show(chosen.includes(name) ? chosen.filter((n) => n !== name) : [...chosen, name], by);
  return (
    <>
      <div class="page-head">
        <h1>Compare</h1>
      </div>
      <fieldset class="picker">
        <legend>Runs to compare</legend>
        {runs.map((run) => (
          <label key={run.name} class="check">
            <input
              type="checkbox"
              checked={chosen.includes(run.name)}
              disabled={!chosen.includes(run.name) && chosen.length >= MOST}
              onChange={() => toggle(run.name)}
            />{" "}
            {run.name} <State state={run.state} />
          </label>
        ))}
        {runs.length === 0 && <span class="note">No run has been created yet.</span>}
      </fieldset>
      <fieldset class="picker">
        <legend>Across</legend>
        {Object.entries(AXES).map(([axis, label]) => (
          <label key={axis} class="check">
            <input type="radio" name="axis" checked={by === axis} onChange={() => show(chosen, axis)} />{" "}
            {label}
          </label>
        ))}
      </fieldset>
      {error && <Failure error={error} />}
      {!data || data.runs.length === 0 ? (
        <Empty title={chosen.length ? "Loading the runs" : "Choose two or more runs above"} />
      ) : (
        <Overlays data={data} by={by} query={query} />
      )}
    </>
  );
}

function Overlays({ data, by, query }: { data: Comparison; by: Axis; query: string }) {
  const across = (row: Row, rows: Row[]) => (by === "round" ? row.round : by === "bytes" ? row.bytes_total : endOf(row) - rows[0]!.started_at);
  const xs = useMemo(
    () => [...new Set(data.runs.flatMap((item) => item.rows.map((row) => across(row, item.rows))))].sort((a, b) => a - b),
    [data, by],
  );
  const overlay = (value: (row: Row) => number | null | undefined): Line[] =>
    data.runs.map((item, i) => {
      const known = new Map(item.rows.map((row) => [across(row, item.rows), value(row)]));
      return { label: item.run.name, values: xs.map((x) => known.get(x)), tone: TONES[i]!, dash: DASHES[i] };
    });
  const lines = useMemo(
    () => ({
      accuracy: overlay((row) => row.accuracy),
      loss: overlay((row) => row.loss),
      bytes: overlay((row) => row.bytes_total),
      epsilon: overlay((row) => row.epsilon_sum),
    }),
    [data, xs],
  );
  const metrics = useMemo(() => [...new Set(data.runs.flatMap((item) => item.rows.flatMap((row) => Object.keys(row.metrics))))].sort(), [data]);
  const common = { xs, sync: `compare ${by}`, xFormat: by === "bytes" ? bytesTick : by === "time" ? elapsed : undefined };
  return (
    <>
      <div class="grid">
        <Chart {...common} title="Accuracy by the evaluator" lines={lines.accuracy} format={percent} tick={percentTick} exportPath={`/compare/accuracy?${query}`} />
        <Chart {...common} title="Loss by the evaluator" lines={lines.loss} format={decimal} tick={numberTick} fromZero exportPath={`/compare/loss?${query}`} />
        {metrics.map((metric) => (
          <Chart
            {...common}
            key={metric}
            title={`${metric} by the evaluator`}
            lines={overlay((row) => row.metrics[metric])}
            format={decimal}
            tick={numberTick}
          />
        ))}
        <Chart {...common} title="Bytes in total" lines={lines.bytes} format={bytes} tick={bytesTick} fromZero exportPath={`/compare/bytes_total?${query}`} />
        <Chart
          {...common}
          title="Epsilon in total"
          lines={lines.epsilon}
          format={epsilon}
          tick={numberTick}
          fromZero
          exportPath={`/compare/epsilon_sum?${query}`}
          note="Exact, for a silo that proposed in every round. A run without a line has alpha = 0 and no guarantee."
        />
      </div>
      <Differences data={data} />
    </>
  );
}

function Differences({ data }: { data: Comparison }) {
  const keys = Object.keys(data.runs[0]!.settings).filter(
    (key) => new Set(data.runs.map((item) => JSON.stringify(item.settings[key]))).size > 1,
  );
  const figures: [string, (run: Run) => string][] = [
    ["accuracy now", (run) => percent(run.accuracy)],
    ["best accuracy", (run) => percent(run.best_accuracy)],
    ["rounds applied, skipped", (run) => `${run.rounds_applied}, ${run.rounds_skipped}`],
    ["traffic, up and down", (run) => bytes(run.bytes_up + run.bytes_down)],
    ["epsilon in total", (run) => epsilon(run.epsilon_total)],
    ["record epsilon, most of any silo", (run) => recordEpsilon(run.records.epsilon, run.records.without > 0)],
  ];
  const alone = data.runs.length < 2 && "Choose another run above to see where it differs.";
  return (
    <Card title="Side by side" wide note={alone || (keys.length === 0 && "The runs have the same settings.")}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Figures and settings by run">
        <table class="side-by-side">
          <thead>
            <tr>
              <th>
                <span class="spoken">Figure or setting</span>
              </th>
              {data.runs.map((item) => (
                <th key={item.run.name}>{item.run.name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {figures.map(([label, value]) => (
              <tr key={label}>
                <th scope="row">{label}</th>
                {data.runs.map((item) => (
                  <td key={item.run.name}>{value(item.run)}</td>
                ))}
              </tr>
            ))}
            {keys.map((key) => (
              <tr key={key}>
                <th scope="row">{key.replaceAll("_", " ")}</th>
                {data.runs.map((item) => (
                  <td key={item.run.name}>{plain(item.settings[key])}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

const plain = (value: unknown): string => value == null ? "not asked for" : (typeof value === "object" ? JSON.stringify(value) : String(value).replaceAll("_", " "));
