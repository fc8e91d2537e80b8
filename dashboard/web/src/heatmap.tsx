// Rounds across, silos or buffers down. Every state has a shape of its own, so the map reads without colours.
import { useEffect, useRef, useState } from "preact/hooks";
import type { HeatMapData } from "./api";
import { weight, words } from "./format";
import { Failure, Loading, useWidth } from "./parts";
import { Link, go } from "./router";
import { colour, useThemeVersion } from "./theme";

type Paint = (ctx: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, strength: number) => void;

interface Mark {
  label: string;
  paint: Paint;
}

const fill =
  (tone: string, top = 0, bottom = 1): Paint =>
  (ctx, x, y, w, h) => {
    ctx.fillStyle = colour(tone);
    ctx.fillRect(x, y + h * top, w, h * (bottom - top));
  };

function cross(ctx: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, tone: string): void {
  const r = Math.min(w, h) * 0.28;
  const cx = x + w / 2;
  const cy = y + h / 2;
  ctx.strokeStyle = colour(tone);
  ctx.lineWidth = 1.6;
  ctx.beginPath();
  ctx.moveTo(cx - r, cy - r);
  ctx.lineTo(cx + r, cy + r);
  ctx.moveTo(cx + r, cy - r);
  ctx.lineTo(cx - r, cy + r);
  ctx.stroke();
}

export const ATTENDANCE: Record<string, Mark> = {
  on_time: { label: "on time", paint: fill("cell-ok") },
  abstained: { label: "abstained (quarter cell)", paint: fill("muted", 0.25) },
  late: { label: "late (half cell)", paint: fill("cell-warn", 0.5) },
  dropped: {
    label: "dropped (full cell, crossed)",
    paint: (ctx, x, y, w, h) => {
      fill("cell-bad")(ctx, x, y, w, h, 1);
      cross(ctx, x, y, w, h, "surface");
    },
  },
  sitting_out: { label: "sitting out (thin line)", paint: fill("muted", 0.42, 0.58) },
  excluded: {
    label: "excluded (frame)",
    paint: (ctx, x, y, w, h) => {
      ctx.strokeStyle = colour("cell-bad");
      ctx.lineWidth = 1.2;
      ctx.strokeRect(x + 0.8, y + 2, Math.max(w - 1.6, 1), h - 4);
    },
  },
  absent: {
    label: "absent (dot)",
    paint: (ctx, x, y, w, h) => {
      ctx.fillStyle = colour("muted");
      ctx.beginPath();
      ctx.arc(x + w / 2, y + h / 2, Math.min(1.8, w / 2), 0, 2 * Math.PI);
      ctx.fill();
    },
  },
};

export const BUFFERS: Record<string, Mark> = {
  used: {
    label: "used (stronger = further from the update)",
    paint: (ctx, x, y, w, h, strength) => {
      ctx.globalAlpha = 0.16 + 0.84 * strength;
      fill("cell-far")(ctx, x, y, w, h, 1);
      ctx.globalAlpha = 1;
    },
  },
  suspected: {
    label: "suspected (bar on top)",
    paint: (ctx, x, y, w, h, strength) => {
      BUFFERS.used!.paint(ctx, x, y, w, h, strength);
      fill("cell-bad", 0, 0.3)(ctx, x, y, w, h, 1);
    },
  },
  discarded: {
    label: "discarded (crossed, empty)",
    paint: (ctx, x, y, w, h) => {
      fill("line", 0, 1)(ctx, x, y, w, h, 1);
      cross(ctx, x, y, w, h, "ink");
    },
  },
};

interface HeatMapProps {
  label: string;
  map: HeatMapData | Error | null; // null until it has come
  marks: Record<string, Mark>;
  unit?: string;
  rounds: string; // address of the run's rounds
}

const ROW = 18;
const WIDEST = 16;

export function HeatMap({ map, ...rest }: HeatMapProps) {
  if (!map) return <Loading />;
  return map instanceof Error ? <Failure error={map} /> : <Cells map={map} {...rest} />;
}

function Cells({ label, map, marks, unit, rounds }: HeatMapProps & { map: HeatMapData }) {
  const [box, width] = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useThemeVersion();
  const [cell, setCell] = useState<[number, number] | null>(null);
  const columns = map.first_round.length;
  const cellWidth = columns ? Math.min(WIDEST, width / columns) : WIDEST;
  const height = map.rows.length * ROW;

  useEffect(() => {
    const element = canvas.current;
    if (!element || !width) return;
    const ratio = devicePixelRatio || 1;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    const ctx = element.getContext("2d")!;
    ctx.scale(ratio, ratio);
    const scale = strengths(map);
    const gap = cellWidth > 4 ? 1 : 0;
    map.cells.forEach((row, r) =>
      row.forEach((word, c) => {
        const mark = marks[word];
        if (mark) mark.paint(ctx, c * cellWidth, r * ROW + 1, cellWidth - gap, ROW - 2, scale(map.values[r]?.[c]));
      }),
    );
    if (cell) {
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2;
      ctx.strokeRect(cell[1] * cellWidth, cell[0] * ROW, Math.max(cellWidth, 3), ROW);
    }
  }, [map, width, theme, cell, height]);

  const point = (event: PointerEvent) => {
    const frame = canvas.current!.getBoundingClientRect();
    const c = Math.floor((event.clientX - frame.left) / cellWidth);
    const r = Math.floor((event.clientY - frame.top) / ROW);
    setCell(c >= 0 && c < columns && r >= 0 && r < map.rows.length ? [r, c] : null);
  };
  const move = (event: KeyboardEvent) => {
    const [r, c] = cell ?? [0, columns - 1];
    const next: Record<string, [number, number]> = {
      ArrowLeft: [r, c - 1],
      ArrowRight: [r, c + 1],
      ArrowUp: [r - 1, c],
      ArrowDown: [r + 1, c],
      Home: [r, 0],
      End: [r, columns - 1],
    };
    if (event.key === "Enter" && cell) go(`${rounds}/${roundOf(map, cell)}`);
    const to = next[event.key];
    if (!to) return;
    event.preventDefault();
    setCell([clamp(to[0], map.rows.length), clamp(to[1], columns)]);
  };
  return (
    <>
      <ul class="legend">
        {Object.entries(marks).map(([word, mark]) => (
          <li key={word}>
            <Sample mark={mark} theme={theme} /> {mark.label}
          </li>
        ))}
      </ul>
      <div class="heat">
        <div class="heat-rows" aria-hidden="true">
          {map.rows.map((name) => (
            <span key={name}>{name}</span>
          ))}
        </div>
        <div class="heat-box" ref={box}>
          <canvas
            ref={canvas}
            tabIndex={0}
            role="img"
            aria-label={`${label}: ${map.rows.length} rows, ${columns} columns of rounds. Arrow keys move from cell to cell, Enter opens the round.`}
            style={{ width: `${width}px`, height: `${height}px` }}
            onPointerMove={point}
            onClick={() => cell && go(`${rounds}/${roundOf(map, cell)}`)}
            onFocus={() => cell ?? setCell([0, columns - 1])}
            onKeyDown={move}
          />
          <div class="heat-axis" aria-hidden="true" style={{ maxWidth: `${Math.max(cellWidth * columns, 90)}px` }}>
            <span>round {map.first_round[0]}</span>
            <span>{map.last_round[columns - 1]}</span>
          </div>
        </div>
      </div>
      <p class="readout" aria-live="polite">
        {cell ? (
          <>
            {describe(map, cell, unit)} <Link to={`${rounds}/${roundOf(map, cell)}`}>Open round {roundOf(map, cell)}</Link>
          </>
        ) : (
          "Point at a cell, or focus the map and use the arrow keys."
        )}
      </p>
    </>
  );
}

function Sample({ mark, theme }: { mark: Mark; theme: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current!;
    const ratio = devicePixelRatio || 1;
    element.width = 14 * ratio;
    element.height = 14 * ratio;
    const ctx = element.getContext("2d")!;
    ctx.scale(ratio, ratio);
    mark.paint(ctx, 0, 0, 14, 14, 0.5);
  }, [theme]);
  return <canvas ref={canvas} class="sample" aria-hidden="true" />;
}

function describe(map: HeatMapData, [r, c]: [number, number], unit?: string): string {
  const first = map.first_round[c]!;
  const last = map.last_round[c]!;
  const where = first === last ? `round ${first}` : `rounds ${first} to ${last}, the worst of them`;
  const value = map.values[r]?.[c];
  const seat = map.details[r]?.[c];
  const parts = [
    words(map.cells[r]![c]! || "no part") + (seat?.why ? ` (${seat.why})` : ""),
    value != null && `${unit} ${value.toPrecision(3)}`,
    seat?.weight != null && `weight ${weight(seat.weight)}`,
    seat && (first === last ? "" : `in round ${seat.round} `) + `members ${seat.members.join(", ") || "none"}`,
  ];
  return `${map.rows[r]}, ${where}: ${parts.filter(Boolean).join(", ")}.`;
}

// Of a cell that stands for several rounds the one that it shows.
const roundOf = (map: HeatMapData, [r, c]: [number, number]): number => map.details[r]?.[c]?.round ?? map.last_round[c]!;

// Distances span decades, and only their order matters to the eye.
function strengths(map: HeatMapData): (value: number | null | undefined) => number {
  const known = map.values.flat().filter((v): v is number => v != null && v > 0);
  const low = Math.log(Math.min(...known));
  const high = Math.log(Math.max(...known));
  return (value) => (value == null || value <= 0 || !(high > low) ? 0.3 : (Math.log(value) - low) / (high - low));
}

const clamp = (i: number, size: number) => Math.max(0, Math.min(size - 1, i));
