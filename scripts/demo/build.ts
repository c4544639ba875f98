/**
 * Makes the demo's page: a folder that any web server can serve, with the library and its strict WASM kernels.
 *
 * @module
 */
import { build, type Plugin } from "esbuild";
import { cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { ISOLATION_HEADERS } from "../../src/demo/serve.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/**
 * Stands for the modules of server-side runtimes, which no page calls: their functions say so, their constants are there, and the
 * environment is empty.
 */
export const absent: Plugin = {
  name: "absent",
  setup(building) {
    building.onResolve({ filter: /^(?:node|bun):/ }, ({ path }) => ({ path, namespace: "absent", sideEffects: false }));
    building.onLoad({ filter: /.*/, namespace: "absent" }, async ({ path }) => {
      const real: Readonly<Record<string, unknown>> = await import(path);
      const lines = Object.entries(real).map(([name, value]) =>
        `const ${name}_ = ${standIn(path, name, value)};\n` +
        `export { ${name}_ as ${name} };`
      );
      const refuse = `const refuse = (name) => { throw new Error("A page has no '" + name + "' of '${path}'"); };`;
      return { contents: [refuse, ...lines].join("\n"), loader: "js" };
    });
  },
};

function standIn(path: string, name: string, value: unknown): string {
  if (name === "constants") return JSON.stringify(value);
  return path === "node:process" && name === "default" ? "{ env: {} }" : `() => refuse("${name}")`;
}

/** Writes the folder. */
export async function buildDemo(folder: string): Promise<void> {
  mkdirSync(`${folder}/pkg`, { recursive: true });
  await build({
    absWorkingDir: ROOT,
    entryPoints: { demo: "scripts/demo/page/main.ts", rank: "src/demo/rank_worker.ts" },
    outdir: folder,
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    target: "esnext",
    // Native libraries and cards, which modules load where they are asked for, and a page never asks.
    external: ["*/native/device.ts", "*/cuda/device.ts", "*/cuda/libraries.ts", "*/cuda/traits.ts", "*/file_pool.ts"],
    plugins: [absent],
    legalComments: "none",
    logLevel: "warning",
  });
  const style = ["src/report/page/page.css", "scripts/demo/page/demo.css"].map((file) =>
    readFileSync(ROOT + file, "utf8")
  );
  writeFileSync(`${folder}/demo.css`, style.join("\n"));
  cpSync(`${ROOT}scripts/demo/page/index.html`, `${folder}/index.html`);
  // Some hosts of static pages read the headers from this file.
  const headers = Object.entries(ISOLATION_HEADERS).map(([name, value]) => `  ${name}: ${value}\n`);
  writeFileSync(`${folder}/_headers`, `/*\n${headers.join("")}`);
  cpSync(`${ROOT}wasm/pkg/strict.wasm`, `${folder}/pkg/strict.wasm`);
}
