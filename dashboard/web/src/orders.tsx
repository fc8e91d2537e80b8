// Going on from an older model, and another list of silos: silos follow both on an admin's signature only.
import { useEffect, useRef, useState } from "preact/hooks";
import { type RunDetail, type Session, call, get } from "./api";
import type { Amended } from "./admin-api";
import { count, percent } from "./format";
import { Copied } from "./parts";
import { signedAs } from "./signer";

interface Props {
  run: string;
  at?: string;
  session: Session;
  done: () => void;
}

// What an admin is about to sign: the question, and what to do once it is answered with yes.
interface Order {
  title: string;
  lines: string[];
  verb: string;
  send: () => Promise<string>;
}

export function Orders({ run, at, session, done }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [detail, setDetail] = useState<RunDetail | null>(null);
  const [order, setOrder] = useState<Order | null>(null);
  const [problem, setProblem] = useState("");
  const [said, say] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    dialog.current?.showModal();
    get<RunDetail>(`/runs/${run}`).then(setDetail, (error: Error) => setProblem(error.message));
  }, []);
  const attempt = (work: Promise<void>) => {
    setProblem("");
    setBusy(true);
    work.catch((error: Error) => setProblem(error.message)).finally(() => setBusy(false));
  };
  const agree = () =>
    attempt(
      order!.send().then((words) => {
        say(words);
        setOrder(null);
      }),
    );
  return (
    <dialog ref={dialog} class="wide" onCancel={done} aria-labelledby="orders-title">
      <h2 id="orders-title">{order ? order.title : `Roll back or amend ${run}`}</h2>
      {said ? (
        <p class="fine" role="status">
          ✓ {said}
        </p>
      ) : order ? (
        <>
          {order.lines.map((line) => (
            <p key={line}>{line}</p>
          ))}
          <p>{signedAs(session)}</p>
        </>
      ) : session.may_create ? (
        detail && (
          <>
            <RollBack detail={detail} ask={setOrder} />
            <Amend detail={detail} ask={setOrder} attempt={attempt} busy={busy} changed={() => setProblem("")} />
          </>
        )
      ) : (
        <Commands run={run} at={at} detail={detail} note={session.note} />
      )}
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <div class="row end">
        {order ? (
          <>
            <button type="button" onClick={() => setOrder(null)}>
              Back
            </button>
            <button type="button" class="primary" disabled={busy} onClick={agree}>
              {order.verb}
            </button>
          </>
        ) : (
          <button type="button" onClick={done}>
            Close
          </button>
        )}
      </div>
    </dialog>
  );
}

function RollBack({ detail, ask }: { detail: RunDetail; ask: (order: Order) => void }) {
  const { run, models, open_round } = detail;
  const older = models.filter((model) => model.version !== run.model_version);
  const [version, setVersion] = useState(String((older.find((model) => model.best) ?? older.at(-1))?.version ?? ""));
  const chosen = older.find((model) => String(model.version) === version);
  if (!older.length) {
    return (
      <>
        <h3>Go on from an older model</h3>
        <p class="note">No older version is kept.</p>
      </>
    );
  }
  const prepare = () =>
    ask({
      title: `Roll ${run.name} back to version ${version}?`,
      lines: [
        `The parameters of version ${version}${chosen?.accuracy != null ? ` (accuracy ${percent(chosen.accuracy)})` : ""} become the newest version, ` +
          `${run.model_version + 1}. ${open_round ? `The open round ${open_round} is skipped; ` : ""}nothing that was sent is taken back, and epsilon stays spent.`,
      ],
      verb: "Sign and roll back",
      send: () =>
        call<{ model_version: number }>("POST", `/runs/${run.name}/rollback`, { version: Number(version) }).then(
          (found) => `Version ${version} is now version ${found.model_version}.`,
        ),
    });
  return (
    <>
      <h3>Go on from an older model</h3>
      <div class="row order">
        <label>
          Kept version
          <select value={version} onChange={(event) => setVersion(event.currentTarget.value)}>
            {older.map((model) => (
              <option key={model.version} value={model.version}>
                {model.version}
                {model.accuracy != null ? `, ${percent(model.accuracy)}` : ""}
                {model.best ? " (best)" : ""}
              </option>
            ))}
          </select>
        </label>
        <button type="button" onClick={prepare}>
          Roll back…
        </button>
      </div>
    </>
  );
}

interface AmendProps {
  detail: RunDetail;
  ask: (order: Order) => void;
  attempt: (work: Promise<void>) => void;
  busy: boolean;
  changed: () => void;
}

function Amend({ detail, ask, attempt, busy, changed }: AmendProps) {
  const listed = detail.settings.silos as string[];
  const [kept, setKept] = useState(listed);
  const [added, setAdded] = useState("");
  const [quorum, setQuorum] = useState("");
  const [problems, setProblems] = useState<string[]>([]);
  const name = detail.run.name;
  useEffect(() => {
    setProblems([]);
    changed();
  }, [kept, added, quorum]);
  const body = () => ({
    add: added.split(/[\s,]+/).filter(Boolean),
    remove: listed.filter((silo) => !kept.includes(silo)),
    quorum: quorum.trim() || null,
  });
  const prepare = () =>
    attempt(
      call<Amended>("POST", `/runs/${name}/amend`, { ...body(), dry_run: true }).then((shown) => {
        setProblems(shown.problems.length ? [shown.conclusion] : []);
        if (!shown.problems.length) ask(question(name, body(), shown));
      }),
    );
  const flip = (silo: string) => setKept((known) => (known.includes(silo) ? known.filter((other) => other !== silo) : [...known, silo]));
  return (
    <>
      <h3>Change the list of silos</h3>
      <fieldset class="listed">
        <legend>On the list; unmark one to remove it</legend>
        {listed.map((silo) => (
          <label key={silo} class="check">
            <input type="checkbox" checked={kept.includes(silo)} onChange={() => flip(silo)} /> {silo}
          </label>
        ))}
      </fieldset>
      <div class="fields">
        <label>
          Silos to add
          <textarea rows={2} value={added} onInput={(event) => setAdded(event.currentTarget.value)} />
          <span class="hint">one name per line</span>
        </label>
        <label>
          Quorum
          <input inputMode="decimal" value={quorum} onInput={(event) => setQuorum(event.currentTarget.value)} />
          <span class="hint">empty: the least that works</span>
        </label>
      </div>
      {problems.map((text) => (
        <p key={text} class="problem" role="alert">
          ! {text}
        </p>
      ))}
      <div class="row order">
        <button type="button" disabled={busy} onClick={prepare}>
          Amend…
        </button>
      </div>
    </>
  );
}

function question(name: string, body: { add: string[]; remove: string[]; quorum: string | null }, shown: Amended): Order {
  const changes = [body.add.length && `${body.add.join(", ")} may join`, body.remove.length && `${body.remove.join(", ")} may not take part any more`];
  return {
    title: `Amend the list of ${name}?`,
    lines: [
      `From round ${count(shown.from_round)} on, the first of the next epoch: ${changes.filter(Boolean).join("; ")}. The run then has ${count(shown.silos.length)} silos ` +
        `and a quorum of ${count(shown.quorum)}. Until then nothing changes; then every silo joins again by itself, and a removed one is told so and stops.`,
      ...(shown.replaces.length ? [`The list that waits for that epoch now (${shown.replaces.join(", ")}) is replaced.`] : []),
    ],
    verb: "Sign and amend",
    send: () =>
      call<Amended>("POST", `/runs/${name}/amend`, body).then((found) => {
        if (!found.done) throw new Error(found.conclusion);
        return `The new list counts from round ${count(found.from_round)} on.`;
      }),
  };
}

// Without a key that silos follow the page can only say what to type.
function Commands({ run, at, detail, note }: { run: string; at?: string; detail: RunDetail | null; note: string }) {
  const models = detail?.models ?? [];
  const version = (models.find((model) => model.best) ?? models[0])?.version ?? "VERSION";
  const server = at ? ` --server ${at}` : "";
  return (
    <>
      <p>
        {note || "This dashboard has no admin key to sign with."} Silos follow these two on an admin's signature only. Run the command where your{" "}
        <code>credentials</code> folder lies; the server must be reachable from there under the address that is named.
      </p>
      <h3>Go on from an older model</h3>
      <p class="note">
        The open round is skipped.{" "}
        {models.length > 0 ? `Kept versions: ${models.map((model) => model.version).join(", ")}.` : "The run's page lists the kept versions."}
      </p>
      <Copied what="rollback" text={`fedrep run rollback ${run} --to ${version}${server}`} />
      <h3>Change the list of silos</h3>
      <p class="note">From the next epoch on. Both options may be repeated, and one may be left out.</p>
      <Copied what="amend" text={`fedrep run amend ${run} --add SILO --remove SILO${server}`} />
    </>
  );
}
