// What training has cost each silo's records, as the silos say: a line each, and never a sum.
import { useMemo } from "preact/hooks";
import type { Row, RunDetail } from "./api";
import { type Across, axisOf } from "./axis";
import { Chart, type Line } from "./chart";
import { count, delta, epsilon, numberTick } from "./format";
import { Card, Empty } from "./parts";

const MOST_LINES = 8;
const DASHES = [undefined, [6, 3], [2, 3], [10, 4], [1, 3], [8, 3, 2, 3], [4, 2], [12, 3]];

interface RecordProps {
  rows: Row[];
  detail: RunDetail;
  across: Across;
  exportPath: string;
  sync: string;
}

export function RecordChart({ rows, detail, across, exportPath, sync }: RecordProps) {
  const { records, run } = detail;
  const { lines, band } = useMemo(() => recordLines(rows), [rows]);
  const axis = useMemo(() => axisOf(rows, across), [rows, across]);
  const silent = run.silos_allowed - run.records.reporting - run.records.without;
  const said = [
    run.records.reporting > 0 && `${silos(run.records.reporting)} report it${run.records.delta != null ? `, at delta ${delta(run.records.delta)} at most` : ""}`,
    run.records.without > 0 && `none at ${silos(run.records.without)}`,
    silent > 0 && `not reported by ${silos(silent)}`,
  ];
  const note = (
    <>
      As each silo says, over everything trained on its data. It covers {records.covers}. It is another statement than the epsilon of the
      coordinates, and is not added to it. <b>{sentence(said.filter(Boolean).join("; "))}.</b>
      {band && ` The ${MOST_LINES} largest are drawn one by one.`}
    </>
  );
  if (lines.length === 0)
    return (
      <Card title="Record epsilon" exportPath={exportPath} note={note}>
        <Empty title="No silo reports a record epsilon">A silo trains with one if its settings have [privacy].</Empty>
      </Card>
    );
  return (
    <Chart
      title="Record epsilon"
      {...axis}
      lines={lines}
      band={band}
      format={epsilon}
      tick={numberTick}
      fromZero
      sync={sync}
      exportPath={exportPath}
      marks={records.epsilon_at_most != null ? [{ at: records.epsilon_at_most, label: `the run allows ${epsilon(records.epsilon_at_most)}` }] : []}
      note={note}
    />
  );
}

const silos = (n: number) => `${count(n)} silo${n === 1 ? "" : "s"}`;
const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

function recordLines(rows: Row[]): { lines: Line[]; band?: [number, number, string] } {
  const latest = new Map<string, number>();
  for (const row of rows) for (const [silo, value] of Object.entries(row.records)) latest.set(silo, value);
  const names = [...latest.keys()].sort((a, b) => latest.get(b)! - latest.get(a)! || a.localeCompare(b));
  const drawn = names.slice(0, MOST_LINES);
  const lines: Line[] = drawn.map((name, i) => ({
    label: name,
    values: rows.map((row) => row.records[name] ?? null),
    tone: `s${i + 1}`,
    dash: DASHES[i],
  }));
  if (names.length <= MOST_LINES) return { lines };
  const edge = (pick: (...values: number[]) => number) =>
    rows.map((row) => (Object.keys(row.records).length ? pick(...Object.values(row.records)) : null));
  lines.push({ label: "most", values: edge(Math.max), tone: "s3", quiet: true }, { label: "least", values: edge(Math.min), tone: "s3", quiet: true });
  return { lines, band: [lines.length - 2, lines.length - 1, "all silos, least to most"] };
}
