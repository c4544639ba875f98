/**
 * A rank that saves after SIGHUP, as a trainer does: it goes on printing meanwhile, and names a file of its own when it is done.
 *
 * @module
 */

import { writeFileSync } from "node:fs";
import process from "node:process";

const [folder = "."] = process.argv.slice(2);
process.on("SIGHUP", () => {
  setTimeout(() => {
    writeFileSync(`${folder}/saved-${process.env["RANK"]}`, "");
    process.exit(0);
  }, 1500);
});
writeFileSync(`${folder}/started-${process.env["RANK"]}`, String(process.pid));
setInterval(() => void process.stdout.write("a line\n"), 20);
