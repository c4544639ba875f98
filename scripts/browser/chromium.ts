/**
 * A Chromium of this machine: named by FULLYSHARD_CHROMIUM, or on PATH.
 *
 * @module
 */
import { accessSync, constants } from "node:fs";
import process from "node:process";

const NAMES = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"];

/** Path of a Chromium; undefined if there is none. @throws {Error} if the variable names what cannot be run */
export function findChromium(): string | undefined {
  const named = process.env["FULLYSHARD_CHROMIUM"];
  if (named !== undefined && named !== "") {
    if (canRun(named)) return named;
    throw new Error(`FULLYSHARD_CHROMIUM: expected the path of a Chromium, got '${named}', which cannot be run`);
  }
  const folders = (process.env["PATH"] ?? "").split(":").filter((folder) => folder !== "");
  return folders.flatMap((folder) => NAMES.map((name) => `${folder}/${name}`)).find(canRun);
}

function canRun(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
