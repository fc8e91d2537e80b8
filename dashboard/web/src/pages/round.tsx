// One finished round: who proposed, who sat in which buffer, what the rule made of it, where time and bytes went, what happened.
import { useEffect, useState } from "preact/hooks";
import { type Buffer, type RoundDetail, type RunEvent, type SiloInRound, type Suspicion, get } from "../api";
import type { Shared } from "../app";
import { THEOREM_FAILS, bytes, clock, count, decimal, epsilon, moment, percent, recordEpsilon, seconds, theoremFails, weight, words } from "../format";
import { EventLine } from "../events";
import { Card, Empty, Failure, Loading, Stat, Stats } from "../parts";
import { useRun } from "../run-data";
import { RunHead } from "../run-head";
import { Link } from "../router";
import { PHASES } from "../waterfall";

interface Found {
  detail: RoundDetail;
  events: RunEvent[];
  suspicion: Suspicion;
}

export function RoundPage({ name, number, session, server, report }: { name: string; number: number } & Shared) {
  const { data, error, load } = useRun(name, report);
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const path = `/runs/${name}/rounds/${number}`;
  // Silos report on a round after it has ended, and a further one gives the last round its next.
  const version = data ? (data.events.at(-1)?.position ?? 0) : 0;
  const fetchAll = () =>
    Promise.all([get<RoundDetail>(path), get<{ events: RunEvent[] }>(`${path}/events`), get<Suspicion>(`/runs/${name}/suspicion`)]).then(
      ([detail, events, suspicion]) => {
        setFound({ detail, events: events.events, suspicion });
        setProblem(null);
      },
      setProblem,
    );
  useEffect(() => {
    const timer = setTimeout(fetchAll, found?.detail.row.round === number ? 500 : 0);
    return () => clearTimeout(timer);
  }, [path, version]);
  if (error && !data) return <Failure error={error} again={load} />;
  if (!data) return <Loading />;
  return (
    <>
      <RunHead run={data.run} page="round" session={session} server={server} />
      {problem && found?.detail.row.round !== number ? (
        <Failure error={problem} again={fetchAll} />
      ) : found?.detail.row.round !== number ? (
        <Loading />
      ) : (
        <Round name={name} over={["finished", "stopped"].includes(data.run.state)} {...found} />
      )}
    </>
  );
}

function Round({ name, over, detail, events, suspicion }: { name: string; over: boolean } & Found) {
  const { row, buffers, silos } = detail;
  const trimmed = silos.length === 0 && row.roster_size > 0;
  const exports = `/runs/${name}/charts`;
  return (
    <>
      <nav class="neighbours" aria-label="Rounds">
        <Neighbour name={name} number={detail.previous} label="Previous round" mark="←" none="no earlier round" />
        <h2>
          Round {count(row.round)} <span class={row.outcome === "applied" ? "state ok" : "state warn"}>{row.outcome}</span>
        </h2>
        <Neighbour name={name} number={detail.following} label="Next round" mark="→" none={over ? "the last round" : "no later round yet"} />
      </nav>
      {row.reason && <p class="note">Skipped: {row.reason}.</p>}
      <Stats>
        <Stat label="Proposed" value={`${row.proposed} of ${row.roster_size}`} sub={`values of ${row.survivors} in the sums`} />
        <Stat label="Coordinates agreed on" value={count(row.consensus_size)} sub="|I|" />
        <Stat label="Sent up" value={bytes(row.bytes_up)} sub={`down ${bytes(row.bytes_down)}`} />
        <Stat label="Dense would be" value={bytes(row.dense_bytes)} sub="float32, up and down, who proposed" />
        <Stat label="Epsilon of a proposal" value={row.proposed ? epsilon(row.epsilon) : "–"} sub={row.epsilon_theorem2 != null && `Theorem 2: ${epsilon(row.epsilon_theorem2)}${theoremFails(row.epsilon, row.epsilon_theorem2) ? ` (${THEOREM_FAILS})` : ""}`} />
        <Stat label="Norm of the update" value={decimal(row.update_norm)} sub={`clipped ${percent(row.clip_rate, 2)} at ${decimal(row.clip_range)}`} />
        <Stat label="Accuracy" value={percent(row.accuracy)} sub={row.loss != null && `loss ${decimal(row.loss)}`} />
        <Stat label="Model version" value={count(row.model_version)} sub={`the rule expected ${row.tolerated} bad buffers at most`} />
      </Stats>
      {!trimmed && <BufferTable buffers={buffers} suspicion={suspicion} exportPath={`${exports}/buffers`} />}
      <div class="grid">
        {trimmed ? (
          <Card title="Buffers and silos of this round">
            <Empty title="No longer kept">The server keeps what each silo and buffer did for a limited time (retention.details_days). What was spent stays in the ledger.</Empty>
          </Card>
        ) : (
          <SiloTable silos={silos} buffers={buffers} exportPath={`${exports}/silos`} />
        )}
        <div class="stack">
          <Phases row={row} exportPath={`${exports}/phases`} />
          <Card title="Events of this round">
            {events.length === 0 ? (
              <Empty title="The server knows of none" />
            ) : (
              <ol class="events" tabIndex={0} aria-label="Events of this round">
                {events.map((event) => (
                  <EventLine key={event.position} event={event} />
                ))}
              </ol>
            )}
          </Card>
        </div>
      </div>
    </>
  );
}

interface NeighbourProps {
  name: string;
  number: number | null;
  label: string;
  mark: string;
  none: string; // said where there is no such round
}

function Neighbour({ name, number, label, mark, none }: NeighbourProps) {
  if (number == null) return <span class="note">{none}</span>;
  return (
    <Link to={`/runs/${name}/rounds/${number}`} class="button">
      {mark === "←" && <span aria-hidden="true">← </span>}
      {label} {count(number)}
      {mark === "→" && <span aria-hidden="true"> →</span>}
    </Link>
  );
}

function BufferTable({ buffers, suspicion, exportPath }: { buffers: Buffer[]; suspicion: Suspicion; exportPath: string }) {
  const known = new Set(suspicion.silos.filter((one) => one.stands_out).map((one) => one.silo));
  const note = `Suspected: more than twice as far from the update as the median buffer. ${suspicion.caution}.`;
  if (buffers.length === 0)
    return (
      <Card title="Buffers of this round" wide>
        <Empty title="No buffer was formed">The round ended before the silos had agreed on coordinates.</Empty>
      </Card>
    );
  return (
    <Card title="Buffers of this round" note={note} exportPath={exportPath} wide>
      <table class="cards">
        <thead>
          <tr>
            <th>Buffer</th>
            <th>Members</th>
            <th>Outcome</th>
            <th class="num">Survivors</th>
            <th class="num">Distance</th>
            <th class="num">Weight</th>
          </tr>
        </thead>
        <tbody>
          {buffers.map((buffer) => (
            <tr key={buffer.number}>
              <td class="main-cell strong">{buffer.number}</td>
              <td data-label="Members">
                <span>
                  {buffer.members.map((member, i) => (
                    <span key={member}>
                      {i > 0 && ", "}
                      {known.has(member) ? <b title="stands out over the run">{member} ⚑</b> : member}
                    </span>
                  ))}
                  {buffer.members.length === 0 && "nobody proposed"}
                </span>
              </td>
              <td data-label="Outcome">
                <span>
                  <span class={buffer.mark === "suspected" ? "severity alert" : buffer.mark === "discarded" ? "severity warning" : undefined}>
                    {buffer.mark === "suspected" ? "! " : buffer.mark === "discarded" ? "△ " : ""}
                    {buffer.mark}
                  </span>
                  {buffer.discarded && `: ${buffer.discarded}`}
                </span>
              </td>
              <td class="num" data-label="Survivors">
                {buffer.survivors} of {buffer.members.length}
              </td>
              <td class="num" data-label="Distance">
                {buffer.distance == null ? "–" : buffer.distance.toPrecision(3)}
              </td>
              <td class="num" data-label="Weight">
                {weight(buffer.weight)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  );
}

function SiloTable({ silos, buffers, exportPath }: { silos: SiloInRound[]; buffers: Buffer[]; exportPath: string }) {
  const seat = (name: string) => buffers.find((buffer) => buffer.members.includes(name))?.number;
  const told = silos.some((silo) => silo.record_none || silo.record_epsilon != null);
  return (
    <Card title="Silos of this round" exportPath={exportPath}>
      <table class="cards">
        <thead>
          <tr>
            <th>Silo</th>
            <th>Proposal</th>
            <th class="num">Buffer</th>
            <th class="num">Sent up · down</th>
            {told && <th class="num">Record epsilon</th>}
          </tr>
        </thead>
        <tbody>
          {silos.map((silo) => (
            <tr key={silo.silo}>
              <td class="main-cell strong">{silo.silo}</td>
              <td data-label="Proposal">{words(silo.status)}</td>
              <td class="num" data-label="Buffer">
                {seat(silo.silo) ?? "–"}
              </td>
              <td class="num" data-label="Sent up · down">
                {bytes(silo.bytes_up)} · {bytes(silo.bytes_down)}
              </td>
              {told && (
                <td class="num" data-label="Record epsilon">
                  {recordEpsilon(silo.record_epsilon, silo.record_none)}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  );
}

function Phases({ row, exportPath }: { row: RoundDetail["row"]; exportPath: string }) {
  const total = row.phase_seconds.reduce((a, b) => a + b, 0);
  return (
    <Card title="Phases of this round" exportPath={exportPath} note={`Began ${moment(row.started_at)}, ${clock(row.started_at)} here; ${seconds(total)} in all.`}>
      <ol class="phases">
        {row.phase_seconds.map((s, i) => (
          <li key={i}>
            <span>{PHASES[i]}</span>
            <span class="waterfall-bar" aria-hidden="true">
              <span class={`phase phase-${i}`} style={{ width: `${total > 0 ? (100 * s) / total : 0}%` }} />
            </span>
            <span class="waterfall-total">{seconds(s)}</span>
          </li>
        ))}
      </ol>
    </Card>
  );
}
