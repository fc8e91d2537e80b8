// Lines over rounds: uPlot, with a legend that shows values at the cursor, dash patterns beside colours, and arrow keys.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { Card, Empty, useWidth } from "./parts";
import { colour, useThemeVersion } from "./theme";

export interface Line {
  label: string;
  values: (number | null | undefined)[];
  tone: string;
  dash?: number[];
  width?: number;
  quiet?: boolean; // drawn, but not in the legend: the edges of a band
}

interface ChartProps {
  title: string;
  xs: number[];
  lines: Line[];
  band?: [number, number, string]; // upper and lower line, and what lies between
  format: (value: number | null | undefined) => string;
  tick: (value: number | null | undefined) => string;
  log?: boolean;
  fromZero?: boolean;
  range?: [number, number];
  exportPath?: string;
  note?: preact.ComponentChildren;
  missing?: string; // what is said while there is nothing to draw
  sync?: string;
  xLabel?: string;
  xFormat?: (value: number) => string;
  time?: boolean; // xs are Unix seconds
  marks?: { at: number; label: string }[];
}

const HEIGHT = 182;
const MOST_DECADES = 2.5;

export function Chart(props: ChartProps) {
  const { title, xs, lines, format, exportPath, note } = props;
  const filled = xs.length > 0 && lines.some((line) => line.values.some((value) => value != null));
  return (
    <Card title={title} exportPath={exportPath} note={note}>
      {filled ? <Plot {...props} /> : <Empty title="Nothing to draw yet">{props.missing ?? "The first finished round will appear here."}</Empty>}
      {!filled && <span hidden>{format(null)}</span>}
    </Card>
  );
}

function Plot(props: ChartProps) {
  const { title, xs, lines, format } = props;
  const [box, width] = useWidth();
  const theme = useThemeVersion();
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const data = useMemo(() => [xs, ...lines.map((line) => line.values)] as uPlot.AlignedData, [xs, lines]);
  const shape = lines.map((line) => line.label).join("|");

  useEffect(() => {
    if (!width || !box.current) return;
    const chart = new uPlot(options(props, width, setAt), data, box.current);
    plot.current = chart;
    return () => {
      plot.current = null;
      chart.destroy();
    };
  }, [width > 0, theme, shape, props.log, props.time, props.sync]);
  useEffect(() => plot.current?.setData(data), [data]);
  useEffect(() => {
    if (width) plot.current?.setSize({ width, height: HEIGHT });
  }, [width]);

  const last = xs.length - 1;
  const shown = at != null && at <= last ? at : last;
  const move = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10, Home: -last, End: last }[event.key];
    if (step === undefined || !plot.current) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(last, shown + step));
    setAt(next);
    plot.current.setCursor({ left: plot.current.valToPos(xs[next]!, "x"), top: 20 }, false);
  };
  const where = props.xFormat ? props.xFormat(xs[shown]!) : `round ${xs[shown]!.toLocaleString("en-US")}`;
  return (
    <>
      <ul class="legend">
        {lines.map(
          (line, i) =>
            !line.quiet && (
              <li key={line.label}>
                <svg width="22" height="8" aria-hidden="true">
                  <line
                    x1="0"
                    y1="4"
                    x2="22"
                    y2="4"
                    class={`tone-${line.tone}`}
                    stroke-width={line.width ?? 2}
                    stroke-dasharray={line.dash?.join(" ")}
                  />
                </svg>
                {line.label} <b>{format(nearest(lines[i]!.values, shown, at != null))}</b>
              </li>
            ),
        )}
        {props.band && (
          <li>
            <span class="band-sample" aria-hidden="true" />
            {props.band[2]}{" "}
            <b>
              {format(nearest(lines[props.band[1]]!.values, shown, at != null))} to{" "}
              {format(nearest(lines[props.band[0]]!.values, shown, at != null))}
            </b>
          </li>
        )}
        <li class="where">{at == null ? `latest: ${where}` : where}</li>
      </ul>
      <div
        ref={box}
        class="plot"
        tabIndex={0}
        role="img"
        aria-label={`${title}, ${xs.length} points. ${lines
          .filter((line) => !line.quiet)
          .map((line) => `${line.label}: ${format(nearest(line.values, last, false))}`)
          .join(", ")}. Arrow keys move along the rounds.`}
        onKeyDown={move}
        onBlur={() => setAt(null)}
      />
      <div class="spoken" aria-live="polite">
        {at != null && document.activeElement === box.current
          ? `${where}: ${lines.filter((l) => !l.quiet).map((l) => `${l.label} ${format(l.values[shown])}`).join(", ")}`
          : ""}
      </div>
    </>
  );
}

// Without a cursor the legend shows the latest known value; with one, what is there, or nothing.
function nearest(values: Line["values"], from: number, exact: boolean): number | null | undefined {
  if (exact) return values[from];
  for (let i = from; i >= 0; i -= 1) if (values[i] != null) return values[i];
  return null;
}

function options(props: ChartProps, width: number, setAt: (at: number | null) => void): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: colour("muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { show: false },
  };
  const whole = (u: uPlot, splits: number[]) => props.time ? splits.map((v) => timeTick(v, splits)) :
    splits.map((v) => (props.xFormat ? props.xFormat(v) : Number.isInteger(v) ? v.toLocaleString("en-US") : (void u, "")));
  return {
    width,
    height: HEIGHT,
    padding: [10, 22, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: props.time ?? false },
      y: props.log
        ? { distr: 3 }
        : { range: (_u, low, high) => yRange(props, low, high) },
    },
    axes: [
      { ...axis, size: 22, gap: 4, values: whole, space: 60 },
      {
        ...axis,
        size: 58,
        gap: 6,
        space: 34,
        values: (_u, splits) => splits.map((v) => (v == null ? "" : props.tick(v))),
        ...(props.log ? { filter: roundOnes, grid: { ...axis.grid, filter: roundOnes } } : {}),
      },
    ],
    series: [
      {},
      ...props.lines.map((line) => ({
        stroke: colour(line.tone),
        width: line.quiet ? 0 : (line.width ?? 2),
        dash: line.dash,
        spanGaps: true,
        points: { show: props.xs.length < 2 && !line.quiet },
      })),
    ],
    bands: props.band && [{ series: [props.band[0] + 1, props.band[1] + 1], fill: colour("band") }],
    cursor: {
      sync: props.sync ? { key: props.sync } : undefined,
      points: { size: 6 },
      y: false,
      drag: { x: true, y: false },
    },
    hooks: {
      setCursor: [(u) => setAt(u.cursor.left != null && u.cursor.left >= 0 ? (u.cursor.idx ?? null) : null)],
      draw: [(u) => drawMarks(u, props)],
    },
  } as uPlot.Options;
}

// The hour, with the day where it changes and the second where ticks are closer than a minute.
function timeTick(at: number, splits: number[]): string {
  const when = new Date(at * 1000);
  const step = splits.length > 1 ? splits[1]! - splits[0]! : 60;
  if (step >= 86400) return when.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const hour = when.toLocaleTimeString("en-GB", step < 60 ? {} : { hour: "2-digit", minute: "2-digit" });
  return when.getHours() === 0 && when.getMinutes() === 0 ? when.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : hour;
}

// On a logarithmic axis only 1, 2 and 5 times a power of ten carry a line and a number; over many decades the powers alone.
function roundOnes(_u: uPlot, splits: number[]): (number | null)[] {
  const leading = (v: number) => Math.round(v / 10 ** Math.floor(Math.log10(v) + 1e-9));
  const decades = Math.log10(splits.at(-1)! / splits[0]!);
  const shown = decades > MOST_DECADES ? [1] : [1, 2, 5];
  return splits.map((v) => (v > 0 && shown.includes(leading(v)) ? v : null));
}

function yRange(props: ChartProps, low: number | null, high: number | null): [number, number] {
  if (props.range) return props.range;
  if (low == null || high == null) return [0, 1];
  const bottom = props.fromZero ? 0 : low;
  const pad = (high - bottom || Math.abs(high) || 1) * 0.08;
  return [props.fromZero ? 0 : bottom - pad, high + pad];
}

// Horizontal reference lines, such as a budget, labelled on the canvas itself.
function drawMarks(u: uPlot, props: ChartProps): void {
  const ratio = devicePixelRatio;
  for (const mark of props.marks ?? []) {
    const y = u.valToPos(mark.at, "y", true);
    if (y < u.bbox.top || y > u.bbox.top + u.bbox.height) continue;
    u.ctx.save();
    u.ctx.strokeStyle = colour("bad");
    u.ctx.fillStyle = colour("bad");
    u.ctx.lineWidth = ratio;
    u.ctx.setLineDash([2 * ratio, 3 * ratio]);
    u.ctx.beginPath();
    u.ctx.moveTo(u.bbox.left, y);
    u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
    u.ctx.stroke();
    u.ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    u.ctx.textAlign = "right";
    u.ctx.fillText(mark.label, u.bbox.left + u.bbox.width - 4 * ratio, y - 4 * ratio);
    u.ctx.restore();
  }
}
