/** Finds a runtime's binary. */
export function findRuntime(name: "bun" | "deno"): string | undefined;
/** The variables of this process, with those that lead to the runtimes. */
export function variablesWithRuntimes(): Record<string, string | undefined>;
