// What lies across: rounds, or the time at which they ended. The choice is kept for every page of this browser.
import { useState } from "preact/hooks";
import type { Row } from "./api";
import { clock, moment } from "./format";

export type Across = "round" | "time";
const KEPT = "fedrep-across";

export function useAcross(): [Across, (across: Across) => void] {
  const [across, set] = useState<Across>(() => (localStorage.getItem(KEPT) === "time" ? "time" : "round"));
  const choose = (chosen: Across) => {
    localStorage.setItem(KEPT, chosen);
    set(chosen);
  };
  return [across, choose];
}

export const endOf = (row: Row): number => row.started_at + row.phase_seconds.reduce((a, b) => a + b, 0);

export function AcrossChoice({ across, choose }: { across: Across; choose: (across: Across) => void }) {
  return (
    <fieldset class="picker across">
      <legend class="spoken">Across the charts</legend>
      {(["round", "time"] as const).map((axis) => (
        <label key={axis} class="check">
          <input type="radio" name="across" checked={across === axis} onChange={() => choose(axis)} />{" "}
          {axis === "round" ? "by round" : "by time"}
        </label>
      ))}
    </fieldset>
  );
}

// For a chart: positions, and how they read on the axis and in the legend.
export function axisOf(rows: Row[], across: Across) {
  if (across === "round") return { xs: rows.map((row) => row.round) };
  const label = new Map(rows.map((row) => [endOf(row), `round ${row.round.toLocaleString("en-US")}, ${moment(endOf(row))}`]));
  return { xs: rows.map(endOf), time: true, xFormat: (x: number) => label.get(x) ?? clock(x) };
}
