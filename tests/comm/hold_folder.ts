/** Takes a folder, says so, and keeps it until it is told `end`, or killed. Arguments: the folder; `file` for no lock of the kernel. @module */
import process from "node:process";
import { lockFolder } from "../../src/locks/folder_lock.ts";

const [folder = "", kind] = process.argv.slice(2);
try {
  const lock = await lockFolder(folder, { kernel: kind !== "file" });
  process.stdout.write("held\n");
  process.stdin.once("data", () => {
    lock[Symbol.dispose]();
    process.exit(0);
  });
} catch (error) {
  process.stdout.write(`refused: ${error instanceof Error ? error.message : String(error)}\n`);
}
