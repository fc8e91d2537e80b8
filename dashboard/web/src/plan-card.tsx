// What an admin reads before signing: the preflight's facts and conclusion, and what the run will send and promise.
import type { Plan, Preflight } from "./admin-api";
import { bytes, count, delta, epsilon } from "./format";
import { Card } from "./parts";

const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

interface VerdictProps {
  preflight: Preflight | null;
  refusal: string;
  apply: (settings: Record<string, unknown>) => void;
}

export function PreflightCard({ preflight, refusal, apply }: VerdictProps) {
  const problems = preflight?.facts.flatMap((fact) => fact.problems) ?? [];
  return (
    <Card title="Preflight">
      <div class="preflight" aria-live="polite">
        {refusal ? (
          <p class="conclusion bad">! {sentence(refusal)}</p>
        ) : !preflight ? (
          <p class="note">Give the run a name, silos and a model; the preflight then checks all settings together.</p>
        ) : (
          <p class={problems.length ? "conclusion bad" : "conclusion fine"}>
            {problems.length ? "!" : "✓"} {sentence(preflight.conclusion)}
          </p>
        )}
        {preflight && preflight.remedies.length > 0 && (
          <div class="row remedies">
            {preflight.remedies
              .filter(({ settings }) => !("silos" in settings))
              .map(({ settings, text }) => (
                <button key={text} type="button" onClick={() => apply(settings)}>
                  {sentence(text).slice(0, -1)}
                </button>
              ))}
          </div>
        )}
      </div>
      {preflight && (
        <dl class="facts">
          {preflight.facts.map((fact) => (
            <div key={fact.topic}>
              <dt>{fact.topic}</dt>
              <dd>
                {fact.text}
                {fact.problems.map((problem) => (
                  <span key={problem} class="fact-problem">
                    ! {problem}
                  </span>
                ))}
              </dd>
            </div>
          ))}
        </dl>
      )}
    </Card>
  );
}

export function PlanCard({ plan, rounds }: { plan: Plan | null; rounds: string }) {
  return (
    <Card title="Plan">
      {!plan ? (
        <p class="note">What the run will send, and what it will tell, is reckoned once the settings can be checked.</p>
      ) : (
        <>
          <Bytes plan={plan} rounds={rounds} />
          <h3>Epsilon of the coordinates</h3>
          {plan.coordinates ? (
            <>
              <p>
                <b>{epsilon(plan.coordinates.per_round)}</b> per round, <b>{epsilon(plan.coordinates.total)}</b> in total.{" "}
                {plan.coordinates.meaning} {plan.coordinates.remedy}
              </p>
              <p class="note">It covers {plan.coordinates.covers}.</p>
            </>
          ) : (
            <p class="note">It cannot be counted: every silo must propose between 1 and d coordinates.</p>
          )}
          <h3>Epsilon of training records</h3>
          <p>
            <b>{plan.records.epsilon_at_most == null ? "not asked for" : `${epsilon(plan.records.epsilon_at_most)} at most`}</b>
            {plan.records.delta_at_most != null && ` at delta ${delta(plan.records.delta_at_most)}`}. {plan.records.meaning}
          </p>
          <p class="note">Where a silo promises it, it covers {plan.records.covers}.</p>
        </>
      )}
    </Card>
  );
}

function Bytes({ plan, rounds }: { plan: Plan; rounds: string }) {
  const sent = plan.bytes;
  if (!sent) return <p class="note">Bytes cannot be counted: every silo must propose between 1 and d coordinates.</p>;
  const lines: [string, number, number][] = [
    ["up", sent.round_up, sent.total_up],
    ["down", sent.round_down, sent.total_down],
    ["together", sent.round_up + sent.round_down, sent.total_up + sent.total_down],
    ["if dense", sent.round_dense, sent.total_dense],
  ];
  return (
    <>
      <table class="plan">
        <caption class="spoken">Bytes of all silos together</caption>
        <thead>
          <tr>
            <th scope="col">All silos</th>
            <th scope="col" class="num">
              a round
            </th>
            <th scope="col" class="num">
              {count(Number(rounds))} rounds
            </th>
          </tr>
        </thead>
        <tbody>
          {lines.map(([label, round, total]) => (
            <tr key={label}>
              <th scope="row">{label}</th>
              <td class="num">{bytes(round)}</td>
              <td class="num">{bytes(total)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p>
        <b>{sentence(sent.comparison)}</b> Dense is float32 both ways. The model itself, {bytes(sent.once)}, is fetched once besides.
      </p>
    </>
  );
}
