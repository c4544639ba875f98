/**
 * Limits on processes and threads of this host: `pids.max` of this process's control groups, as containers set it, and the user's
 * own (`ulimit -u`). A runtime that gets no more threads does not fail: it sleeps forever.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { UnsupportedError } from "../errors.ts";
import { countOf } from "../words.ts";

/** Threads that a runtime needs to start; both runtimes have a few more in a training. */
const THREADS_OF_RANK = 6;

/** A limit, with the present number of processes and threads. */
export interface ProcessLimit {
  readonly name: string;
  readonly most: number;
  readonly used: number;
}

// Deno lets only a process with all permissions read /proc. A shell may, and its builtin commands start no process.
const script = `
while IFS=: read -r number names path; do
  case ",$names," in ,,) root=/sys/fs/cgroup;; *,pids,*) root=/sys/fs/cgroup/pids;; *) continue;; esac
  folder=$root$path
  while :; do
    if [ -r "$folder/pids.max" ]; then
      read -r most < "$folder/pids.max"; read -r used < "$folder/pids.current"; echo "cgroup $most $used"
    fi
    case "$folder" in "$root"/?*) folder=\${folder%/*};; *) break;; esac
  done
done < /proc/self/cgroup
user=0
while read -r key id rest; do [ "$key" = Uid: ] && user=$id; done < /proc/self/status
[ "$user" = 0 ] && exit 0
most=unlimited
while read -r first second soft rest; do [ "$first $second" = "Max processes" ] && most=$soft; done < /proc/self/limits
[ "$most" = unlimited ] && exit 0
[ "$most" -gt 4096 ] && exit 0
used=0
for status in /proc/[0-9]*/status; do
  own=0
  while read -r key value rest; do
    case $key in Uid:) [ "$value" = "$user" ] && own=1;; Threads:) [ $own = 1 ] && used=$((used + value)); break;; esac
  done < "$status"
done 2>/dev/null
echo "user $most $used"
`;

/** The limits that the system reports for this process. */
export function processLimits(): readonly ProcessLimit[] {
  const { stdout } = spawnSync("/bin/sh", ["-c", script], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  return (stdout ?? "").split("\n").flatMap((line) => {
    const [kind, most = "", used = ""] = line.split(" ");
    if (!/^\d+$/.test(most) || !/^\d+$/.test(used)) return [];
    const name = kind === "user" ? "'ulimit -u' of this user" : "pids.max of this container or control group";
    return [{ name, most: Number(most), used: Number(used) }];
  });
}

/**
 * Refuses to start ranks if the limits leave too few processes and threads.
 *
 * @throws {UnsupportedError} naming the limit, and the number that is needed
 */
export function requireProcesses(numRanks: number, limits: readonly ProcessLimit[] = processLimits()): void {
  const needed = numRanks * THREADS_OF_RANK;
  for (const { name, most, used } of limits) {
    if (most - used >= needed) continue;
    throw new UnsupportedError(
      `Cannot start ${
        countOf(numRanks, "rank")
      }: ${name} allows ${most} processes and threads, ${used} are in use, and ` +
        `the ranks need ${needed} more at least. Raise it (docker run --pids-limit, ulimit -u), or start fewer ranks`,
    );
  }
}
