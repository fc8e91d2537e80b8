// As whom the dashboard signs, in the words an admin needs: a silo may trust some admins only.
import type { Session } from "./api";

export function signedAs({ signer }: Session): string {
  if (!signer) return "";
  return (
    `It is signed with this dashboard's own key, as ${signer.name}. A silo that has an admins_file follows only ` +
    `if the key is listed there: ${signer.fingerprint}.`
  );
}
