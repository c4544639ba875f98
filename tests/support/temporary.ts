/**
 * A directory of a test's own, removed when the test is done.
 *
 * @module
 */
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";

/** A directory that lives as long as a `using` declaration. */
export interface TemporaryDirectory extends Disposable {
  /** The directory. */
  readonly path: string;
  /** Path of a file in it. */
  file(name: string): string;
  /** Writes a file in it, making directories; returns its path. */
  write(name: string, contents: string | Uint8Array): string;
}

/** Makes an empty directory. */
export function temporaryDirectory(): TemporaryDirectory {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "fullyshard-test-"));
  const file = (name: string): string => path.join(directory, name);
  return {
    path: directory,
    file,
    write(name, contents): string {
      fs.mkdirSync(path.dirname(file(name)), { recursive: true });
      fs.writeFileSync(file(name), contents);
      return file(name);
    },
    [Symbol.dispose]: () => fs.rmSync(directory, { recursive: true, force: true }),
  };
}
