/**
 * The error of a chat template that refuses its input or fails.
 *
 * @module
 */

/** A template refused its input, in its own words, or failed. The caller that renders adds the row or the file. */
export class TemplateFailure extends Error {}
