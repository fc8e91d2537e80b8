// One run: is it learning, what does it cost in bytes and privacy, where does the time go, which buffers stand out.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type RecordTotals, type Row, type RunDetail, type Suspicion, get } from "../api";
import type { Shared } from "../app";
import { type Across, AcrossChoice, axisOf, useAcross } from "../axis";
import { Chart, type Line } from "../chart";
import { Events } from "../events";
import { THEOREM_FAILS, bytes, bytesTick, count, decimal, epsilon, numberTick, percent, percentTick, recordEpsilon, span, theoremFails, words } from "../format";
import { BUFFERS, HeatMap } from "../heatmap";
import { SpanChoice, useHeatMap } from "../heatmap-data";
import { Card, Command, Empty, Failure, Loading, Stat, Stats, WaitingFor, useWidth } from "../parts";
import { RecordChart } from "../record-chart";
import { useRun } from "../run-data";
import { RunHead } from "../run-head";
import { SettingsCard } from "../settings-card";
import { Tags } from "../tags";
import { Waterfall } from "../waterfall";
import { Link } from "../router";

export function RunPage({ name, session, server, report }: { name: string } & Shared) {
  const { data, error, load } = useRun(name, report);
  const [across, choose] = useAcross();
  if (error && !data) return <Failure error={error} again={load} />;
  if (!data) return <Loading />;
  const { detail, run, rows, events, total } = data;
  const charts = `/runs/${name}/charts`;
  return (
    <>
      <RunHead run={run} page="run" session={session} server={server} />
      <Tags key={run.tags.join(" ")} run={run} mayAct={session.may_act} />
      <Figures detail={{ ...detail, run }} rows={rows} />
      {rows.length === 0 && (
        <Empty title={run.silos_present === 0 ? "No silo has joined yet" : "No round has ended yet"}>
          <p>
            On each silo's machine run <Command text="fedrep client --config client.toml" />. A round starts once{" "}
            {String(detail.settings.quorum)} of {run.silos_allowed} silos are here. <Link to={`/runs/${name}/silos`}>See the silos</Link>
          </p>
        </Empty>
      )}
      {rows.length > 0 && <AcrossChoice across={across} choose={choose} />}
      {rows.length > 0 && <Charts rows={rows} detail={{ ...detail, run }} charts={charts} name={name} across={across} />}
      {rows.length > 0 && (
        <div class="grid">
          <Waterfall rows={rows} rounds={`/runs/${name}/rounds`} exportPath={`${charts}/phases`} />
          <BufferMap name={name} rounds={total} exportPath={`${charts}/buffers`} />
        </div>
      )}
      <div class="grid">
        <SettingsCard detail={detail} />
        <Events name={name} events={events} exportPath={`${charts}/events`} />
      </div>
    </>
  );
}

function Figures({ detail, rows }: { detail: RunDetail; rows: Row[] }) {
  const { run, epsilon: cost, pace, traffic } = detail;
  const last = rows.at(-1);
  const open = run.state === "running" && detail.open_round > 0;
  const total = cost.total;
  const rate = pace.rounds_per_hour;
  return (
    <Stats>
      <Stat label="Accuracy" value={percent(run.accuracy)} sub={run.best_accuracy != null && `best ${percent(run.best_accuracy)}`} />
      <Stat label="Loss" value={decimal(run.loss)} />
      {Object.entries(run.metrics).map(([metric, value]) => (
        <Stat key={metric} label={metric} value={decimal(value)} />
      ))}
      <Stat
        label="Round"
        value={count(run.round)}
        sub={
          <>
            {`of ${count(run.rounds_planned)}, ${count(run.rounds_skipped)} skipped; ${open ? `${words(detail.phase)} in ${count(detail.open_round)} now` : "none is open"}`}
            {run.waiting.sentence && !run.waiting.standing_still && (
              <>
                {", "}
                <WaitingFor waiting={run.waiting} short />
              </>
            )}
          </>
        }
      />
      <Stat
        label="Time in rounds"
        value={span(pace.seconds)}
        sub={rate != null && `${rate >= 10 ? count(Math.round(rate)) : rate.toFixed(1)} rounds an hour${pace.seconds_left != null ? `, ${span(pace.seconds_left)} left` : ""}`}
      />
      <Stat label="Silos" value={`${run.silos_present} of ${run.silos_allowed}`} sub={last && (last.outcome === "skipped" ? "the last round was skipped" : `${last.survivors} in the last round`)} />
      <Stat
        label="Traffic, up and down"
        value={bytes(run.bytes_up + run.bytes_down)}
        sub={traffic.sentence && `in rounds ${bytes(traffic.sent)}, ${traffic.sentence}`}
      />
      <Stat
        label="Epsilon"
        value={rows.length ? epsilon(total) : "–"}
        sub={total == null && rows.length ? "no guarantee" : `most of any silo, in all its runs; ${cost.budget != null ? `budget ${epsilon(cost.budget)}` : "no budget"}`}
      />
      <Stat
        label="Record epsilon"
        value={rows.length ? recordEpsilon(run.records.epsilon, run.records.without > 0) : "–"}
        sub={recordsOfWhom(run.records)}
      />
    </Stats>
  );
}

function recordsOfWhom({ epsilon: most, reporting, without }: RecordTotals): string {
  if (without > 0) return `no guarantee at ${count(without)}${reporting > 0 ? `; most of ${count(reporting)} others: ${epsilon(most)}` : ""}`;
  return reporting > 0 ? `most of ${count(reporting)}` : "one training record";
}

const BAND: [number, number, string] = [2, 3, "silos' own, least to most"];

interface ChartsProps {
  rows: Row[];
  detail: RunDetail;
  charts: string;
  name: string;
  across: Across;
}

function Charts({ rows, detail, charts, name, across }: ChartsProps) {
  const axis = useMemo(() => axisOf(rows, across), [rows, across]);
  const lines = useMemo(() => allLines(rows), [rows]);
  const cost = detail.epsilon;
  const covers = `Epsilon covers ${cost.covers}.`;
  const none = detail.settings.alpha === 0 ? " With alpha = 0 there is no guarantee, hence no number." : "";
  const elsewhere = cost.total == null && !none ? "A silo has no guarantee in all its runs: another run over its data had alpha = 0. " : "";
  const fails = rows.some((row) => theoremFails(row.epsilon, row.epsilon_theorem2)) ? ` Theorem 2 is ${THEOREM_FAILS}.` : "";
  const large = cost.total != null && !cost.meaningful ? " A total this large promises very little." : "";
  const common = { ...axis, sync: `${name} ${across}` };
  const band = lines.accuracy.length > 1 ? BAND : undefined;
  const unreported = rows.length ? "Nobody has reported it: an evaluator does, and silos with report = \"all\"." : undefined;
  const lossBand = lines.loss.length > 1 ? BAND : undefined;
  const metrics = useMemo(() => [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))].sort(), [rows]);
  return (
    <div class="grid">
      <Chart
        {...common}
        title="Accuracy"
        lines={lines.accuracy}
        band={band}
        format={percent}
        tick={percentTick}
        exportPath={`${charts}/accuracy`}
        missing={unreported}
      />
      <Chart
        {...common}
        title="Loss"
        lines={lines.loss}
        band={lossBand}
        format={decimal}
        tick={numberTick}
        fromZero
        exportPath={`${charts}/loss`}
        missing={unreported}
      />
      {metrics.map((metric) => (
        <Chart
          {...common}
          key={metric}
          title={metric}
          lines={[{ label: "evaluator", values: rows.map((row) => row.metrics[metric] ?? null), tone: "s1", width: 2.2 }]}
          format={decimal}
          tick={numberTick}
          exportPath={`${charts}/metrics`}
        />
      ))}
      <Chart
        {...common}
        title="Bytes per round"
        lines={lines.bytes}
        format={bytes}
        tick={bytesTick}
        log
        exportPath={`${charts}/bytes`}
        note="All silos together, logarithmic. Dense is FedAvg with float32 vectors, the paper's formula (96&nbsp;+&nbsp;32/m)&nbsp;K bits per silo; both count up and down."
      />
      <Chart
        {...common}
        title="Bytes in total"
        lines={lines.total}
        format={bytes}
        tick={bytesTick}
        log
        exportPath={`${charts}/bytes`}
        note="All silos together, logarithmic; dense and the paper's formula for the silos that proposed."
      />
      <Chart
        {...common}
        title="Epsilon per round"
        lines={lines.epsilon}
        format={epsilon}
        tick={numberTick}
        fromZero
        exportPath={`${charts}/epsilon`}
        note={covers + none + fails}
      />
      <Chart
        {...common}
        title="Epsilon in total"
        lines={lines.epsilonSum}
        format={epsilon}
        tick={numberTick}
        fromZero
        exportPath={`${charts}/epsilon`}
        marks={cost.budget != null ? [{ at: cost.budget, label: `budget ${epsilon(cost.budget)}` }] : []}
        note={
          <>
            For a silo that proposed in every round of this run, which alone is counted here. {elsewhere}
            {cost.total != null && `The most of any silo, in all its runs: ${epsilon(cost.total)}. `}
            {cost.budget != null && cost.total != null && (
              <b>
                {cost.total >= cost.budget
                  ? "The budget is used up."
                  : cost.budget_ends_in_round != null && `At this cost the budget ends with round ${count(cost.budget_ends_in_round)}.`}
              </b>
            )}
            {cost.budget == null && "No budget is set."}
            {large}
            {fails}
          </>
        }
      />
      <Chart
        {...common}
        title="Norm of the update"
        lines={lines.norm}
        format={decimal}
        tick={numberTick}
        fromZero
        exportPath={`${charts}/health`}
        note="How far each round moved the model; a skipped round has none."
      />
      <RecordChart rows={rows} detail={detail} across={across} exportPath={`${charts}/records`} sync={common.sync} />
    </div>
  );
}

function allLines(rows: Row[]): Record<"accuracy" | "loss" | "bytes" | "total" | "epsilon" | "epsilonSum" | "norm", Line[]> {
  const of = (key: keyof Row) => rows.map((row) => row[key] as number | null);
  // What silos did not choose to report has no line and no place in the legend.
  const band = (kind: "accuracy" | "loss"): Line[] => {
    const own: Line[] = [{ label: "evaluator", values: of(kind), tone: "s1", width: 2.2 }];
    return rows.some((row) => row[`silo_${kind}_median`] != null) ? [...own, ...spread(kind)] : own;
  };
  const spread = (kind: "accuracy" | "loss"): Line[] => [
    { label: "silos' median", values: of(`silo_${kind}_median`), tone: "s3", dash: [5, 4] },
    { label: "most", values: of(`silo_${kind}_max`), tone: "s3", quiet: true },
    { label: "least", values: of(`silo_${kind}_min`), tone: "s3", quiet: true },
  ];
  return {
    accuracy: band("accuracy"),
    loss: band("loss"),
    bytes: [
      { label: "up", values: of("bytes_up"), tone: "s1" },
      { label: "down", values: of("bytes_down"), tone: "s3", dash: [6, 3] },
      { label: "paper's formula", values: of("paper_bytes"), tone: "s4", dash: [2, 3] },
      { label: "dense", values: of("dense_bytes"), tone: "s2", dash: [10, 4] },
    ],
    total: [
      { label: "up and down", values: of("bytes_total"), tone: "s1", width: 2.2 },
      { label: "up", values: of("bytes_up_total"), tone: "s1", dash: [1, 3] },
      { label: "down", values: of("bytes_down_total"), tone: "s3", dash: [6, 3] },
      { label: "paper's formula", values: of("paper_total"), tone: "s4", dash: [2, 3] },
      { label: "dense", values: of("dense_total"), tone: "s2", dash: [10, 4] },
    ],
    epsilon: [
      { label: "exact", values: of("epsilon"), tone: "s1", width: 2.2 },
      { label: "Theorem 2", values: of("epsilon_theorem2"), tone: "s2", dash: [6, 4] },
    ],
    norm: [{ label: "norm", values: of("update_norm"), tone: "s4", width: 2.2 }],
    epsilonSum: [
      { label: "exact", values: of("epsilon_sum"), tone: "s1", width: 2.2 },
      { label: "Theorem 2", values: of("epsilon_theorem2_sum"), tone: "s2", dash: [6, 4] },
    ],
  };
}

function BufferMap({ name, rounds, exportPath }: { name: string; rounds: number; exportPath: string }) {
  const [box, width] = useWidth();
  const [whole, setWhole] = useState(false);
  const map = useHeatMap(`/runs/${name}/buffers`, width, rounds, whole);
  const [told, setTold] = useState<Suspicion | null>(null);
  useEffect(() => {
    const timer = setTimeout(() => get<Suspicion>(`/runs/${name}/suspicion`).then(setTold, () => undefined), told ? 500 : 0);
    return () => clearTimeout(timer);
  }, [name, rounds]);
  return (
    <Card
      title="Buffers"
      exportPath={exportPath}
      note={
        <>
          Distance of each buffer's mean from the update. Suspected: more than twice as far as the median buffer of its round.{" "}
          {told && <b class="told">{told.sentence}</b>} <Link to={`/runs/${name}/silos`}>Who sat in them</Link>
        </>
      }
    >
      <div ref={box}>
        <SpanChoice rounds={rounds} width={width} whole={whole} choose={setWhole} />
        <HeatMap label="Buffers by round" map={map} marks={BUFFERS} unit="distance" rounds={`/runs/${name}/rounds`} />
      </div>
    </Card>
  );
}
