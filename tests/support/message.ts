/** The error of a call, as text. @module */

/** `Name: message` of what a call throws; empty if it does not. */
export function messageOf(call: () => unknown): string {
  try {
    call();
    return "";
  } catch (error) {
    return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  }
}
