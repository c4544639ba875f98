/**
 * Replaces the file named by its argument by 64 KiB and prints the error: a child of `files_test.ts`, run under a limit
 * of the file size.
 *
 * @module
 */
import { FileError } from "../../../src/errors.ts";
import { replaceFile } from "../../../src/runtime/files.ts";
import { scriptArguments } from "../../../src/runtime/processes.ts";
import { terminal } from "../../../src/runtime/terminal.ts";

try {
  replaceFile(scriptArguments()[0] ?? "", new Uint8Array(65536));
} catch (error) {
  if (!(error instanceof FileError)) throw error;
  terminal("stdout").write(`${error.name} ${error.code} ${error.message}\n`);
}
