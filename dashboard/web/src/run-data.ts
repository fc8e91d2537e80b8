// One run as the pages hold it: loaded once, kept current by the live stream, loaded again when the stream says so.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type Rounds, type Row, type Run, type RunDetail, type RunEvent, type ServerState, get } from "./api";
import type { Shared } from "./app";
import { useLive } from "./live";

const MOST_ROWS = 1500;
const MOST_EVENTS = 1000;

export interface RunData {
  detail: RunDetail;
  run: Run;
  rows: Row[];
  events: RunEvent[];
  total: number;
}

export function useRun(name: string, report: Shared["report"]) {
  const [data, setData] = useState<RunData | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [server, setServer] = useState<ServerState | null>(null);
  const [url, setUrl] = useState<string | null>(null);
  const detailAsked = useRef(0);

  const load = useCallback(async () => {
    try {
      const path = `/runs/${name}`;
      const [detail, rounds, events] = await Promise.all([
        get<RunDetail>(path),
        get<Rounds>(`${path}/rounds`),
        get<{ events: RunEvent[] }>(`${path}/events?limit=200`),
      ]);
      setData({ detail, run: detail.run, rows: rounds.rows, events: events.events, total: rounds.total });
      setUrl((known) => known ?? `/api/v1${path}/live?after=${rounds.last_event}`);
      setError(null);
    } catch (problem) {
      setError(problem as Error);
    }
  }, [name]);
  useEffect(() => {
    void load();
    return () => clearTimeout(detailAsked.current);
  }, [load]);

  // Phase, kept models and the budget's projection change with the rounds, but not every page needs them at once.
  const refreshDetail = () => {
    if (detailAsked.current) return;
    detailAsked.current = window.setTimeout(() => {
      detailAsked.current = 0;
      get<RunDetail>(`/runs/${name}`).then(
        (detail) => setData((known) => known && { ...known, detail, run: detail.run }),
        () => undefined,
      );
    }, 500);
  };
  const change = (update: (known: RunData) => RunData) => setData((known) => (known ? update(known) : known));
  const live = useLive(url, {
    round: (row: Row) => {
      change((known) => ({ ...known, rows: withRow(known.rows, row), total: known.total + (isNew(known.rows, row) ? 1 : 0) }));
      refreshDetail();
    },
    event: (event: RunEvent) =>
      change((known) => ({ ...known, events: [...known.events.filter((e) => e.position !== event.position), event].slice(-MOST_EVENTS) })),
    run: (run: Run) => change((known) => ({ ...known, run })),
    server: (state: ServerState) => {
      setServer(state);
      if (state.reachable) refreshDetail();
    },
    reset: () => void load(),
  });
  useEffect(() => report(live, server), [live, server]);
  useEffect(() => {
    if (data && data.rows.length > MOST_ROWS) void load();
  }, [data && data.rows.length > MOST_ROWS]);
  useEffect(() => {
    document.title = `${name} · FedREP`;
  }, [name]);
  return { data, error, load };
}

const isNew = (rows: Row[], row: Row) => !rows.some((known) => known.round === row.round);

function withRow(rows: Row[], row: Row): Row[] {
  const at = rows.findIndex((known) => known.round >= row.round);
  if (at < 0) return [...rows, row];
  return [...rows.slice(0, at), row, ...rows.slice(rows[at]!.round === row.round ? at + 1 : at)];
}
