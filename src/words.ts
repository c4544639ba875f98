/**
 * Words of messages that depend on what is counted or listed.
 *
 * @module
 */

/** A number with its noun: `1 rank`, `2 ranks`. */
export function countOf(count: number, noun: string, plural: string = `${noun}s`): string {
  return `${count} ${count === 1 ? noun : plural}`;
}

/** Which names there are: `only 'cpu' is available`, `'llama' and 'qwen2' are supported`. */
export function whichAre(names: readonly string[], what: string): string {
  const quoted = names.map((name) => `'${name}'`);
  const last = quoted.pop() ?? "nothing";
  return quoted.length === 0 ? `only ${last} is ${what}` : `${quoted.join(", ")} and ${last} are ${what}`;
}
