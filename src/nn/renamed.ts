/**
 * Modules that several families of models share, under different names of their parts.
 *
 * @module
 */
import { Module } from "./module.ts";

/** Names of fields in FQNs, where they are not the field's name in snake_case. */
export type FieldNames = Readonly<Record<string, string>>;

/** A module with configurable field names. */
export abstract class RenamedModule<Args extends readonly unknown[], Out> extends Module<Args, Out> {
  readonly #names: FieldNames;

  /** Takes the names that differ. */
  constructor(names: FieldNames = {}) {
    super();
    this.#names = names;
  }

  /** The name given for a field, or else its own. */
  protected override nameOf(field: string): string {
    return this.#names[field] ?? super.nameOf(field);
  }
}
