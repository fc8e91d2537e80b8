// Who was there: round by silo, and each silo's state. Never anything of a single silo's values.
import { useEffect, useState } from "preact/hooks";
import { type RunEvent, type Silo, type Standing, type Suspicion, call, get } from "../api";
import type { Shared } from "../app";
import { ago, bytes, chance, clock, day, delta, epsilon, moment, recordEpsilon } from "../format";
import { ATTENDANCE, HeatMap } from "../heatmap";
import { SpanChoice, useHeatMap } from "../heatmap-data";
import { Card, Command, Empty, Failure, Loading, Meter, State, useWidth } from "../parts";
import { useRun } from "../run-data";
import { RunHead } from "../run-head";
import { SiloQuestion, keptOut } from "../silo-question";

const SOON_SECONDS = 14 * 86400;
const OVER = ["finished", "stopped"]; // no further roster, so nobody to keep out of it

export function SilosPage({ name, session, server, report }: { name: string } & Shared) {
  const { data, error, load } = useRun(name, report);
  const [silos, setSilos] = useState<Silo[] | null>(null);
  const [suspicion, setSuspicion] = useState<Suspicion | null>(null);
  const [problem, setProblem] = useState<Error | null>(null);
  const [box, width] = useWidth();
  const version = data ? (data.events.at(-1)?.position ?? 0) : 0;
  const [whole, setWhole] = useState(false);
  const map = useHeatMap(`/runs/${name}/attendance`, width, data?.total ?? 0, whole);
  const refresh = () => get<{ silos: Silo[] }>(`/runs/${name}/silos`).then((answer) => setSilos(answer.silos), setProblem);
  useEffect(() => {
    const ask = () => {
      void refresh();
      get<Suspicion>(`/runs/${name}/suspicion`).then(setSuspicion, () => undefined);
    };
    const timer = setTimeout(ask, silos ? 500 : 0);
    return () => clearTimeout(timer);
  }, [name, version]);
  if (error && !data) return <Failure error={error} again={load} />;
  return (
    <div ref={box}>
      {!data ? (
        <Loading />
      ) : (
        <>
          <RunHead run={data.run} page="silos" session={session} server={server} />
          {data.rows.length === 0 ? (
            <Empty title={silos?.some((silo) => silo.state === "present") ? "No round has ended yet" : "No silo has joined yet"}>
              <p>
                Invite a silo with <Command text="fedrep silo invite NAME" />; on its machine run{" "}
                <Command text="fedrep enroll TOKEN" />, then <Command text="fedrep client --config client.toml" />.
              </p>
            </Empty>
          ) : (
            <Card title="Attendance" exportPath={`/runs/${name}/charts/silos`} wide>
              <SpanChoice rounds={data.total} width={width} whole={whole} choose={setWhole} />
              <HeatMap label="Attendance by round" map={map} marks={ATTENDANCE} rounds={`/runs/${name}/rounds`} />
            </Card>
          )}
          {suspicion && suspicion.silos.length > 0 && <Suspected name={name} told={suspicion} />}
          {!silos && problem && <Failure error={problem} again={refresh} />}
          {silos && <SiloTable name={name} silos={silos} events={data.events} mayAct={session.may_act && !OVER.includes(data.run.state)} refresh={refresh} />}
        </>
      )}
    </div>
  );
}

// The tally, and whether seats that change explain it. The bars show counts, the last column what they mean.
function Suspected({ name, told }: { name: string; told: Suspicion }) {
  return (
    <Card title="Who sat in suspected buffers" exportPath={`/runs/${name}/charts/suspicion`} note={`${told.caution}.`} wide>
      <p class={told.silos.some((one) => one.stands_out) ? "told strong" : "told"}>{told.sentence}</p>
      <div class="scroll" tabIndex={0} role="region" aria-label="Tally by silo">
        <table class="tally">
          <thead>
            <tr>
              <th>Silo</th>
              <th>Suspected of its judged buffers</th>
              <th class="num">Of all suspected ones</th>
              <th class="num">Likelihood ratio</th>
              <th>By seats alone</th>
            </tr>
          </thead>
          <tbody>
            {told.silos.map((one) => (
              <tr key={one.silo}>
                <th scope="row">
                  {one.stands_out ? <b class="severity alert">! {one.silo}</b> : one.silo}
                </th>
                <td>
                  <span class="tally-bar">
                    <span>
                      {one.suspected} of {one.judged}
                    </span>
                    <Meter value={one.suspected} max={one.judged} limit={one.stands_out} label={`${one.suspected} of ${one.judged}`} />
                  </span>
                </td>
                <td class="num">
                  {one.suspected} of {told.suspected}
                </td>
                <td class="num">{ratio(one)}</td>
                <td>{one.stands_out ? `stands out: ${chance(one.chance)}` : "explained"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

const ratio = (one: Standing): string =>
  Math.abs(one.ratio) < 3 ? (10 ** one.ratio).toPrecision(2) : `10${superscript(Math.trunc(one.ratio))}`;
const superscript = (n: number): string => [...String(n)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)])).join("");

interface TableProps {
  name: string;
  silos: Silo[];
  events: RunEvent[];
  mayAct: boolean;
  refresh: () => void;
}

function SiloTable({ name, silos, events, mayAct, refresh }: TableProps) {
  const latest = new Map(events.filter((event) => event.silo).map((event) => [event.silo, event]));
  const [asked, setAsked] = useState<Silo | null>(null);
  const [problem, setProblem] = useState("");
  const act = (silo: Silo, path: string, body?: unknown) =>
    call("POST", `/runs/${name}/silos/${silo.name}/${path}`, body).then(refresh, (error: Error) => setProblem(error.message));
  return (
    <div class="card flush">
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <table class="cards">
        <caption class="spoken">Silos allowed in {name}</caption>
        <thead>
          <tr>
            <th>Silo</th>
            <th>State</th>
            <th>Last seen</th>
            <th>Version</th>
            <th class="num">Sent up · down</th>
            <th class="num">Epsilon</th>
            <th class="num">Record epsilon</th>
            <th>Certificate until</th>
            <th class="num">Strikes</th>
            <th>Notes, last event</th>
            {mayAct && <th>Action</th>}
          </tr>
        </thead>
        <tbody>
          {silos.map((silo) => (
            <tr key={silo.name}>
              <td class="main-cell strong name">{silo.name}</td>
              <td data-label="State">
                <State state={silo.state} />
              </td>
              <td data-label="Last seen" title={moment(silo.last_seen)}>
                {ago(silo.last_seen)}
              </td>
              <td data-label="Version">{silo.software_version || "–"}</td>
              <td class="num" data-label="Sent up · down">
                {bytes(silo.bytes_up)} · {bytes(silo.bytes_down)}
              </td>
              <td class="num" data-label="Epsilon">
                {epsilon(silo.epsilon_total)}
                {silo.epsilon_budget != null && ` of ${epsilon(silo.epsilon_budget)}`}
              </td>
              <td class="num" data-label="Record epsilon" title={silo.record_delta != null ? `at delta ${delta(silo.record_delta)}` : undefined}>
                {recordEpsilon(silo.record_epsilon, silo.record_none)}
                {silo.record_epsilon != null && silo.record_budget != null && ` of ${epsilon(silo.record_budget)}`}
              </td>
              <td data-label="Certificate until">
                <Expiry at={silo.certificate_expires} />
              </td>
              <td class="num" data-label="Strikes">
                {silo.strikes}
              </td>
              <td data-label="Notes">
                <span>
                  {notes(silo)}
                  {latest.has(silo.name) && <span class="sub">{said(latest.get(silo.name)!)}</span>}
                </span>
              </td>
              {mayAct && (
                <td data-label="Action">
                  {keptOut(silo) ? (
                    <button type="button" onClick={() => setAsked(silo)} aria-label={`Readmit ${silo.name}`}>
                      Readmit
                    </button>
                  ) : (
                    <button type="button" onClick={() => setAsked(silo)} aria-label={`Exclude ${silo.name}`}>
                      Exclude
                    </button>
                  )}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
      {asked && (
        <SiloQuestion
          silo={asked}
          done={(path, body) => {
            const silo = asked;
            setAsked(null);
            if (path !== null) void act(silo, path, body);
          }}
        />
      )}
    </div>
  );
}

function Expiry({ at }: { at: number | null }) {
  const left = at == null ? Infinity : at - Date.now() / 1000;
  if (left < 0) return <span class="severity alert">! expired {day(at)}</span>;
  if (left < SOON_SECONDS) return <span class="severity warning">△ {day(at)}</span>;
  return <>{day(at)}</>;
}

const said = (event: RunEvent): string => `${clock(event.at)} ${event.text}`;

function notes(silo: Silo): string {
  const found = [];
  if (silo.state === "sitting_out" && silo.back_in_round) found.push(`back in round ${silo.back_in_round}`);
  if (silo.drill) found.push(`drill: ${silo.drill}`);
  if (silo.given_up) found.push(`values of ${silo.given_up} rounds given up so far`);
  if (silo.reason) found.push(silo.reason);
  if (silo.problem && !silo.reason.includes(silo.problem)) found.push(silo.problem);
  return found.join("; ") || "–";
}
