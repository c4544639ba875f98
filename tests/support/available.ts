/** Devices that are not to be had everywhere. @module */
import type { Device } from "../../src/device/device.ts";
import { openNativeDevice } from "../../src/device/native/device.ts";
import { LibraryNotFoundError, UnsupportedError } from "../../src/errors.ts";

/** A device; undefined where it is not to be had here. Whatever else is wrong is an error. */
export async function available<D extends Device>(opening: Promise<D>): Promise<D | undefined> {
  try {
    return await opening;
  } catch (error) {
    if (error instanceof LibraryNotFoundError || error instanceof UnsupportedError) return undefined;
    throw error;
  }
}

/** The reason by which a test that needs native kernels is skipped; false where they work. */
export async function skipWithoutNative(): Promise<string | false> {
  const device = await available(openNativeDevice({ memoryBytes: 2 ** 24 }));
  device?.dispose();
  return device === undefined && "native kernels do not run here";
}
