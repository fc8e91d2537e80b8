// Where the time of each round went: its phases one after the other, on one common scale.
import type { Row } from "./api";
import { seconds } from "./format";
import { Card, Empty, useWidth } from "./parts";
import { Link } from "./router";

export const PHASES = ["propose", "submit", "confirm", "reveal", "closing"];
const SHOWN = 12;

export function Waterfall({ rows, rounds, exportPath }: { rows: Row[]; rounds: string; exportPath: string }) {
  const [box, width] = useWidth();
  const recent = rows.slice(-SHOWN).reverse();
  const total = (row: Row) => row.phase_seconds.reduce((a, b) => a + b, 0);
  const longest = Math.max(...recent.map(total), 1e-9);
  return (
    <Card title="Phases of the latest rounds" exportPath={exportPath}>
      <div ref={box}>
        {recent.length === 0 ? (
          <Empty title="No round has ended yet" />
        ) : (
          <>
            <ul class="legend">
              {PHASES.slice(0, Math.max(...recent.map((row) => row.phase_seconds.length))).map((phase, i) => (
                <li key={phase}>
                  <span class={`phase phase-${i} sample`} aria-hidden="true" />
                  {i + 1} {phase}
                </li>
              ))}
            </ul>
            <ol class="waterfall">
              {recent.map((row) => (
                <li key={row.round} title={describe(row)}>
                  <span class="waterfall-round">
                    <Link to={`${rounds}/${row.round}`}>{row.round}</Link>
                    {row.outcome === "skipped" && <em title={row.reason}> skipped</em>}
                  </span>
                  <span class="waterfall-bar" role="img" aria-label={describe(row)}>
                    {row.phase_seconds.map((s, i) => {
                      const share = s / longest;
                      return (
                        <span key={i} class={`phase phase-${i}`} style={{ width: `${100 * share}%` }}>
                          {share * (width - 130) > 64 ? `${i + 1} · ${seconds(s)}` : share * (width - 130) > 13 ? i + 1 : ""}
                        </span>
                      );
                    })}
                  </span>
                  <span class="waterfall-total">{seconds(total(row))}</span>
                </li>
              ))}
            </ol>
          </>
        )}
      </div>
    </Card>
  );
}

function describe(row: Row): string {
  const parts = row.phase_seconds.map((s, i) => `${PHASES[i]} ${seconds(s)}`);
  return `round ${row.round}, ${row.outcome}: ${parts.join(", ")}`;
}
