/**
 * The text of a lock file, which names the process that holds the folder. A person reads it to know which process to wait for,
 * and it decides where the kernel's lock cannot: on file systems without locks, and between hosts that do not share them.
 *
 * @module
 */
import * as z from "zod";
import type { Posix } from "../ffi/posix.ts";
import { readTextSync } from "../runtime/files.ts";
import { hostName as nameOfHost, processId, runtime } from "../runtime/processes.ts";

/** The process that holds a folder. */
export interface Holder {
  /** Process id on its host. */
  readonly pid: number;
  /** Start of the process in the kernel's ticks, which tells it from a later process of the same id. */
  readonly started?: string | undefined;
  /** The host's name. */
  readonly host?: string | undefined;
  /** Id of the kernel's boot: equal for all processes and containers of a host until it restarts. */
  readonly boot?: string | undefined;
  /** ISO time at which the folder was taken. */
  readonly since: string;
  /** `kernel`: a lock that ends with the process; `file`: the file itself is the lock. */
  readonly lock: "kernel" | "file";
  /** Different for each lock that was ever taken. */
  readonly id: string;
}

const holderSchema: z.ZodType<Holder> = z.object({
  pid: z.int(),
  started: z.string().optional(),
  host: z.string().optional(),
  boot: z.string().optional(),
  since: z.string(),
  lock: z.enum(["kernel", "file"]),
  id: z.string(),
});

/** This process as a holder. */
export function thisProcessAsHolder(lock: Holder["lock"], posix: Posix | undefined): Holder {
  return {
    pid: processId(),
    started: startOf("self", posix),
    host: hostName(posix),
    boot: kernelText("/proc/sys/kernel/random/boot_id", posix),
    since: new Date().toISOString(),
    lock,
    id: crypto.randomUUID(),
  };
}

/** The holder that a lock file names; undefined where the text is broken, e.g. because the disk was full. */
export function parseHolder(text: string): Holder | undefined {
  try {
    return holderSchema.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

/**
 * True if the holder is a process that lives.
 *
 * @returns undefined where that cannot be known: the process is on another host, or this process may not look
 */
export function livesHere(holder: Holder, posix: Posix | undefined): boolean | undefined {
  const boot = kernelText("/proc/sys/kernel/random/boot_id", posix);
  if (boot === undefined || holder.boot === undefined || holder.started === undefined) return undefined;
  if (boot !== holder.boot) return holder.host !== undefined && holder.host === hostName(posix) ? false : undefined;
  const started = startOf(String(holder.pid), posix);
  // Containers of a host share its boot, but number their processes separately.
  if (started !== holder.started && holder.host !== hostName(posix)) return undefined;
  return started === holder.started;
}

/** True if the holder is known to have this process's kernel, so that kernel locks hold for both. */
export function isOfThisHost(holder: Holder, posix: Posix | undefined): boolean | undefined {
  const boot = kernelText("/proc/sys/kernel/random/boot_id", posix);
  return boot === undefined || holder.boot === undefined ? undefined : boot === holder.boot;
}

/** A holder in words for a message. */
export function describeHolder(holder: Holder | undefined): string {
  if (holder === undefined) return "another process";
  const { pid, host, since } = holder;
  const who = pid === processId() ? `this process, ${pid},` : `process ${pid}`;
  const place = host === undefined ? "" : ` on host '${host}'`;
  return `${who}${place} (since ${since.slice(0, 19).replace("T", " ")} UTC)`;
}

function hostName(posix: Posix | undefined): string | undefined {
  return nameOfHost() ?? kernelText("/proc/sys/kernel/hostname", posix);
}

/** The 22nd field of a process's line, counted from its name, which may hold spaces. */
function startOf(pid: string, posix: Posix | undefined): string | undefined {
  const line = kernelText(`/proc/${pid}/stat`, posix);
  return line?.slice(line.lastIndexOf(")") + 2).split(" ")[19];
}

/** A small text of the kernel; undefined if it is missing or may not be read. */
function kernelText(path: string, posix: Posix | undefined): string | undefined {
  // Deno would ask the user at the terminal for all permissions.
  if (posix === undefined && runtime().name === "deno") return undefined;
  try {
    if (posix === undefined) return readTextSync(path).trim();
    const bytes = posix.readFile(path);
    return bytes === undefined ? undefined : new TextDecoder().decode(bytes).trim();
  } catch {
    return undefined;
  }
}
