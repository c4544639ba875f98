/**
 * The meeting point of ranks that MPI has joined: rank 0 listens at a free port, and MPI tells the others where, with a secret of
 * this run. So nobody sets MASTER_ADDR, MASTER_PORT or FULLYSHARD_TOKEN; where the first two are set, they are taken.
 *
 * @module
 */
import { RendezvousError } from "../../../errors.ts";
import type { Sockets } from "../../../ffi/sockets.ts";
import { isNear, type NetworkAddress, networkAddresses } from "../../../runtime/network.ts";
import { hostName } from "../../../runtime/processes.ts";
import type { HostsPlace } from "../../hosts/join.ts";
import type { JoinDeadline, MpiProcess } from "./process.ts";

/** Bytes of the text that rank 0 sends. */
const TEXT_BYTES = 2048;
const MOST_ADDRESSES = 32;
const LOOPBACK = "127.0.0.1";

/** Rank 0's word on where its store is. */
export interface StoreOffer {
  /** Name of the host; null if it may not be read. */
  readonly host: string | null;
  /** Addresses by which the host may be reached; one if it is given or all ranks are on this host. */
  readonly addresses: readonly string[];
  readonly port: number;
  readonly token: string;
  /** Ranks on rank 0's host. All ranks take it, also where their launcher said another number. */
  readonly localWorldSize: number;
}

/** The launcher's word on the meeting point. */
export interface MeetingOptions {
  /** Ranks on each host. */
  readonly localWorldSize: number;
  readonly address: string | undefined;
  readonly port: number | undefined;
}

/** The meeting point, with rank 0's listener there. */
export type MeetingPlace = HostsPlace & { readonly listener: number | undefined };

/** Tells all ranks where to meet. Collective. */
export async function meet(
  mpi: MpiProcess,
  sockets: Sockets,
  options: MeetingOptions,
  deadline: JoinDeadline,
): Promise<MeetingPlace> {
  const text = new Uint8Array(TEXT_BYTES);
  const opened = mpi.rank === 0 ? listen(mpi, sockets, options) : undefined;
  if (opened !== undefined) text.set(new TextEncoder().encode(JSON.stringify(opened.offer)));
  await mpi.broadcast(text, deadline);
  const offer: StoreOffer = JSON.parse(new TextDecoder().decode(text.subarray(0, text.indexOf(0))));
  const address = mpi.rank === 0 ? LOOPBACK : addressFor(offer, hostName(), networkAddresses());
  return {
    address,
    port: offer.port,
    token: offer.token,
    localWorldSize: offer.localWorldSize,
    listener: opened?.listener,
  };
}

function listen(
  mpi: MpiProcess,
  sockets: Sockets,
  { localWorldSize, address, port }: MeetingOptions,
): { readonly offer: StoreOffer; readonly listener: number } {
  const isOneHost = localWorldSize >= mpi.size;
  const host = address ?? (isOneHost ? LOOPBACK : "0.0.0.0");
  const listener = sockets.listen(host, port ?? 0);
  if (listener === undefined) {
    throw new RendezvousError(`Rank 0 cannot serve the store at port ${port}, which another process of this host has`);
  }
  const found = address !== undefined
    ? [address]
    : isOneHost
    ? [LOOPBACK]
    : networkAddresses().slice(0, MOST_ADDRESSES).map((one) => one.address);
  const token = crypto.getRandomValues(new Uint8Array(16)).toHex();
  const offer = { host: hostName() ?? null, addresses: found, port: sockets.portOf(listener), token, localWorldSize };
  return { offer, listener };
}

/**
 * The address by which a rank reaches rank 0's host. Some addresses are the same on all hosts, such as a container bridge's: an
 * address that this host has itself is another host's only if the hosts are one.
 */
export function addressFor(
  { host, addresses }: Pick<StoreOffer, "host" | "addresses">,
  ownHost: string | undefined,
  own: readonly NetworkAddress[],
): string {
  const [only] = addresses;
  if (addresses.length === 1 && only !== undefined) return only;
  const isMine = (address: string): boolean => own.some((one) => one.address === address);
  if (host !== null && host === ownHost && addresses.every(isMine)) return LOOPBACK;
  const others = addresses.filter((address) => !isMine(address));
  const near = others.find((address) => own.some((one) => isNear(address, one)));
  const found = near ?? others[0] ?? host;
  if (found !== null && found !== undefined) return found;
  throw new RendezvousError(
    "Rank 0's host is not known to the other ranks: set MASTER_ADDR to its address for all ranks, or give Deno --allow-sys",
  );
}
