/** Models to fine-tune that are damaged or do not fit, as a user meets them. @module */
import assert from "node:assert/strict";
import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, test } from "node:test";
import { usualFirst } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "../train/kept_ranks.ts";
import { type Ended, flagsIn, run } from "../train/runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());

/** A tensor in a header. */
interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** A safetensors file, taken apart. */
interface Parts {
  readonly header: Record<string, Entry>;
  readonly data: Uint8Array;
}

function takeApart(bytes: Uint8Array): Parts {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header: Record<string, Entry> = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  delete header["__metadata__"];
  return { header, data: bytes.subarray(8 + length) };
}

function putTogether({ header, data }: Parts): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const bytes = new Uint8Array(8 + text.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  bytes.set(data, 8 + text.length);
  return bytes;
}

function entryOf(header: Record<string, Entry>, name: string): Entry {
  const entry = header[name];
  assert.ok(entry !== undefined, `there is no ${name}`);
  return entry;
}

/** Trains a model of two steps; its folder is `model`. */
async function trainModel(folder: TemporaryDirectory): Promise<string> {
  const { code, stderr } = await kept.run(flagsIn(folder, "--steps", "2"), { ranks: 1 });
  assert.equal(code, 0, stderr);
  cpSync(folder.file("out/model"), folder.file("model"), { recursive: true });
  return folder.file("model");
}

const damages:
  readonly (readonly [what: string, damage: (bytes: Uint8Array) => Uint8Array, said: readonly RegExp[]])[] = [
    ["is cut off", (bytes) => bytes.subarray(0, bytes.length - 1000), [/model\.safetensors: .*bytes/]],
    ["is cut off in its header", (bytes) => bytes.subarray(0, 100), [/model\.safetensors: .*header/i]],
    ["says that its header is huge", (bytes) => {
      const copy = Uint8Array.from(bytes);
      new DataView(copy.buffer).setBigUint64(0, 2n ** 40n, true);
      return copy;
    }, [/model\.safetensors: .*header.*1099511627776/i]],
    ["has tensors that overlap", (bytes) => {
      const { header, data } = takeApart(bytes);
      const [first, second] = Object.values(header);
      if (first !== undefined && second !== undefined) {
        const length = second.data_offsets[1] - second.data_offsets[0];
        const start = first.data_offsets[0] + 4;
        second.data_offsets = [start, start + length];
      }
      return putTogether({ header, data });
    }, [/model\.safetensors: .*(overlap|offset|gap)/i]],
    ["has a dtype that is none", (bytes) => {
      const { header, data } = takeApart(bytes);
      entryOf(header, "model.norm.weight").dtype = "F13";
      return putTogether({ header, data });
    }, [/model\.safetensors: .*'model\.norm\.weight'.*F13/]],
    ["holds integers", (bytes) => {
      const { header, data } = takeApart(bytes);
      entryOf(header, "model.norm.weight").dtype = "I32";
      return putTogether({ header, data });
    }, [/model\.norm\.weight.*I32/]],
    ["lacks, adds and reshapes tensors", (bytes) => {
      const { header, data } = takeApart(bytes);
      const missing = ["model.layers.0.mlp.gate_proj.weight", "model.layers.1.self_attn.q_proj.weight"];
      for (const name of missing) {
        header[name.replace("weight", "kernel")] = entryOf(header, name);
        delete header[name];
      }
      entryOf(header, "model.layers.1.mlp.down_proj.weight").shape.reverse();
      return putTogether({ header, data });
    }, [
      /model\.layers\.0\.mlp\.gate_proj\.weight/,
      /model\.layers\.1\.self_attn\.q_proj\.weight/,
      /model\.layers\.0\.mlp\.gate_proj\.kernel/,
      /model\.layers\.1\.self_attn\.q_proj\.kernel/,
      /model\.layers\.1\.mlp\.down_proj\.weight.*\[16, 32\].*\[32, 16\]|\[32, 16\].*\[16, 32\]/,
    ]],
  ];

function isRefused(ended: Ended, said: readonly RegExp[]): void {
  assert.equal(ended.code, 1, ended.stdout + ended.stderr);
  for (const pattern of said) assert.match(ended.stderr, pattern);
  assert.doesNotMatch(ended.stdout, /step 1\//);
}

test(
  "a model folder is fine-tuned, and one that is damaged or does not fit is refused",
  { timeout: 120_000 },
  async (context) => {
    using folder = temporaryDirectory();
    const model = await trainModel(folder);
    const file = `${model}/model.safetensors`;
    const whole = Uint8Array.from(readFileSync(file));
    const out = ["--out", folder.file("tuned"), "--overwrite"];
    const flags = flagsIn(folder, "--steps", "2", "--model", model, ...out);

    await context.test("whole", async () => {
      const tuned = await kept.run(flags);
      assert.equal(tuned.code, 0, tuned.stderr);
    });
    for (const [what, damage, said] of usualFirst(damages, (place) => place % 3 === 0)) {
      await context.test(`a file that ${what}`, async () => {
        writeFileSync(file, damage(whole));
        isRefused(await kept.run(flags), [...said, /^error \[rank 0\] CheckpointError: /m]);
      });
    }
    await context.test("no file at all", async () => {
      rmSync(file);
      isRefused(await run(flags), [/fullyshard: ranks? 0[^:]*: \w+Error: .*model/]);
    });
    await context.test("a family that is not known", async () => {
      writeFileSync(`${model}/config.json`, '{"model_type": "mamba"}');
      isRefused(await kept.run(flags), [/^error \[rank 0\] UnsupportedError: .*mamba.*llama/m]);
    });
    await context.test("a folder that is not there", async () => {
      const ended = await kept.run([...flags, "--model", folder.file("nowhere")]);
      isRefused(ended, [/^error \[rank 0\] FileError: Cannot read '.*nowhere\/config\.json'/m]);
    });
  },
);
