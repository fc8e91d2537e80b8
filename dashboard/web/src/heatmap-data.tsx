// Which rounds a heat map shows: the latest, one column each, or the whole run with neighbours grouped.
import { useEffect, useState } from "preact/hooks";
import { type HeatMapData, get } from "./api";
import { count } from "./format";

const columnsIn = (width: number) => Math.max(10, Math.floor((width - 90) / 7));

// A map that is already there stays when asking again fails; the page's banner says why.
export function useHeatMap(path: string, width: number, version: number, whole: boolean): HeatMapData | Error | null {
  const [map, setMap] = useState<HeatMapData | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const columns = columnsIn(width);
  useEffect(() => {
    if (!width) return;
    const query = whole ? `columns=${columns}` : `columns=${columns}&last=${columns}`;
    const timer = setTimeout(() => get<HeatMapData>(`${path}?${query}`).then(setMap, setError), map ? 300 : 0);
    return () => clearTimeout(timer);
  }, [path, columns, version, whole, width > 0]);
  return map ?? error;
}

interface ChoiceProps {
  rounds: number;
  width: number;
  whole: boolean;
  choose: (whole: boolean) => void;
}

export function SpanChoice({ rounds, width, whole, choose }: ChoiceProps) {
  const columns = columnsIn(width);
  if (rounds <= columns) return null;
  return (
    <label class="check">
      <input type="checkbox" checked={whole} onChange={(event) => choose(event.currentTarget.checked)} /> all {count(rounds)} rounds
      instead of the latest {columns}
    </label>
  );
}
