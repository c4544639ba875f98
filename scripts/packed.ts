/**
 * The npm package as `npm install` lays it out in an empty folder, for the checks that use it as its users do.
 *
 * @module
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

/** The checkout. */
export const ROOT: string = fileURLToPath(new URL("..", import.meta.url));

/** The tarball that was packed from this checkout, with what it was packed of in `dist`; undefined where it is yet to be packed. */
const packed = process.env["FULLYSHARD_PACKAGE"];

/** Makes `dist`, unless the package was packed before. */
export function buildPackage(): void {
  if (packed === undefined) execFileSync("npm", ["run", "--silent", "prepack"], { cwd: ROOT, stdio: "inherit" });
}

/** Packs the package, unless it was packed before; gives the tarball's path. */
export function packInto(folder: string): string {
  if (packed !== undefined) return packed;
  const args = ["pack", "--silent", "--pack-destination", folder];
  const name = execFileSync("npm", args, { cwd: ROOT, stdio: ["ignore", "pipe", "inherit"], encoding: "utf8" });
  return `${folder}/${name.trim().split("\n").at(-1)}`;
}

/** Installs a tarball into a folder, with the dependencies of the checkout. */
export function installInto(folder: string, tarball: string): void {
  const modules = `${folder}/node_modules`;
  mkdirSync(`${modules}/fullyshard`, { recursive: true });
  execFileSync("tar", ["-xzf", tarball, "--strip-components=1", "-C", `${modules}/fullyshard`]);
  const { dependencies }: { readonly dependencies: Readonly<Record<string, string>> } = JSON.parse(
    readFileSync(`${ROOT}package.json`, "utf8"),
  );
  for (const name of Object.keys(dependencies)) {
    mkdirSync(dirname(`${modules}/${name}`), { recursive: true });
    symlinkSync(`${ROOT}node_modules/${name}`, `${modules}/${name}`);
  }
  mkdirSync(`${modules}/.bin`);
  symlinkSync("../fullyshard/bin/fullyshard.mjs", `${modules}/.bin/fullyshard`);
}

/** A new folder of the system's temporary ones, which goes with the scope. */
export function temporaryFolder(): { readonly path: string } & Disposable {
  const path = mkdtempSync(`${tmpdir()}/fullyshard-`);
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true }) };
}
