// Numbers with units, for people. A missing figure is a dash, never a zero.

const NONE = "–";

export function bytes(n: number | null | undefined): string {
  if (n == null) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let i = 0;
  let value = n;
  while (Math.abs(value) >= 999.5 && i < units.length - 1) {
    value /= 1000;
    i += 1;
  }
  return `${i === 0 ? Math.round(value) : value.toPrecision(3)} ${units[i]}`;
}

export const percent = (x: number | null | undefined, digits = 1): string =>
  x == null ? NONE : `${(100 * x).toFixed(digits)} %`;

export const count = (n: number | null | undefined): string => (n == null ? NONE : n.toLocaleString("en-US"));

export function decimal(x: number | null | undefined, digits = 3): string {
  if (x == null) return NONE;
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6)) return x.toExponential(2);
  return x.toFixed(digits);
}

// Ticks of an axis: as short as the unit allows.
export const bytesTick = (n: number | null | undefined): string => bytes(n).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");

export const percentTick = (x: number | null | undefined): string => (x == null ? NONE : `${Number((100 * x).toFixed(1))} %`);

export const numberTick = (x: number | null | undefined): string =>
  x == null ? NONE : Number(x.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 });

// Rounded up: a privacy loss shown too small is a false promise.
export function epsilon(x: number | null | undefined): string {
  if (x == null) return "none";
  const digits = x < 10 ? 2 : x < 1000 ? 1 : 0;
  const near = Number(x.toFixed(digits));
  return (near < x ? near + 10 ** -digits : near || 0).toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

// The paper's bound is no bound there, and must not be read as one; `fedrep epsilon` says the same.
export const theoremFails = (exact: number | null, bound: number | null): boolean => exact != null && bound != null && exact > bound;
export const THEOREM_FAILS = "too small: the theorem fails for k = 1 and this alpha";

// What one silo, or the silos of a run together, say about their training records. None comes first: no
// number of the others stands in for a silo without guarantee. Silence is not "none".
export const recordEpsilon = (known: number | null, none: boolean): string =>
  none ? "none" : known != null ? epsilon(known) : "not reported";

export const delta = (x: number | null | undefined): string => (x == null ? NONE : x < 1e-3 ? x.toExponential() : String(x));

// The time that is left: 9:18, or 1:02:03.
export function countdown(s: number): string {
  const whole = Math.max(0, Math.floor(s));
  const two = (n: number) => String(n).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes}:${two(whole % 60)}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}

export function seconds(s: number | null | undefined): string {
  if (s == null) return NONE;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 100) return `${s.toFixed(1)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${(s / 3600).toFixed(1)} h`;
}

// A span of time as people say it: 45 s, 12 min, 3 h 05 min, 2 days 4 h.
export function span(s: number | null | undefined): string {
  if (s == null) return NONE;
  if (s < 90) return `${Math.round(s)} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 90) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  const hours = Math.round(s / 3600);
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

// On an axis of time since a beginning: 1:40 are minutes and seconds, 2:05 h hours and minutes.
export const elapsed = (s: number): string =>
  s < 3600 ? `${Math.floor(s / 60)}:${pad(s % 60)}` : `${Math.floor(s / 3600)}:${pad((s % 3600) / 60)} h`;
const pad = (n: number): string => String(Math.floor(n)).padStart(2, "0");

export const clock = (at: number): string => new Date(at * 1000).toLocaleTimeString("en-GB");

export const moment = (at: number | null | undefined): string =>
  at == null ? NONE : `${new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;

export const day = (at: number | null | undefined): string =>
  at == null ? NONE : new Date(at * 1000).toISOString().slice(0, 10);

export function ago(at: number | null | undefined): string {
  if (at == null) return "never";
  const s = Date.now() / 1000 - at;
  if (s < 5) return "now";
  if (s < 60) return `${Math.floor(s)} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}

export const weight = (w: number | null | undefined): string => (w == null ? NONE : w !== 0 && w < 0.001 ? w.toExponential(1) : w.toFixed(3));

// Never rounded down: a probability shown too small is a false accusation.
export const chance = (p: number): string => (p >= 0.1 ? "no" : p < 1e-9 ? "under 1 in 10⁹" : `under 1 in ${count(leading(1 / p))}`);

const leading = (n: number): number => Math.floor(n / 10 ** Math.floor(Math.log10(n))) * 10 ** Math.floor(Math.log10(n));

export const words = (text: string): string => text.replaceAll("_", " ");
