/**
 * TensorBoard: a folder of event files, which `tensorboard --logdir` shows.
 *
 * @module
 */
import { makeDirectory, openWritable, type WritableFile } from "../runtime/files.ts";
import { hostName, processId } from "../runtime/processes.ts";
import { restartRecord, scalarRecord, textRecord, versionRecord } from "./event_file.ts";
import { METRICS_GO_ON, type Scalars, type TrackedRun, type Tracker } from "./tracker.ts";

/**
 * Writes the metrics of a run for TensorBoard. The file is made with the first step; a resumed run writes a file of its own, and
 * TensorBoard drops the steps that it does again.
 *
 * @param folder of the event files
 */
export function tensorBoard(run: TrackedRun, folder: string): Tracker {
  let file: WritableFile | undefined;
  let broken = false;
  const guarded = (write: () => void): void => {
    if (broken) return;
    try {
      write();
    } catch (error) {
      broken = true;
      const reason = error instanceof Error ? error.message : String(error);
      run.warn(`TensorBoard's file is not written any more: ${reason}. ${METRICS_GO_ON}`);
    }
  };
  const open = (seconds: number): WritableFile => {
    makeDirectory(folder);
    const names = [String(Math.floor(seconds)), hostName() ?? "host", String(processId()), "0"];
    const opened = openWritable(`${folder}/events.out.tfevents.${names.join(".")}`, "append");
    opened.write(versionRecord(seconds));
    if (run.step > 0) opened.write(restartRecord(seconds, run.step + 1));
    const rows = Object.entries(run.settings).map(([key, value]) => `| ${key} | ${value.replaceAll("|", "\\|")} |`);
    opened.write(textRecord(seconds, "args", ["| key | value |", "| --- | --- |", ...rows].join("\n")));
    return opened;
  };
  return {
    log(step: number, scalars: Scalars): void {
      guarded(() => {
        const seconds = Date.now() / 1000;
        file ??= open(seconds);
        file.write(scalarRecord(seconds, step, scalars));
      });
    },
    finish(): Promise<void> {
      guarded(() => file?.close());
      return Promise.resolve();
    },
  };
}
