import { useState } from "preact/hooks";
import { type Session, signIn } from "../api";

export function SignIn({ done }: { done: (session: Session) => void }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    setProblem("");
    signIn(token).then(done, (error: Error) => setProblem(error.message));
  };
  return (
    <main class="signin">
      <form class="card" onSubmit={submit}>
        <h1>
          <img src="/favicon.svg" alt="" width="28" height="28" /> FedREP
        </h1>
        <label>
          Token
          <input
            type="password"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
            aria-describedby="token-help"
          />
        </label>
        <p class="note" id="token-help">
          The viewer token lets you look, the admin token also steer. They were printed when the dashboard or the demo
          started, or stand in its settings.
        </p>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <button type="submit" class="primary">
          Sign in
        </button>
      </form>
    </main>
  );
}
