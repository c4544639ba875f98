/** Values that a narrower dtype cannot hold: what would write or load them as infinite names the tensor. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { after, describe } from "node:test";
import { fileURLToPath } from "node:url";
import { saveHfDirectory } from "../../doors/checkpoint.ts";
import { NonFiniteError } from "../../doors/errors.ts";
import { addLora, bfloat16, type CausalLm, type DType, float16, fullyShard, launch, openModel } from "../../mod.ts";
import { fixturePath } from "../support/golden.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const NAME = "model.layers.0.mlp.up_proj.weight";

/** A copy of a model, of which one weight has `value`. */
function modelWith(value: number): string {
  const path = folder.file(`with ${value}`);
  fs.cpSync(fixturePath("llama-untied"), path, { recursive: true });
  const file = `${path}/model.safetensors`;
  const bytes = fs.readFileSync(file);
  const begin = 8 + Number(bytes.readBigUInt64LE(0));
  const { dtype, data_offsets: [first] } = JSON.parse(bytes.toString("utf8", 8, begin))[NAME];
  assert.equal(dtype, "F32");
  bytes.writeFloatLE(value, begin + first + 8);
  fs.writeFileSync(file, bytes);
  return path;
}

const large = modelWith(1e5);
const huge = modelWith(3.4e38);

function run(...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync("node", [bin, "--runtime", RUNTIME, ...args], { encoding: "utf8" });
  return { code: status, stdout, stderr };
}

describe("a value beyond the largest of a dtype", () => {
  it("is refused by merge and export, which leave no weights", () => {
    const commands: readonly (readonly [model: string, args: readonly string[], said: RegExp])[] = [
      [large, ["merge", "--dtype", "float16"], /has 100000, which float16 cannot hold: use bfloat16 or float32 for it/],
      [large, ["export", "--format", "hf", "--dtype", "f16"], /has 100000, which float16 cannot hold/],
      [large, ["export", "--tokenizer", "none", "--dtype", "f16"], /has 100000, which float16 cannot hold/],
      [huge, ["merge", "--dtype", "bfloat16"], /has 3\.3999\d+e\+38, which bfloat16 cannot hold: use float32 for it/],
      [huge, ["export", "--tokenizer", "none", "--dtype", "bf16"], /has 3\.3999\d+e\+38, which bfloat16 cannot hold/],
    ];
    for (const [i, [model, [command = "", ...flags], said]] of commands.entries()) {
      const to = folder.file(flags.includes("none") ? `to-${i}.gguf` : `to-${i}`);
      const { code, stderr } = run(command, model, ...command === "merge" ? [to] : ["--out", to], ...flags);
      assert.equal(code, 2, stderr);
      assert.match(stderr, said);
      assert.match(stderr, /^fullyshard \w+: '[\w.]*up[\w.]*' has/);
      assert.equal(stderr.trim().split("\n").length, 1, stderr);
      assert.ok(!fs.existsSync(`${to}/model.safetensors`) && !fs.existsSync(to.endsWith(".gguf") ? to : "none"));
    }
  });

  it("is refused by saves and loads in a narrower dtype, and kept by those that hold it", async () => {
    await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
    const loaded = async (frozenDtype?: DType): Promise<CausalLm> => {
      const model = await openModel(run, large, frozenDtype === undefined ? {} : { frozenDtype });
      // Frozen parameters alone have another dtype than float32.
      if (frozenDtype !== undefined) addLora(model, { r: 2 });
      fullyShard(model, { mesh: run.mesh });
      await model.load();
      return model;
    };
    const isOfName = (error: unknown): boolean => error instanceof NonFiniteError && error.message.includes(NAME);
    await assert.rejects(loaded(float16), isOfName);
    await loaded(bfloat16);
    const model = await loaded();
    const to = folder.file("saved");
    await assert.rejects(saveHfDirectory(model, to, run.group, { dtype: float16 }), isOfName);
    await saveHfDirectory(model, to, run.group, { dtype: bfloat16 });
  });
});
