/**
 * Text that every clone has after `npm install`: TypeScript's own declarations of the language's and the browser's API,
 * about 3.8 MB in 108 files.
 *
 * @module
 */

/**
 * A pattern of those files. TypeScript keeps them in the package of the platform it was installed for, which the pattern
 * leaves open.
 */
export function typescriptLib(): string {
  return decodeURIComponent(
    new URL("../node_modules/@typescript/typescript-*/lib/lib*.d.ts", import.meta.url).pathname,
  );
}
