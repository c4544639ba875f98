/**
 * Permissions, which Deno has and other runtimes do not: the check of a permission, the request at the terminal, and the remedy
 * for a refusal. Imports nothing, so that bundles for browsers may contain it.
 *
 * @module
 */

/** A permission. Native code needs all of `ffi`: a list of libraries does not include their memory. */
export type Permission =
  | { readonly name: "ffi" }
  | { readonly name: "env"; readonly variable?: string }
  | { readonly name: "sys"; readonly kind: "hostname" | "networkInterfaces" };

type State = { readonly state: string };

interface DenoPermissions {
  readonly permissions: { querySync(permission: Permission): State; requestSync(permission: Permission): State };
}

/** True if a permission is granted already; does not ask for it. */
export function isPermitted(permission: Permission): boolean {
  const deno: unknown = Reflect.get(globalThis, "Deno");
  return !isDeno(deno) || deno.permissions.querySync(permission).state === "granted";
}

/** True if a permission is granted, asking for it at the terminal if needed; false without a terminal. */
export function requestPermission(permission: Permission): boolean {
  const deno: unknown = Reflect.get(globalThis, "Deno");
  return !isDeno(deno) || deno.permissions.requestSync(permission).state === "granted";
}

/**
 * The flag to start Deno with, if an error is its refusal of a permission.
 *
 * @param error any thrown value
 * @returns a clause such as `Deno was not given the permission; add --allow-read=/data/a.txt, or --allow-read for all`
 */
export function permissionRemedy(error: unknown): string | undefined {
  if (!(error instanceof Error) || error.name !== "NotCapable") return undefined;
  // `Requires read access to "/data/a.txt", run again with the --allow-read flag`
  const [, what, flag = "--allow-all"] =
    /access(?: to "(.*)")?, run again with the (--allow-\w+) flag/s.exec(error.message) ?? [];
  // A comma would end the path in a list of paths; it is written twice.
  const isExact = what !== undefined && flag !== "--allow-all";
  const flags = isExact ? `${flag}=${what.replaceAll(",", ",,")}, or ${flag} for all` : flag;
  return `Deno was not given the permission; add ${flags}`;
}

function isDeno(candidate: unknown): candidate is DenoPermissions {
  return typeof candidate === "object" && candidate !== null && "permissions" in candidate;
}
