/**
 * Prints lines in pieces, a status and a partial last line, so that the outputs of ranks would mix if they could.
 *
 * @module
 */

import process from "node:process";
import { encodeControlLine } from "../../../src/runtime/control_line.ts";

const rank = process.env["RANK"] ?? "";

for (let line = 0; line < 50; line++) {
  for (const piece of ["be", "gin-", `${rank}-`, `${line}-ü`, "-end\n"]) {
    process.stdout.write(piece);
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
}
process.stdout.write(`${encodeControlLine({ status: "step 3" })}\n`);
process.stderr.write("an error line\r\n");
process.stdout.write(`status ${process.env["FULLYSHARD_STATUS"] ?? "unset"}\n`);
process.stdout.write("no line break");
