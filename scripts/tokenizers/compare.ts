/**
 * `node scripts/runtime.mjs bun scripts/tokenizers/compare.ts FILE...`: compares this library's ids and texts with those that
 * `make.py` or `fuzz.py` wrote of Python's tokenizers, and prints how many are equal, and those that are not.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { z } from "zod";
import { TokenizerPipeline } from "../../src/data/tokenizers/pipeline.ts";

const FILE = z.object({
  texts: z.array(z.string()).optional(),
  kinds: z.array(z.object({
    name: z.string(),
    tokenizer: z.record(z.string(), z.unknown()),
    texts: z.array(z.string()).optional(),
    ids: z.array(z.array(z.number()).nullable()),
    decoded: z.array(z.string().nullable()),
    skipped: z.array(z.string().nullable()),
  })),
});

const print = (line: string): void => void process.stdout.write(`${line}\n`);

let [equal, unequal, refused] = [0, 0, 0];
const refusals = new Map<string, number>();
for (const path of process.argv.slice(2)) {
  const { texts: shared = [], kinds } = FILE.parse(JSON.parse(readFileSync(path, "utf8")));
  for (const kind of kinds) {
    const texts = kind.texts ?? shared;
    let tokenizer: TokenizerPipeline;
    try {
      tokenizer = new TokenizerPipeline(kind.tokenizer, kind.name);
    } catch (error) {
      refused++;
      const message = String(error).replace(/^[^:]*: [^:]*: /, "");
      refusals.set(message, (refusals.get(message) ?? 0) + 1);
      continue;
    }
    for (const [i, text] of texts.entries()) {
      // Python has panicked, so there is nothing to compare with.
      if (kind.ids[i]?.[0] === -1) continue;
      const wanted = JSON.stringify([kind.ids[i], kind.decoded[i], kind.skipped[i]]);
      let got: string;
      try {
        const ids = tokenizer.encode(text);
        got = JSON.stringify([ids, tokenizer.decode(ids, false), tokenizer.decode(ids, true)]);
      } catch (error) {
        // It is refused in Python too, or by its name here.
        if (String(error).includes("must match a character or more")) continue;
        got = error instanceof Error && error.name === "ArgumentError" ? "[null,null,null]" : String(error);
      }
      if (got === wanted) equal++;
      else if (unequal++ < 40) {
        print(`${kind.name}: ${JSON.stringify(text)}\n  Python ${wanted}\n  here   ${got}`);
      }
    }
  }
}
print(`${equal} equal, ${unequal} unequal, ${refused} tokenizers refused`);
for (const [message, count] of refusals) print(`  ${count} × ${message}`);
process.exitCode = unequal === 0 ? 0 : 1;
