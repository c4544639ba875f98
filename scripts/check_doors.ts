/**
 * Trains a step through the doors that need no package: in Deno by URL from a server on this machine, in an empty folder without
 * an import map; and from a bundle for browsers of tensors, modules, parallelisms, loopback and the CPU device, in which no
 * module of a server-side runtime may be left.
 *
 * @module
 */
import { build } from "esbuild";
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { buildPackage } from "./packed.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
const deno = process.env["FULLYSHARD_DENO"] ?? "deno";
const folder = mkdtempSync(`${tmpdir()}/fullyshard-doors-`);
try {
  buildPackage();
  process.stdout.write(`by URL: ${await trainByUrl()}\n`);
  process.stdout.write(`in a browser's bundle: ${await trainBundled()}\n`);
} finally {
  rmSync(folder, { recursive: true });
}

/** The last line of a script's output: the losses of two steps. */
async function losses(args: readonly string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(deno, args, { cwd: folder, encoding: "utf8" });
  const line = stdout.trim().split("\n").at(-1) ?? "";
  const [first = NaN, second = NaN] = line.split(" ").map(Number);
  if (!(second < first)) throw new Error(`expected two losses that fall, got '${stdout}'`);
  return line;
}

async function trainByUrl(): Promise<string> {
  const server = createServer((request, response) => {
    try {
      const bytes = readFileSync(`${root}dist/deno${request.url}`);
      const isWasm = request.url?.endsWith(".wasm") === true;
      response.writeHead(200, { "content-type": isWasm ? "application/wasm" : "application/typescript" }).end(bytes);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the server has no port");
  const host = `127.0.0.1:${address.port}`;
  writeFileSync(
    `${folder}/train.ts`,
    `import { fullyShard, launch, openModel, SGD, textData } from "http://${host}/mod.ts";
    await using run = await launch();
    const sizes = { hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
    const model = await openModel(run, { model_type: "llama", vocab_size: 257, ...sizes });
    fullyShard(model, { mesh: run.mesh });
    await model.load();
    const data = await textData(run, model, "train.ts", { sequenceLength: 64, batch: 4 });
    const optimizer = new SGD(model.parameters(), { learningRate: 0.5 });
    const batch = await data.next();
    const losses: number[] = [];
    for (let i = 0; i < 2; i++) {
      optimizer.zeroGrad();
      losses.push(run.backward(model, batch).item());
      optimizer.step();
    }
    console.log(...losses);
    `,
  );
  try {
    return await losses(["run", "-A", "--no-config", "train.ts"]);
  } finally {
    server.close();
  }
}

async function trainBundled(): Promise<string> {
  const { metafile } = await build({
    absWorkingDir: root,
    stdin: {
      contents: `
        import { fullyShard } from "./src/fsdp/fully_shard.ts";
        import { openDevice } from "./src/device/registry.ts";
        import { createLoopbackWorld, openLoopback } from "./src/comm/data/loopback.ts";
        import { replicate } from "./src/ddp/replicate.ts";
        import { initializeParameters } from "./src/nn/initialize.ts";
        import { Linear } from "./src/nn/linear.ts";
        import { clipGradNorm } from "./src/optim/clip.ts";
        import { AdamW } from "./src/optim/adamw.ts";
        import { tensor } from "./src/tensor/create.ts";
        const device = await openDevice("cpu", { memoryBytes: 2 ** 25 });
        const group = openLoopback(createLoopbackWorld(1), 0, device);
        const losses = [];
        for (const parallelize of [fullyShard, replicate]) {
          const model = new Linear(device, 8, 1);
          parallelize(model, { mesh: group });
          initializeParameters(model, 0);
          const optimizer = new AdamW(model.parameters(), { learningRate: 0.01 });
          losses.length = 0;
          for (let i = 0; i < 2; i++) {
            optimizer.zeroGrad();
            const loss = model.call(tensor(device, [1, 2, 3, 4, 5, 6, 7, 8], { shape: [1, 8] })).square().sum();
            loss.backward();
            clipGradNorm(model.parameters(), 1);
            optimizer.step();
            losses.push(loss.item());
          }
        }
        console.log(...losses);
      `,
      resolveDir: root,
    },
    outfile: `${folder}/bundle.js`,
    bundle: true,
    format: "esm",
    platform: "browser",
    target: "esnext",
    // Native libraries and files, which a browser does not have: dynamic imports load these modules.
    external: ["node:*", "bun:*", "*/native/device.ts", "*/cuda/device.ts", "*/cuda/libraries.ts", "*/file_pool.ts"],
    metafile: true,
    logLevel: "warning",
  });
  const found = Object.entries(metafile.inputs).flatMap(([file, { imports }]) =>
    imports.filter(({ path }) => /^(node|bun):/.test(path)).map(({ path }) => `${file} loads ${path}`)
  );
  if (found.length > 0) throw new Error(`no browser has these:\n${found.join("\n")}`);
  cpSync(`${root}wasm/pkg`, `${folder}/pkg`, { recursive: true });
  return await losses(["run", "--no-config", "--no-prompt", `--allow-read=${folder}`, "bundle.js"]);
}
