/**
 * The shell that stops the ranks of a launcher that is killed, and removes what it kept in memory.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import type { Variables } from "./command.ts";

const watchdogScript = `while read -r word; do [ "$word" = done ] && exit 0; groups="$groups $word"; done
for group in $groups; do kill -s TERM -- "-$group"; done 2>/dev/null
sleep 0.5 2>/dev/null || sleep 1
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
ranks=$(grep -azlxF "FULLYSHARD_RUN_ID=$1" /proc/[0-9]*/environ 2>/dev/null)
[ -n "$ranks" ] && for file in $(grep -azlxF "GROUP_RANK=$2" $ranks 2>/dev/null); do
  pid=\${file#/proc/}; kill -s KILL "\${pid%/environ}"
done 2>/dev/null
[ -n "$3" ] && rm -rf -- "$3"`;

/**
 * Starts the shell of Note [Stopping ranks] in `supervisor.ts`. Its end of the pipe closes when this process is gone, for any reason.
 *
 * @param variables the environment of a rank
 */
export function startWatchdog(
  { FULLYSHARD_RUN_ID: run = "", GROUP_RANK: host = "", FULLYSHARD_ELASTIC_FOLDER: memory = "" }: Variables,
): ChildProcess {
  const watchdog = spawn("/bin/sh", ["-c", watchdogScript, "fullyshard-watchdog", run, host, memory], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  // Without a shell the run goes on; only if the launcher is killed, its ranks are left behind.
  watchdog.once("error", () => {});
  watchdog.stdin?.once("error", () => {});
  if (watchdog.pid !== undefined) watchdog.unref();
  return watchdog;
}
