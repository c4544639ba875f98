/**
 * The part of the C library that makes streams between hosts: table and constants, no logic (that is `src/ffi/sockets.ts`).
 * Constants and structs are Linux's, the same on x86-64 and arm64.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";
import { LIBC } from "./libc.ts";

export const AF_INET = 2;
export const AF_INET6 = 10;
export const SOCK_STREAM = 1;
export const SOCK_NONBLOCK = 0o4000;
export const SOCK_CLOEXEC = 0o2000000;
export const IPPROTO_TCP = 6;

export const SOL_SOCKET = 1;
export const SO_REUSEADDR = 2;
export const SO_ERROR = 4;
export const SO_KEEPALIVE = 9;
export const IPPROTO_IPV6 = 41;
export const IPV6_V6ONLY = 26;
export const TCP_NODELAY = 1;
export const TCP_KEEPIDLE = 4;
export const TCP_KEEPINTVL = 5;
export const TCP_KEEPCNT = 6;
export const TCP_INFO = 11;
export const TCP_THIN_LINEAR_TIMEOUTS = 16;
export const TCP_USER_TIMEOUT = 18;

/** First bytes of `struct tcp_info`, and the byte offsets of its members. */
export const TCP_INFO_STRUCT = { byteLength: 128, unacked: 24, lastAckRecv: 56, bytesAcked: 120 } as const;

export const MSG_NOSIGNAL = 0x4000;

export const POLLIN = 1;
export const POLLOUT = 4;

/** Bytes of `struct pollfd`, and the byte offsets of its members. */
export const POLLFD = { byteLength: 8, fd: 0, events: 4, revents: 6 } as const;

/** The members of `struct addrinfo` that are read, or set in a query. */
export const ADDRINFO = {
  name: "addrinfo",
  byteLength: 48,
  fields: {
    ai_family: { offset: 4, type: "i32" },
    ai_socktype: { offset: 8, type: "i32" },
    ai_addrlen: { offset: 16, type: "u32" },
    ai_addr: { offset: 24, type: "address" },
  },
} as const;

/** Bytes of the longest socket address that is used: `struct sockaddr_in6`. */
export const SOCKADDR_BYTES = 28;

/** Functions of the C library. */
export const SOCKET_BINDINGS = {
  // A host may be without IPv6.
  socket: { args: ["i32", "i32", "i32"], result: "i32", check: { errno: ["EAFNOSUPPORT"] } },
  bind: { args: ["i32", "buffer", "u32"], result: "i32", check: { errno: ["EADDRINUSE"] } },
  listen: { args: ["i32", "i32"], result: "i32", check: { errno: ["EADDRINUSE"] } },
  // A peer that has given up, or too many open files, is no failure of the listener.
  accept4: {
    args: ["i32", "buffer", "buffer", "i32"],
    result: "i32",
    check: {
      errno: ["EAGAIN", "EINTR", "ECONNABORTED", "EMFILE", "ENFILE", "EPERM", "EPROTO", "ENETDOWN", "EHOSTUNREACH"],
    },
  },
  connect: {
    args: ["i32", "buffer", "u32"],
    result: "i32",
    check: {
      errno: [
        "EINPROGRESS",
        "EINTR",
        "EADDRNOTAVAIL",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTUNREACH",
        "ENETUNREACH",
        "ETIMEDOUT",
      ],
    },
  },
  getsockopt: { args: ["i32", "i32", "i32", "buffer", "buffer"], result: "i32", check: "errno" },
  setsockopt: { args: ["i32", "i32", "i32", "buffer", "u32"], result: "i32", check: "errno" },
  getsockname: { args: ["i32", "buffer", "buffer"], result: "i32", check: "errno" },
  send: {
    args: ["i32", "buffer", "usize", "i32"],
    result: "i64",
    check: { errno: ["EAGAIN", "EINTR", "ECONNRESET", "EPIPE", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"] },
  },
  recv: {
    args: ["i32", "buffer", "usize", "i32"],
    result: "i64",
    check: { errno: ["EAGAIN", "EINTR", "ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH"] },
  },
  poll: { args: ["buffer", "u64", "i32"], result: "i32", check: { errno: ["EINTR"] } },
  close: { args: ["i32"], result: "i32", check: "errno" },
  getaddrinfo: {
    args: ["cstring", "cstring", { pointer: "addrinfo" }, { out: "address" }],
    result: "i32",
    check: "none",
  },
  freeaddrinfo: { args: ["address"], result: "void", check: "none" },
  gai_strerror: { args: ["i32"], result: "cstring", check: "none" },
} as const;

/** The C library of this process. */
export const SOCKETS: LibrarySpec<typeof SOCKET_BINDINGS> = {
  ...LIBC,
  bindings: SOCKET_BINDINGS,
  gives: "streams between the hosts of a run",
};
