// The frame around every page: who is signed in, whether figures are live, and where to go.
import { useEffect, useState } from "preact/hooks";
import { type ServerState, type Session, session as fetchSession, signIn, signOut } from "./api";
import { ago, clock } from "./format";
import type { LiveState } from "./live";
import { Compare } from "./pages/compare";
import { NewRun } from "./pages/new";
import { Overview } from "./pages/overview";
import { RoundPage } from "./pages/round";
import { RunPage } from "./pages/run";
import { SignIn } from "./pages/signin";
import { SilosPage } from "./pages/silos";
import { Empty, Failure, Loading } from "./parts";
import { Link, go, useAddress } from "./router";
import { useTheme } from "./theme";

export interface Shared {
  session: Session;
  server: ServerState | null;
  report: (live: LiveState, server: ServerState | null) => void;
}

export function App() {
  const [session, setSession] = useState<Session | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const load = () => {
    setError(null);
    entered()
      .then(setSession)
      .catch(setError);
  };
  useEffect(() => {
    load();
    const out = () => setSession((known) => (known ? { ...known, signed_in: false } : known));
    window.addEventListener("signed-out", out);
    return () => window.removeEventListener("signed-out", out);
  }, []);
  if (error) return <Failure error={error} again={load} />;
  if (!session) return <Loading />;
  if (!session.signed_in) return <SignIn done={setSession} />;
  return <Frame session={session} left={() => setSession({ ...session, signed_in: false })} />;
}

// The demo's link carries the token behind the #, which browsers never send and servers never log.
async function entered(): Promise<Session> {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return fetchSession();
  go(location.pathname + location.search, true);
  return signIn(token).catch(() => fetchSession());
}

function Frame({ session, left }: { session: Session; left: () => void }) {
  const address = useAddress();
  const [live, setLive] = useState<LiveState>("connecting");
  const [server, setServer] = useState<ServerState | null>(null);
  const shared: Shared = {
    session,
    server,
    report: (state, known) => {
      setLive(state);
      if (known) setServer(known);
    },
  };
  const path = address.pathname;
  const run = /^\/runs\/([^/]+)(\/silos)?\/?$/.exec(path);
  const round = /^\/runs\/([^/]+)\/rounds\/(\d{1,15})\/?$/.exec(path);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the figures
      </a>
      <Header path={path} live={live} server={server} session={session} left={left} />
      <Banner live={live} server={server} />
      <main id="main" tabIndex={-1}>
        {path === "/" ? (
          <Overview {...shared} />
        ) : run ? (
          run[2] ? (
            <SilosPage key={run[1]} name={run[1]!} {...shared} />
          ) : (
            <RunPage key={run[1]} name={run[1]!} {...shared} />
          )
        ) : round ? (
          <RoundPage key={round[1]} name={round[1]!} number={Number(round[2])} {...shared} />
        ) : path === "/compare" ? (
          <Compare address={address} {...shared} />
        ) : path === "/new" ? (
          <NewRun {...shared} />
        ) : (
          <Empty title="There is no such page">
            <Link to="/">Go to the overview</Link>
          </Empty>
        )}
      </main>
    </>
  );
}

interface HeaderProps {
  path: string;
  live: LiveState;
  server: ServerState | null;
  session: Session;
  left: () => void;
}

function Header({ path, live, server, session, left }: HeaderProps) {
  const [theme, next] = useTheme();
  const up = live === "live" && server?.reachable !== false;
  const word = live === "connecting" ? "connecting" : live === "lost" ? "reconnecting" : up ? "live" : "server down";
  return (
    <header>
      <Link to="/" class="brand">
        <img src="/favicon.svg" alt="" width="22" height="22" /> FedREP
      </Link>
      <nav aria-label="Pages">
        <Link to="/" current={path === "/"}>
          Overview
        </Link>
        <Link to="/compare" current={path === "/compare"}>
          Compare
        </Link>
        {session.may_create && (
          <Link to="/new" current={path === "/new"}>
            New run
          </Link>
        )}
      </nav>
      <span class={up ? "live up" : "live"} role="status">
        <span aria-hidden="true">{up ? "●" : "○"}</span> {word}
      </span>
      <button type="button" class="quiet" onClick={next} aria-label={`Colours: ${theme}. Change.`}>
        <span aria-hidden="true">{theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}</span>
        <span class="wide-only"> {theme}</span>
      </button>
      <button type="button" class="quiet" title={session.note || session.user} onClick={() => signOut().then(left, left)}>
        Sign out<span class="wide-only"> ({session.role})</span>
      </button>
    </header>
  );
}

function Banner({ live, server }: { live: LiveState; server: ServerState | null }) {
  const [, tick] = useState(0);
  const down = live === "lost" || (server !== null && !server.reachable);
  useEffect(() => {
    if (!down) return;
    const timer = setInterval(() => tick((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, [down]);
  if (live === "lost") {
    return (
      <div class="banner" role="alert">
        <b>The dashboard does not answer.</b> These are the last figures it sent; reconnecting.
      </div>
    );
  }
  if (!down) return null;
  if (server!.problem) {
    return (
      <div class="banner" role="alert">
        <b>The federation server refuses this dashboard.</b> {server!.problem}
      </div>
    );
  }
  return (
    <div class="banner" role="alert">
      <b>
        The federation server is unreachable since {clock(server!.since)} ({ago(server!.since)}).
      </b>{" "}
      These are the last known figures. The dashboard keeps trying {server!.address}.
    </div>
  );
}
