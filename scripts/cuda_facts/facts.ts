/**
 * The table of facts: what NVIDIA's headers say, by release, of every name that we bind. A fact is text: a function's
 * signature (`enum(void**, u64)`), a member's type and offset (`u32@8`), or a number. One that all releases agree on
 * stands alone; else it is a list of the releases from which on another text holds, null where the name is absent.
 *
 * @module
 */

/** The facts of each release. */
export type History = string | readonly (readonly [release: string, fact: string | null])[];

/** Facts of one kind by name. */
export type Facts = Readonly<Record<string, History>>;

/** The facts about one library. */
export interface LibraryFacts {
  readonly releases: readonly string[];
  readonly functions: Facts;
  readonly constants: Facts;
  /** Sizes of structs. */
  readonly structs: Facts;
  /** Members, as `struct.member`. */
  readonly members: Facts;
  /** Members' values in the struct's initializer, as `struct.member`. */
  readonly initials: Facts;
}

/** The facts that one release's headers give, by kind and name. */
export type Observation = ReadonlyMap<string, ReadonlyMap<string, string>>;

/** The facts of one of the releases; null if there are none. */
export function factAt(history: History, releases: readonly string[], release: string): string | null {
  if (typeof history === "string") return history;
  const at = releases.indexOf(release);
  const last = history.filter(([from]) => releases.indexOf(from) <= at).at(-1);
  if (last === undefined) throw new Error(`no fact about ${release} in ${JSON.stringify(history)}`);
  return last[1];
}

/** Puts the releases' observations, oldest first, together. */
export function mergeObservations(observations: readonly (readonly [string, Observation])[]): LibraryFacts {
  const kindOf = (kind: string): Facts => {
    const names = new Set(observations.flatMap(([, seen]) => [...seen.get(kind)?.keys() ?? []]));
    return Object.fromEntries(
      [...names].sort().map((name) => {
        const all = observations.map(([release, seen]) => [release, seen.get(kind)?.get(name) ?? null] as const);
        const changes = all.filter(([, fact], at) => at === 0 || fact !== all[at - 1]?.[1]);
        const only = changes[0]?.[1];
        return [name, changes.length === 1 && typeof only === "string" ? only : changes];
      }),
    );
  };
  return {
    releases: observations.map(([release]) => release),
    functions: kindOf("function"),
    constants: kindOf("constant"),
    structs: kindOf("struct"),
    members: kindOf("member"),
    initials: kindOf("initial"),
  };
}
