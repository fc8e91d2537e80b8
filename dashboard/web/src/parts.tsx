// Small pieces that every page uses.
import { type ComponentChildren, toChildArray } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Run, Waiting } from "./api";
import { countdown, words } from "./format";

const STATE_MARK: Record<string, string> = {
  running: "▶",
  waiting: "…",
  paused: "❚❚",
  finished: "✓",
  stopped: "■",
  present: "●",
  absent: "○",
  sitting_out: "◐",
  excluded: "⊘",
  left: "↩",
  lost: "✕",
  standing_still: "…",
};

const STATE_TONE: Record<string, string> = {
  running: "ok",
  present: "ok",
  finished: "plain",
  waiting: "plain",
  absent: "plain",
  left: "plain",
  lost: "warn",
  standing_still: "warn",
  paused: "warn",
  sitting_out: "warn",
  stopped: "bad",
  excluded: "bad",
};

export function State({ state }: { state: string }) {
  return (
    <span class={`state ${STATE_TONE[state] ?? "plain"}`}>
      <span aria-hidden="true">{STATE_MARK[state] ?? "•"}</span>
      {words(state)}
    </span>
  );
}

// Not green while nothing moves.
export function RunState({ run }: { run: Run }) {
  return <State state={run.waiting.standing_still ? "standing_still" : run.state} />;
}

// Whom the run waits for; the time that is left is counted down here.
export function WaitingFor({ waiting, short }: { waiting: Waiting; short?: boolean }) {
  const [now, tick] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => tick(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  if (!waiting.sentence) return null;
  const [first, ...rest] = waiting.sentence.split("; ");
  const left = waiting.until != null ? `, ${countdown(waiting.until - now)} left` : "";
  return <span>{[`${first}${left}`, ...(short ? [] : rest)].join("; ")}</span>;
}

interface CardProps {
  title: string;
  note?: ComponentChildren;
  exportPath?: string;
  wide?: boolean;
  children: ComponentChildren;
}

export function Card({ title, note, exportPath, wide, children }: CardProps) {
  const id = `card-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return (
    <section class={wide ? "card wide" : "card"} aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{title}</h2>
        {exportPath && <Export path={exportPath} title={title} />}
      </div>
      {children}
      {note && <p class="note">{note}</p>}
    </section>
  );
}

function Export({ path, title }: { path: string; title: string }) {
  const join = path.includes("?") ? "&" : "?";
  return (
    <span class="export">
      {["csv", "json"].map((format) => (
        <a key={format} href={`/api/v1${path}${join}format=${format}`} download aria-label={`${title} as ${format.toUpperCase()}`}>
          {format.toUpperCase()}
        </a>
      ))}
    </span>
  );
}

export function Stat({ label, value, sub }: { label: string; value: ComponentChildren; sub?: ComponentChildren }) {
  return (
    <div class="stat">
      <dt>{label}</dt>
      <dd>
        <span class="stat-value">{value}</span>
        {sub && <span class="stat-sub">{sub}</span>}
      </dd>
    </div>
  );
}

// Tiles in full rows: as many columns as leave the fewest places empty, and the last tile takes those.
export function Stats({ children }: { children: ComponentChildren }) {
  const tiles = toChildArray(children).length;
  const empty = (columns: number) => (columns - (tiles % columns)) % columns;
  const columns = empty(5) < empty(4) ? 5 : 4;
  return (
    <dl class={`stats by-${columns} spare-${empty(columns)}`}>{children}</dl>
  );
}

export function Meter({ value, max, label, limit }: { value: number; max: number; label: string; limit?: boolean }) {
  const share = max > 0 ? Math.min(1, value / max) : 0;
  return (
    <span class={limit && share >= 0.9 ? "meter full" : "meter"} role="img" aria-label={label}>
      <span style={{ width: `${100 * share}%` }} />
    </span>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

// A command to copy; it breaks between words only, never inside an option.
export function Command({ text }: { text: string }) {
  return (
    <code>
      {text.split(" ").map((word, i) => (
        <span key={i}>{i ? ` ${word}` : word}</span>
      ))}
    </code>
  );
}

// A command with a button that copies it. Without HTTPS browsers give no clipboard: then it is selected, ready for Ctrl-C.
export function Copied({ text, what }: { text: string; what: string }) {
  const place = useRef<HTMLSpanElement>(null);
  const [said, say] = useState("Copy");
  const select = () => {
    getSelection()?.selectAllChildren(place.current!);
    say("Press Ctrl-C");
  };
  const copy = () => {
    if (!navigator.clipboard) select();
    else navigator.clipboard.writeText(text).then(() => say("Copied"), select);
  };
  return (
    <p class="row copied">
      <span ref={place}>
        <Command text={text} />
      </span>
      <button type="button" onClick={copy} aria-label={`${said}: ${what}`}>
        {said}
      </button>
    </p>
  );
}

export function Failure({ error, again }: { error: Error; again?: () => void }) {
  return (
    <div class="empty" role="alert">
      <p class="empty-title">This cannot be shown right now</p>
      <p>{error.message}</p>
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Loading() {
  return (
    <p class="loading" role="status">
      Loading…
    </p>
  );
}

// The width an element has now; charts and maps follow it.
export function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const place = useRef<HTMLDivElement>(null);
  const [width, set] = useState(0);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => set(Math.floor(entry!.contentRect.width)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [place, width];
}

// A question before something that cannot be undone, with a reason that everyone will see.
interface AskProps {
  title: string;
  verb: string;
  explain: string;
  withReason?: boolean;
  done: (reason: string | null) => void;
}

export function Ask({ title, verb, explain, withReason, done }: AskProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [reason, setReason] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onCancel={() => done(null)} aria-labelledby="ask-title">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          done(reason);
        }}
      >
        <h2 id="ask-title">{title}</h2>
        <p>{explain}</p>
        {withReason && (
          <label>
            Reason, shown to everyone
            <input value={reason} maxLength={300} onInput={(event) => setReason(event.currentTarget.value)} />
          </label>
        )}
        <div class="row end">
          <button type="button" onClick={() => done(null)}>
            Cancel
          </button>
          <button type="submit" class="primary">
            {verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}
