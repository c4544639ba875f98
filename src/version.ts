/**
 * The version of this library, as its manifests say. A constant, because not every package holds the manifests; a test
 * holds all three to be equal.
 *
 * @module
 */

/** The version, e.g. `1.2.3`. */
export const VERSION = "0.1.0";
