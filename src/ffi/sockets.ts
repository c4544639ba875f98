/**
 * Streams between hosts, over the C library: nothing here waits but {@link Sockets.poll}, so a rank that computes may look
 * at its stream at any time, without an event loop. What a network does, such as a peer that is gone, is a result;
 * mistakes are errors. Linux only.
 *
 * @module
 */
import { at } from "../at.ts";
import { RendezvousError } from "../errors.ts";
import * as c from "./bindings/sockets.ts";
import { errnoName, errnoText } from "../runtime/errno.ts";
import { openLibrary, type OpenLibraryOptions } from "./mod.ts";
import type { Library } from "./types.ts";

/** The address of one end of a stream. */
export interface SocketAddress {
  readonly family: number;
  /** `struct sockaddr`. */
  readonly bytes: Uint8Array;
}

/**
 * The result of {@link Sockets.send} and {@link Sockets.receive}: the number of bytes, 0 for none now, or the reason of the
 * stream's end.
 */
export type Moved = { readonly count: number } | StreamEnd;

/** The end of a stream. */
export interface StreamEnd {
  /** Its reason. */
  readonly end: string;
  /** True if the other host does not answer, so the process there may live on. */
  readonly isUnreachable?: boolean;
}

/** A stream to look at, and what for. */
export interface Watched {
  readonly descriptor: number;
  readonly wantsOutput: boolean;
}

/** The operations that a stream can do at once. */
export interface Readiness {
  readonly input: boolean;
  readonly output: boolean;
}

/** What the other host's kernel has acknowledged of a stream. */
export interface Answers {
  /** True if bytes are under way. Bytes wait here, and are not under way, while the other end has no room for them. */
  readonly isUnderWay: boolean;
  /** Time since anything came that acknowledges bytes, new or again. */
  readonly silentMs: number;
  /** Bytes that it has acknowledged, or one more. */
  readonly bytes: number;
}

const NOTHING: Readiness = { input: false, output: false };

/** Seconds after which a stream whose other end does not answer any more is over. */
export const SILENCE_SECONDS = 20;

const SOCKET_TYPE: number = c.SOCK_STREAM | c.SOCK_NONBLOCK | c.SOCK_CLOEXEC;

/** Errors of a stream whose other end was not heard of. */
const UNREACHABLE: readonly string[] = ["ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"];

/** Errors that pass: the call is to be made again. */
const AGAIN: readonly string[] = ["EAGAIN", "EINTR"];

/** The C library's sockets. */
export class Sockets {
  readonly #libc: Library<typeof c.SOCKET_BINDINGS>;
  #pollfds: DataView = new DataView(new ArrayBuffer(c.POLLFD.byteLength * 8));

  constructor(libc: Library<typeof c.SOCKET_BINDINGS>) {
    this.#libc = libc;
  }

  /**
   * Looks a host up. May take as long as the network's servers of names do.
   *
   * @throws {RendezvousError} if there is no such host
   */
  resolve(host: string, port: number): SocketAddress {
    const { symbols, provider } = this.#libc;
    const hints = provider.struct(c.ADDRINFO);
    hints.set("ai_socktype", c.SOCK_STREAM);
    const found = provider.out("address");
    const status = symbols.getaddrinfo(host, String(port), hints, found);
    if (status !== 0) {
      throw new RendezvousError(
        `Cannot find host '${host}': ${
          symbols.gai_strerror(status)
        }. Give an address or name of rank 0's host that every ` +
          "host can reach, as MASTER_ADDR or '--master-addr'",
      );
    }
    const first = provider.struct(c.ADDRINFO);
    first.bytes.set(new Uint8Array(provider.viewOf(found.value, c.ADDRINFO.byteLength)));
    const bytes = new Uint8Array(provider.viewOf(first.get("ai_addr"), first.get("ai_addrlen"))).slice();
    symbols.freeaddrinfo(found.value);
    return { family: first.get("ai_family"), bytes };
  }

  /**
   * Listens: at a loopback address for this host alone, else at all addresses of this host, as the one that other hosts
   * know may be a router's, and a host's own name is often looked up as a loopback address.
   *
   * @returns the descriptor, or undefined if the port is taken
   */
  listen(host: string, port: number): number | undefined {
    const isPrivate = isLoopback(host);
    const address = isPrivate ? this.resolve(host, port) : anyAddress(port);
    const { symbols } = this.#libc;
    let { bytes } = address;
    let descriptor = symbols.socket(address.family, SOCKET_TYPE, 0);
    if (descriptor < 0) {
      bytes = anyAddress(port, c.AF_INET).bytes;
      descriptor = this.#make(c.AF_INET);
    } else if (!isPrivate) this.#set(descriptor, c.IPPROTO_IPV6, c.IPV6_V6ONLY, 0);
    this.#set(descriptor, c.SOL_SOCKET, c.SO_REUSEADDR, 1);
    if (symbols.bind(descriptor, bytes, bytes.length) === 0 && symbols.listen(descriptor, 128) === 0) return descriptor;
    this.close(descriptor);
    return undefined;
  }

  /** The port of a listener. */
  portOf(descriptor: number): number {
    const bytes = new Uint8Array(c.SOCKADDR_BYTES);
    this.#libc.symbols.getsockname(descriptor, bytes, Uint32Array.of(bytes.length));
    return new DataView(bytes.buffer).getUint16(2);
  }

  /** Takes a stream that somebody has opened, with where it is from; undefined if there is none. */
  accept(listener: number): { readonly descriptor: number; readonly from: string } | undefined {
    const bytes = new Uint8Array(c.SOCKADDR_BYTES);
    const flags = SOCKET_TYPE & ~c.SOCK_STREAM;
    const descriptor = this.#libc.symbols.accept4(listener, bytes, Uint32Array.of(bytes.length), flags);
    if (descriptor < 0) return undefined;
    this.#prepare(descriptor);
    return { descriptor, from: textOf(bytes) };
  }

  /** Begins to open a stream; {@link connected} tells what came of it. @returns the descriptor, or why there is none */
  connect(address: SocketAddress): number | string {
    const descriptor = this.#make(address.family);
    const result = this.#libc.symbols.connect(descriptor, address.bytes, address.bytes.length);
    if (result === 0 || ["EINPROGRESS", "EINTR"].includes(nameOf(result))) {
      this.#prepare(descriptor);
      return descriptor;
    }
    this.close(descriptor);
    return errnoText(-result);
  }

  /** True if a stream is open, false while it is not open yet; a text is the reason why it will not be. */
  connected(descriptor: number): boolean | string {
    const [state] = this.poll([{ descriptor, wantsOutput: true }], 0);
    if (state?.output !== true) return false;
    const error = new Int32Array(1);
    this.#libc.symbols.getsockopt(descriptor, c.SOL_SOCKET, c.SO_ERROR, error, Uint32Array.of(4));
    const number = at(error, 0, "error of socket");
    return number === 0 ? true : errnoText(number);
  }

  /** Sends what the stream takes at once. */
  send(descriptor: number, bytes: Uint8Array): Moved {
    return moved(this.#libc.symbols.send(descriptor, bytes, bytes.length, c.MSG_NOSIGNAL));
  }

  /** Receives the bytes that have arrived. */
  receive(descriptor: number, into: Uint8Array): Moved {
    const result = this.#libc.symbols.recv(descriptor, into, into.length, 0);
    return result === 0 ? { end: "it was closed" } : moved(result);
  }

  /** What the other host's kernel has acknowledged of a stream. */
  answers(descriptor: number): Answers {
    const { byteLength, unacked, lastAckRecv, bytesAcked } = c.TCP_INFO_STRUCT;
    const info = new DataView(new ArrayBuffer(byteLength));
    this.#libc.symbols.getsockopt(descriptor, c.IPPROTO_TCP, c.TCP_INFO, info, Uint32Array.of(byteLength));
    return {
      isUnderWay: info.getUint32(unacked, true) > 0,
      silentMs: info.getUint32(lastAckRecv, true),
      bytes: Number(info.getBigUint64(bytesAcked, true)),
    };
  }

  /** Waits until a stream has input, or takes output where that is wanted; at most `timeoutMs`. */
  poll(watched: readonly Watched[], timeoutMs: number): readonly Readiness[] {
    const { byteLength, fd, events, revents } = c.POLLFD;
    if (this.#pollfds.byteLength < watched.length * byteLength) {
      this.#pollfds = new DataView(new ArrayBuffer(2 * watched.length * byteLength));
    }
    const entries = this.#pollfds;
    for (const [index, { descriptor, wantsOutput }] of watched.entries()) {
      entries.setInt32(index * byteLength + fd, descriptor, true);
      entries.setInt16(index * byteLength + events, c.POLLIN | (wantsOutput ? c.POLLOUT : 0), true);
      entries.setInt16(index * byteLength + revents, 0, true);
    }
    this.#libc.symbols.poll(entries, watched.length, Math.ceil(timeoutMs));
    return watched.map((_, index) => {
      const ready = entries.getInt16(index * byteLength + revents, true);
      if (ready === 0) return NOTHING;
      // An error or a hang-up shows when the stream is read or written.
      const isOver = (ready & ~(c.POLLIN | c.POLLOUT)) !== 0;
      return { input: isOver || (ready & c.POLLIN) !== 0, output: isOver || (ready & c.POLLOUT) !== 0 };
    });
  }

  /** Closes a stream or a listener. */
  close(descriptor: number): void {
    this.#libc.symbols.close(descriptor);
  }

  #make(family: number): number {
    const descriptor = this.#libc.symbols.socket(family, SOCKET_TYPE, 0);
    if (descriptor < 0) {
      throw new RendezvousError(`This host cannot make streams of that family: ${errnoText(-descriptor)}`);
    }
    return descriptor;
  }

  /** Small messages go at once, and a host that is gone is found out. */
  #prepare(descriptor: number): void {
    this.#set(descriptor, c.IPPROTO_TCP, c.TCP_NODELAY, 1);
    this.#set(descriptor, c.SOL_SOCKET, c.SO_KEEPALIVE, 1);
    this.#set(descriptor, c.IPPROTO_TCP, c.TCP_KEEPIDLE, 5);
    this.#set(descriptor, c.IPPROTO_TCP, c.TCP_KEEPINTVL, 5);
    this.#set(descriptor, c.IPPROTO_TCP, c.TCP_KEEPCNT, 3);
    this.#set(descriptor, c.IPPROTO_TCP, c.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000);
    // A few bytes that are lost are sent again soon, six times: by default each pause is twice as long as the one before.
    this.#set(descriptor, c.IPPROTO_TCP, c.TCP_THIN_LINEAR_TIMEOUTS, 1);
  }

  #set(descriptor: number, level: number, option: number, value: number): void {
    this.#libc.symbols.setsockopt(descriptor, level, option, Int32Array.of(value), 4);
  }
}

/** Opens the sockets of this process' C library. @throws {LibraryNotFoundError} where there is none that is known */
export async function openSockets(options: OpenLibraryOptions = {}): Promise<Sockets> {
  return new Sockets(await openLibrary(c.SOCKETS, options));
}

/** The name of the error that a negative result is. */
function nameOf(result: number): string {
  return errnoName(-result) ?? "";
}

function moved(result: number): Moved {
  if (result >= 0) return { count: result };
  const name = nameOf(result);
  return AGAIN.includes(name) ? { count: 0 } : { end: errnoText(-result), isUnreachable: UNREACHABLE.includes(name) };
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127(\.\d+){3}$/.test(host);
}

/** All addresses of this host; for IPv6, the addresses of IPv4 too. */
function anyAddress(port: number, family: number = c.AF_INET6): SocketAddress {
  const bytes = new Uint8Array(c.SOCKADDR_BYTES);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, family, true);
  view.setUint16(2, port);
  return { family, bytes };
}

/** An address in words. */
function textOf(bytes: Uint8Array): string {
  const view = new DataView(bytes.buffer);
  const port = view.getUint16(2);
  if (view.getUint16(0, true) === c.AF_INET) return `${bytes.subarray(4, 8).join(".")}:${port}`;
  if (isMapped(bytes)) return `${bytes.subarray(20, 24).join(".")}:${port}`;
  const words = Array.from({ length: 8 }, (_, i) => view.getUint16(8 + 2 * i).toString(16));
  return `[${words.join(":")}]:${port}`;
}

/** True if an address of IPv6 stands for an address of IPv4. */
function isMapped(bytes: Uint8Array): boolean {
  return bytes.subarray(8, 18).every((byte) => byte === 0) && bytes[18] === 255 && bytes[19] === 255;
}
