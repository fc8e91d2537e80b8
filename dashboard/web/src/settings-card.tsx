// The rules of the run, in the paper's words and symbols, and the models that are kept.
import type { RunDetail } from "./api";
import { bytes, count, day, delta, epsilon, percent, words } from "./format";
import { Card } from "./parts";

const NAMES: [string, string][] = [
  ["aggregator", "Aggregator"],
  ["aggregator_settings", "Aggregator's settings"],
  ["byzantine", "Byzantine silos at most (f)"],
  ["colluders", "Colluding silos at most (c)"],
  ["buffer_size", "Buffer size (s)"],
  ["reshuffle_every", "New buffers every"],
  ["min_survivors", "Survivors to open a buffer"],
  ["quorum", "Quorum"],
  ["parameters", "Parameters (d)"],
  ["coordinates", "Coordinates (K)"],
  ["alpha", "Obfuscation (alpha)"],
  ["ring_bits", "Ring (B)"],
  ["value_bits", "Value (q)"],
  ["downlink_bits", "Downlink"],
  ["deadlines", "Deadlines"],
  ["record_epsilon_at_most", "Record epsilon at most"],
  ["delta_at_most", "Record delta at most"],
];

export function SettingsCard({ detail }: { detail: RunDetail }) {
  const { settings, models, run } = detail;
  return (
    <Card title="Settings" note={`Signed by ${detail.signed_by || "nobody"} on ${day(run.created_at)}.`}>
      <dl class="pairs">
        {NAMES.map(([key, label]) => (
          <div key={key}>
            <dt>{label}</dt>
            <dd>{shown(key, settings)}</dd>
          </div>
        ))}
      </dl>
      {models.length > 0 && (
        <>
          <h3>Kept models</h3>
          <ul class="models">
            {models.map((model) => (
              <li key={model.version}>
                <a href={`/api/v1/runs/${run.name}/models/${model.version}`} download>
                  version {count(model.version)}
                </a>{" "}
                {bytes(model.size)}
                {model.accuracy != null && `, ${percent(model.accuracy)}`}
                {model.best && <span class="tag">best</span>}
              </li>
            ))}
          </ul>
        </>
      )}
    </Card>
  );
}

const plain = (value: unknown): string => (typeof value === "string" ? value : Array.isArray(value) ? value.map(plain).join(", ") : JSON.stringify(value));

function shown(key: string, settings: Record<string, unknown>): string {
  const value = settings[key];
  if (value == null) return "not asked for";
  if (key === "delta_at_most") return delta(Number(value));
  if (key === "record_epsilon_at_most") return epsilon(Number(value));
  if (key === "deadlines") {
    return Object.entries(value as Record<string, number>)
      .map(([phase, s]) => `${phase} ${s} s`)
      .join(", ");
  }
  if (key === "coordinates") {
    const share = Number(value) / Number(settings.parameters);
    return `${count(Number(value))} (${percent(share, 2)} of d)`;
  }
  if (key === "reshuffle_every") return value === 1 ? "round" : `${value} rounds`;
  if (key.endsWith("_bits")) return `${value} bits`;
  if (typeof value === "number") return count(value);
  if (typeof value === "object") {
    const pairs = Object.entries(value as object).map(([name, inner]) => `${name}: ${plain(inner)}`);
    return pairs.join(", ") || "defaults";
  }
  return words(String(value));
}
