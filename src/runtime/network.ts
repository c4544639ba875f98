/**
 * Addresses of this host's network interfaces.
 *
 * Permission on Deno: `--allow-sys=networkInterfaces`; without it there are none.
 *
 * @module
 */
import * as os from "node:os";
import { isPermitted } from "./permissions.ts";

/** An address of IPv4 that other hosts may reach. */
export interface NetworkAddress {
  readonly address: string;
  readonly netmask: string;
}

/** This host's addresses of IPv4, without those for itself alone, in the order of its interfaces. */
export function networkAddresses(): readonly NetworkAddress[] {
  if (!isPermitted({ name: "sys", kind: "networkInterfaces" })) return [];
  return Object.values(os.networkInterfaces()).flatMap((list) =>
    (list ?? []).flatMap(({ family, internal, address, netmask }) =>
      family === "IPv4" && !internal ? [{ address, netmask }] : []
    )
  );
}

/** True if two addresses of IPv4 lie in one network. */
export function isNear(address: string, { address: own, netmask }: NetworkAddress): boolean {
  const [a, b, mask] = [address, own, netmask].map(numberOf);
  return a !== undefined && b !== undefined && mask !== undefined && ((a ^ b) & mask) === 0;
}

/** The 32 bits of an address such as `10.0.0.1`. */
function numberOf(address: string): number | undefined {
  const parts = address.split(".").map(Number);
  if (parts.length !== 4 || parts.some((part) => !Number.isInteger(part) || part < 0 || part > 255)) return undefined;
  return parts.reduce((bits, part) => (bits << 8) | part, 0);
}
