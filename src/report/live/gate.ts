/**
 * Requests that a live page answers. The page's address holds a secret. Programs that know it may look; only the page itself may ask
 * the run to save or to stop.
 *
 * Note [Other sites]: a site in the user's browser can send requests to this machine. Its requests name another origin, and where it
 * has made its own name lead to this machine (DNS rebinding), another host. Both are refused before the secret is compared.
 *
 * @module
 */
import { LOOPBACK } from "../../runtime/loopback_server.ts";

/** Parts of a request that decide. */
export interface Asked {
  readonly method: string;
  /** Path with the query. */
  readonly path: string;
  readonly host: string | undefined;
  readonly origin: string | undefined;
  /** `Sec-Fetch-Site`. */
  readonly site: string | undefined;
}

/** The thing that is asked for. */
export type Route = "page" | "events" | "save" | "stop";

/** A route, or the status and the text of a refusal. */
export type GateVerdict = { readonly route: Route } | { readonly status: 403 | 404 | 405; readonly text: string };

const ROUTES: Readonly<Record<string, readonly [Route, method: string]>> = {
  "": ["page", "GET"],
  events: ["events", "GET"],
  save: ["save", "POST"],
  stop: ["stop", "POST"],
};

/** Decides about a request. */
export function judge(
  { method, path, host, origin, site }: Asked,
  { port, secret }: { readonly port: number; readonly secret: string },
): GateVerdict {
  const refuse = (text: string): GateVerdict => ({ status: 403, text });
  // See Note [Other sites].
  const hosts = [LOOPBACK, "localhost"].map((name) => `${name}:${port}`);
  if (host === undefined || !hosts.includes(host.toLowerCase())) {
    return refuse("Refused: the request names another host.");
  }
  if (origin !== undefined && origin !== `http://${host.toLowerCase()}`) {
    return refuse("Refused: the request comes from another site.");
  }
  if (site !== undefined && site !== "same-origin" && site !== "none") {
    return refuse("Refused: the request comes from another site.");
  }
  const [, given = "", name, ...rest] = path.replace(/\?.*$/, "").split("/");
  if (!isSame(given, secret)) return refuse("Refused: the address lacks the secret that the run printed.");
  const found = name === undefined || rest.length > 0 || !Object.hasOwn(ROUTES, name) ? undefined : ROUTES[name];
  if (found === undefined) return { status: 404, text: "Not found." };
  const [route, expected] = found;
  if (method !== expected) return { status: 405, text: `Use ${expected}.` };
  // Browsers name the origin of every POST.
  if (expected === "POST" && origin === undefined) return refuse("Refused: only the page itself may ask for this.");
  return { route };
}

/** Compares in a time that says nothing of the place of a difference. */
function isSame(given: string, secret: string): boolean {
  let difference = given.length ^ secret.length;
  for (let i = 0; i < secret.length; i++) {
    difference |= given.charCodeAt(i % Math.max(1, given.length)) ^ secret.charCodeAt(i);
  }
  return difference === 0;
}
