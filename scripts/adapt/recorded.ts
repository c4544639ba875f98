/**
 * What the peer gave when it was last asked to be recorded: `tests/fixtures/adapt/trl.json`, which `npm run adapt -- --peer trl --record`
 * writes. Runs without the peer are compared with it.
 *
 * @module
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import type { Sample } from "./peer.ts";

const FILE = fileURLToPath(new URL("../../tests/fixtures/adapt/trl.json", import.meta.url));

const integers = z.array(z.int());
const schema = z.object({
  versions: z.record(z.string(), z.string()),
  samples: z.record(z.string(), z.array(z.object({ ids: integers, labels: integers }))),
  losses: z.record(z.string(), z.array(z.number())),
});

/** Answers of the peer, by the names of what was asked. */
export class Recorded {
  readonly #samples: Map<string, readonly Sample[]>;
  readonly #losses: Map<string, readonly number[]>;

  private constructor({ samples, losses }: Pick<z.infer<typeof schema>, "samples" | "losses">) {
    this.#samples = new Map(Object.entries(samples));
    this.#losses = new Map(Object.entries(losses));
  }

  /** Reads the file; empty where there is none. */
  static read(): Recorded {
    if (!existsSync(FILE)) return new Recorded({ samples: {}, losses: {} });
    return new Recorded(schema.parse(JSON.parse(readFileSync(FILE, "utf8"))));
  }

  /**
   * Samples by name: those that `ask` gives, which are kept, or the recorded ones where there is no peer.
   *
   * @throws {Error} if there are neither
   */
  async samples(name: string, ask: (() => Promise<readonly Sample[]>) | undefined): Promise<readonly Sample[]> {
    return await answered(this.#samples, name, ask);
  }

  /** Losses by name, likewise. */
  async losses(name: string, ask: (() => Promise<readonly number[]>) | undefined): Promise<readonly number[]> {
    return await answered(this.#losses, name, ask);
  }

  /** Writes what was asked. */
  write(versions: Readonly<Record<string, string>>): void {
    mkdirSync(dirname(FILE), { recursive: true });
    const all = { versions, samples: Object.fromEntries(this.#samples), losses: Object.fromEntries(this.#losses) };
    writeFileSync(FILE, `${JSON.stringify(all)}\n`);
  }
}

async function answered<T>(kept: Map<string, T>, name: string, ask: (() => Promise<T>) | undefined): Promise<T> {
  if (ask !== undefined) kept.set(name, await ask());
  const found = kept.get(name);
  if (found !== undefined) return found;
  throw new Error(
    `Expected '${name}' in ${FILE}, which 'npm run adapt -- --peer trl --record' writes; it is not there`,
  );
}
