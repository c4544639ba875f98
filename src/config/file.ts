/**
 * Reads a YAML or JSON configuration file into plain values, each with the line and column where it stands. Key
 * spellings are made uniform here and unknown keys refused with the nearest known one; values are checked elsewhere.
 *
 * @module
 */
import type { Node, Scalar, YAMLMap } from "yaml";
import type { ConfigProblem } from "../errors.ts";
import { didYouMean } from "./nearest.ts";
import { camelCase, isList, type JsonSchema, kebabCase } from "./schema.ts";

/** A configuration file that was read. */
export interface ConfigFile {
  /** Values by key, with the names that the schema uses. */
  readonly values: Readonly<Record<string, unknown>>;
  /** The place of each value, `run.yaml:3:7`, by dotted path. */
  readonly places: ReadonlyMap<string, string>;
  /** Everything that was wrong with syntax and keys. */
  readonly problems: readonly ConfigProblem[];
}

/**
 * Reads the text of a configuration file.
 *
 * @param file its name, as shown in problems
 * @param schema the keys it may have
 * @param spell a key as the file should write it
 */
export async function readConfigText(
  file: string,
  text: string,
  schema: JsonSchema,
  spell: (key: string) => string = (key) => key,
): Promise<ConfigFile> {
  const yaml = await import("yaml");
  const lines = new yaml.LineCounter();
  const document = yaml.parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const places = new Map<string, string>();
  const problems: ConfigProblem[] = [];
  const at = (offset: number): string => {
    const { line, col } = lines.linePos(offset);
    return `${file}:${line}:${col}`;
  };

  for (const error of document.errors) {
    problems.push({ path: "syntax", expected: "YAML or JSON", got: error.message, where: at(error.pos[0]) });
  }
  if (problems.length > 0) return { values: {}, places, problems };

  const resolve = (node: unknown): Node | undefined => {
    if (yaml.isAlias(node)) return node.resolve(document);
    return yaml.isNode(node) ? node : undefined;
  };

  const place = (node: Node | undefined, path: readonly (string | number)[], key?: Scalar): void => {
    const offset = node?.range?.[0] ?? key?.range?.[0];
    if (offset !== undefined) places.set(path.join("."), at(offset));
    if (yaml.isSeq(node)) node.items.forEach((item, index) => place(resolve(item), [...path, index]));
  };

  const readMap = (map: YAMLMap, known: JsonSchema, path: readonly string[]): Record<string, unknown> => {
    const values: Record<string, unknown> = {};
    const properties = known.properties ?? {};
    for (const pair of map.items) {
      const key = yaml.isScalar(pair.key) ? pair.key : undefined;
      const typed = String(key?.value);
      const name = camelCase(typed);
      const where = at(key?.range?.[0] ?? map.range?.[0] ?? 0);
      if (path.length === 0 && typed === "$schema") continue;
      const property = Object.hasOwn(properties, name) ? properties[name] : undefined;
      const value = resolve(pair.value);
      if (property === undefined) {
        const got = `'${typed}'${remedyOf(name, yaml.isMap(value), properties, spell)}`;
        problems.push({ path: [...path, typed].join("."), expected: "a known key", got, where });
        continue;
      }
      if (Object.hasOwn(values, name)) {
        problems.push({ path: [...path, typed].join("."), expected: "each key once", got: `'${typed}' again`, where });
        continue;
      }
      place(value, [...path, name], key);
      if (property.properties !== undefined && yaml.isMap(value)) {
        values[name] = readMap(value, property, [...path, name]);
      } else {
        const given = value === undefined ? null : value.toJS(document);
        values[name] = isList(property) && yaml.isScalar(value) && given !== null ? [given] : given;
      }
    }
    return values;
  };

  const root = resolve(document.contents);
  if (root === undefined || (yaml.isScalar(root) && root.value === null)) return { values: {}, places, problems };
  if (!yaml.isMap(root)) {
    problems.push({ path: "file", expected: "keys and values", got: root.toString().slice(0, 60), where: at(0) });
    return { values: {}, places, problems };
  }
  return { values: readMap(root, schema, []), places, problems };
}

/** The remedy for an unknown key: its name here, or the place to which the keys below it belong. */
function remedyOf(
  name: string,
  holdsKeys: boolean,
  properties: Readonly<Record<string, JsonSchema>>,
  spell: (key: string) => string,
): string {
  const other = kebabCase(name);
  const here = Object.entries(properties).find(([, { otherNames }]) => otherNames?.includes(other));
  if (here !== undefined) return `. Here it is '${here[0]}': ${here[1].description}`;
  const nested = Object.values(properties).some((property) => property.properties !== undefined);
  if (holdsKeys && !nested) return ". Keys are not nested: move those below it out of it";
  return didYouMean(spell(name), Object.keys(properties).map(spell));
}
