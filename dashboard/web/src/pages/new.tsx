import type { Shared } from "../app";
import { Empty } from "../parts";

export function NewRun({ session }: Shared) {
  return <Empty title="New run">{session.note}</Empty>;
}
