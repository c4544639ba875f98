/**
 * Kinds of values that several sections of the configuration have.
 *
 * @module
 */
import * as z from "zod";

/** A whole number from 0. */
export const count: z.ZodInt = z.int().nonnegative();
/** A whole number from 1. */
export const size: z.ZodInt = z.int().positive();
/** A path. It may not be empty, as an unset variable of a shell would be. */
export const path: z.ZodString = z.string().regex(/./s, "a path").meta({ shown: "path" });
