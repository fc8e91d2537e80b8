// Before a silo is kept out or let back in: what will happen.
import type { Silo } from "./api";
import { Ask } from "./parts";

interface Props {
  silo: Silo;
  done: (path: string | null, body?: unknown) => void;
}

export const keptOut = (silo: Silo): boolean => silo.state === "excluded" || silo.state === "sitting_out";

export function SiloQuestion({ silo, done }: Props) {
  return keptOut(silo) ? (
    <Ask
      title={`Readmit ${silo.name}?`}
      verb="Readmit"
      explain={
        silo.state === "excluded"
          ? "It may take part again from the next roster on, with a clean record."
          : "It may take part again from the next roster on instead of sitting out, and its strikes are forgotten."
      }
      done={(reason) => done(reason === null ? null : "readmit")}
    />
  ) : (
    <Ask
      title={`Exclude ${silo.name}?`}
      verb="Exclude"
      explain="It is kept out of the next rosters until an admin readmits it."
      withReason
      done={(reason) => done(reason === null ? null : "exclude", { reason })}
    />
  );
}
