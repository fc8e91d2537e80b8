// What happened, newest first, in the server's own sentences.
import { useEffect, useState } from "preact/hooks";
import { type RunEvent, get } from "./api";
import { clock, moment } from "./format";
import { Card, Empty } from "./parts";
import { Link } from "./router";

const MARK: Record<string, string> = { info: "·", warning: "△", alert: "!" };
const ENDED = ["round_applied", "round_skipped"]; // their round has a page
const AT_ONCE = 60;
const EVERYBODY = "everybody";
const SERVER = "the run itself";

// `rounds` is the address of the run's rounds, where the line should lead to its own.
export function EventLine({ event, rounds }: { event: RunEvent; rounds?: string }) {
  return (
    <li>
      <time dateTime={new Date(event.at * 1000).toISOString()} title={moment(event.at)}>
        {clock(event.at)}
      </time>
      <span class={`severity ${event.severity}`}>
        {MARK[event.severity] ?? "·"} {event.severity}
      </span>
      <span>
        {event.text} {rounds && ENDED.includes(event.kind) && <Link to={`${rounds}/${event.round}`}>Open round {event.round}</Link>}
      </span>
    </li>
  );
}

export function Events({ name, events, exportPath }: { name: string; events: RunEvent[]; exportPath: string }) {
  const [older, setOlder] = useState<RunEvent[]>([]);
  const [serious, setSerious] = useState(false);
  const [shown, setShown] = useState(AT_ONCE);
  const [who, setWho] = useState(EVERYBODY);
  useEffect(() => setOlder([]), [name]);
  const all = [...older, ...events.filter((event) => event.position > (older.at(-1)?.position ?? 0))];
  const silos = [...new Set(all.map((event) => event.silo).filter(Boolean))].sort();
  const from = (event: RunEvent) => who === EVERYBODY || (who === SERVER ? !event.silo : event.silo === who);
  const chosen = all.filter((event) => (!serious || event.severity !== "info") && from(event)).reverse();
  const first = all[0]?.position ?? 1;
  const more = () => {
    setShown(shown + AT_ONCE);
    if (chosen.length > shown + AT_ONCE || first <= 1) return;
    get<{ events: RunEvent[] }>(`/runs/${name}/events?limit=200&before=${first}`).then(
      (answer) => setOlder((known) => [...answer.events, ...known]),
      () => undefined,
    );
  };
  return (
    <Card title="Events" exportPath={exportPath}>
      <div class="row">
        <label class="check">
          <input type="checkbox" checked={serious} onChange={(event) => setSerious(event.currentTarget.checked)} /> only warnings and
          alerts
        </label>
        <label class="check">
          about{" "}
          <select value={who} onChange={(event) => setWho(event.currentTarget.value)}>
            {[EVERYBODY, SERVER, ...silos].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      {chosen.length === 0 ? (
        <Empty title={serious ? "No warnings, no alerts" : who === EVERYBODY ? "Nothing has happened yet" : "Nothing among the events shown"} />
      ) : (
        <ol class="events" tabIndex={0} aria-label="Events, newest first">
          {chosen.slice(0, shown).map((event) => (
            <EventLine key={event.position} event={event} rounds={`/runs/${name}/rounds`} />
          ))}
          {(chosen.length > shown || first > 1) && (
            <li class="more">
              <button type="button" onClick={more}>
                Show older
              </button>
            </li>
          )}
        </ol>
      )}
    </Card>
  );
}
