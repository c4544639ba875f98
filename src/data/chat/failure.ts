/**
 * What a chat template refuses or cannot do.
 *
 * @module
 */

/** What a template refuses, in its own words, or what fails in it. Who renders names the row or the file. */
export class TemplateFailure extends Error {}
