/** The JSON schema of a configuration file, beside what the resolver takes. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { parse } from "yaml";
import { z } from "zod";
import { fileSchema } from "../../src/config/json_schema.ts";
import { section } from "../../src/config/section.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";

const recipes = fileURLToPath(new URL("../../examples/recipes/", import.meta.url));

test("fileSchema() takes the recipes, and refuses what a file may not have", async () => {
  const schema = z.fromJSONSchema(JSON.parse(JSON.stringify(await fileSchema("a training", TRAIN_SECTIONS))));
  const names = readdirSync(recipes).filter((name) => name.endsWith(".yaml"));
  assert.ok(names.length > 2);
  for (const name of names) {
    const { success, error } = schema.safeParse(parse(readFileSync(`${recipes}${name}`, "utf8")));
    assert.ok(success, `${name}: ${error?.message}`);
  }
  for (const given of [{ data: "a.md" }, { learning_rate: 1e-3 }, { "eval-data": ["b.md"] }, { $schema: "x" }]) {
    assert.ok(schema.safeParse(given).success, JSON.stringify(given));
  }
  for (const given of [{ step: 3 }, { steps: 0 }, { steps: "3" }, { precision: "fp8" }, { data: 3 }]) {
    assert.ok(!schema.safeParse(given).success, JSON.stringify(given));
  }
});

test("fileSchema() has each key's description and default, and no keyword of this library", async () => {
  const part = section(
    "part",
    z.strictObject({
      sizes: z.array(z.int()).default([8]).describe("Sizes").meta({ otherNames: ["widths"] }),
      name: z.string().optional().describe("A name").meta({ shown: "word" }),
    }),
  );
  const { properties, additionalProperties } = await fileSchema("title", [part]);
  const integer = { type: "integer", minimum: Number.MIN_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER };
  assert.equal(additionalProperties, false);
  assert.deepEqual(properties["name"], { description: "A name", type: "string" });
  assert.deepEqual(properties["sizes"], {
    default: [8],
    description: "Sizes",
    anyOf: [{ type: "array", items: integer }, integer],
  });
});
