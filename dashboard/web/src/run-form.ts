// A run's settings as the form holds them, all of them, and as they are sent.
import type { RunDetail } from "./api";
import type { Config } from "./admin-api";

export type Form = Record<string, string> & { name: string; silos: string; aggregator: string };

export interface Field {
  key: string;
  label: string;
  hint: string;
  text?: boolean;
  optional?: boolean;
}

const NESTED: Record<string, "deadlines" | "stop"> = {
  propose: "deadlines",
  submit: "deadlines",
  confirm: "deadlines",
  reveal: "deadlines",
  target_accuracy: "stop",
  epsilon_budget: "stop",
};

export const RULES: Field[] = [
  { key: "byzantine_count", label: "Byzantine silos at most (f)", hint: "silos that may send anything" },
  { key: "buffer_size", label: "Buffer size (s)", hint: "silos whose sum is opened together" },
  { key: "ring_bits", label: "Ring (B)", hint: "8, 16 or 32 bits" },
  { key: "fraction", label: "Share of coordinates (K/d)", hint: "sent per round over all silos" },
  { key: "alpha", label: "Obfuscation (alpha)", hint: "share of random coordinates; 0 gives no guarantee" },
  { key: "epsilon_budget", label: "Stop at epsilon", hint: "0 means never" },
  { key: "target_accuracy", label: "Stop at accuracy", hint: "from 0 to 1; 0 means never" },
  { key: "record_epsilon_at_most", label: "Record epsilon at most", hint: "promised by each silo; empty: none", optional: true },
  { key: "delta_at_most", label: "Record delta at most", hint: "of that promise, 1e-5 for example", optional: true },
  { key: "propose", label: "Time to train and propose, s", hint: "per round" },
];

export const FURTHER: Field[] = [
  { key: "quorum", label: "Quorum", hint: "silos that a round needs; empty: the least that works", optional: true },
  { key: "colluders", label: "Colluding silos at most (c)", hint: "that may help a curious server; empty: by the buffer size", optional: true },
  { key: "min_survivors", label: "Survivors to open a buffer", hint: "empty: by the buffer size", optional: true },
  { key: "reshuffle_every", label: "New buffers every", hint: "rounds of an epoch" },
  { key: "downlink_bits", label: "Downlink", hint: "8, 16 or 32 bits" },
  { key: "initial_range", label: "First range (R)", hint: "of values in the ring" },
  { key: "smallest_range", label: "Smallest range", hint: "" },
  { key: "largest_range", label: "Largest range", hint: "" },
  { key: "submit", label: "Time to submit, s", hint: "per round" },
  { key: "confirm", label: "Time to confirm, s", hint: "per round" },
  { key: "reveal", label: "Time to reveal, s", hint: "per round" },
  { key: "evaluation_interval", label: "Evaluate every", hint: "rounds" },
  { key: "keep_models", label: "Models kept", hint: "empty: as many as the server keeps", optional: true },
  { key: "best", label: "Best by", hint: "a figure of the evaluator, -loss for example; empty: accuracy", text: true, optional: true },
  { key: "aggregator_settings", label: "Aggregator's settings", hint: "JSON, {} for its defaults", text: true },
  { key: "pre", label: "Steps before the rule", hint: 'JSON, ["nnm"] for example', text: true },
];

const shown = (value: unknown): string => (value == null ? "" : String(value));

export function formOf(config: Config): Form {
  const form: Form = {
    name: config.name,
    silos: config.silos.join("\n"),
    rounds: shown(config.rounds),
    drills: config.drills ? "yes" : "",
    aggregator: config.aggregator.name,
    aggregator_settings: JSON.stringify(config.aggregator.settings),
    pre: JSON.stringify(config.aggregator.pre),
  };
  for (const { key } of [...RULES, ...FURTHER]) {
    if (key in form) continue;
    const group = NESTED[key];
    form[key] = shown(group ? config[group][key] : config[key]);
  }
  return form;
}

// K/d of an existing run with as few digits as still give its K.
export function withShortFraction(form: Form, { settings }: RunDetail): Form {
  const [K, d] = [Number(settings.coordinates), Number(settings.parameters)];
  for (let digits = 1; digits < 17; digits += 1) {
    const share = Number((K / d).toPrecision(digits));
    if (Math.abs(share * d - K) < 0.4) return { ...form, fraction: String(share) };
  }
  return form;
}

// Throws a sentence where a setting is not what it has to be before it can be sent at all.
export function configOf(form: Form): unknown {
  const config: Record<string, unknown> = {
    name: form.name.trim(),
    silos: form.silos.split(/[\s,]+/).filter(Boolean),
    rounds: form.rounds,
    drills: form.drills === "yes",
    aggregator: {
      name: form.aggregator,
      settings: json(form.aggregator_settings!, "Aggregator's settings"),
      pre: json(form.pre!, "Steps before the rule"),
    },
    deadlines: {},
    stop: {},
  };
  for (const { key, optional, text } of [...RULES, ...FURTHER]) {
    if (key === "aggregator_settings" || key === "pre") continue;
    const value = form[key]!.trim();
    const group = NESTED[key];
    if (group) (config[group] as Record<string, string>)[key] = value;
    else config[key] = optional && !text ? value || null : value;
  }
  return config;
}

function json(text: string, label: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${label}: this is not JSON. Write {} or [] for none.`);
  }
}

// A remedy of the preflight; names of silos only people know, so that a number of them changes nothing here.
export function remedied(form: Form, settings: Record<string, unknown>): Form {
  const changed = { ...form };
  for (const [key, value] of Object.entries(settings)) if (key !== "silos" && key in form) changed[key] = shown(value);
  return changed;
}

export function freeName(name: string, taken: string[]): string {
  const stem = name.replace(/-\d+$/, "");
  for (let number = 2; ; number += 1) if (!taken.includes(`${stem}-${number}`)) return `${stem}-${number}`;
}
