/**
 * Permissions, of which Deno has some and other runtimes none: whether one is there, the question to the person at the
 * terminal, and what a refusal should have been started with. Imports nothing, so that browsers' bundles may hold it.
 *
 * @module
 */

/** What is permitted. Native code needs the whole permission: a list of libraries does not admit their memory. */
export type Permission =
  | { readonly name: "ffi" }
  | { readonly name: "env"; readonly variable?: string }
  | { readonly name: "sys"; readonly kind: "hostname" };

type State = { readonly state: string };

interface Deno {
  readonly permissions: { querySync(permission: Permission): State; requestSync(permission: Permission): State };
}

/** Whether something is permitted already; nobody is asked. */
export function isPermitted(permission: Permission): boolean {
  const deno: unknown = Reflect.get(globalThis, "Deno");
  return !isDeno(deno) || deno.permissions.querySync(permission).state === "granted";
}

/** Whether something is permitted, by the person at the terminal if need be; without a terminal the answer is no. */
export function requestPermission(permission: Permission): boolean {
  const deno: unknown = Reflect.get(globalThis, "Deno");
  return !isDeno(deno) || deno.permissions.requestSync(permission).state === "granted";
}

/**
 * What to start Deno with, where an error is its refusal of a permission.
 *
 * @param error what was thrown
 * @returns a clause such as `Deno was not given the permission; add --allow-read=/data/a.txt, or --allow-read for all`
 */
export function permissionRemedy(error: unknown): string | undefined {
  if (!(error instanceof Error) || error.name !== "NotCapable") return undefined;
  // `Requires read access to "/data/a.txt", run again with the --allow-read flag`
  const [, what, flag = "--allow-all"] =
    /access(?: to "(.*)")?, run again with the (--allow-\w+) flag/s.exec(error.message) ?? [];
  // A comma would end the path in a list of paths; two stand for one.
  const isExact = what !== undefined && flag !== "--allow-all";
  const flags = isExact ? `${flag}=${what.replaceAll(",", ",,")}, or ${flag} for all` : flag;
  return `Deno was not given the permission; add ${flags}`;
}

function isDeno(candidate: unknown): candidate is Deno {
  return typeof candidate === "object" && candidate !== null && "permissions" in candidate;
}
