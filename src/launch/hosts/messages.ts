/**
 * Messages between the launchers of a run's hosts, as JSON, and their check.
 *
 * @module
 */
import * as z from "zod";

/** Facts of a run that a launcher has from its ranks. */
export interface KnownOfRun {
  /** True if a step was taken. */
  readonly goesOn: boolean;
  /** The numbers of ranks that the batch can be divided among; undefined before a rank has said. */
  readonly worldSizes?: readonly number[] | undefined;
  /** The states in its memory. */
  readonly held: readonly HostState[];
}

/** A state in memory of which a host has files. */
export interface HostState {
  readonly step: number;
  readonly holds: readonly string[];
  /** The files that the whole state has; empty where that is not known. */
  readonly needs: readonly string[];
}

/** The state that a start resumes from. */
export interface StartState {
  readonly step: number;
  /** Hosts that have its files. */
  readonly sources: readonly { readonly address: string; readonly port: number; readonly files: readonly string[] }[];
}

/** A launcher as it joins. */
export interface Hello extends KnownOfRun {
  readonly kind: "hello";
  /** Id of the launcher, new for each process. */
  readonly id: string;
  readonly nodeRank: number;
  /** Ranks of its host. */
  readonly numRanks: number;
  /** The port at which it listens. */
  readonly port: number;
  /** A port that is free there, for the ranks' own meeting. */
  readonly rankPort: number;
  /** The memory that ranks of its host share: equal for launchers on one machine. */
  readonly machine: string;
  /** Number of the last start that it took part in; -1 for none. */
  readonly number: number;
  readonly restarts: number;
}

/** The end of a host's ranks. */
export interface HostEnd extends KnownOfRun {
  readonly kind: "ended";
  /** Number of the start. */
  readonly number: number;
  /** A port that is free now. */
  readonly rankPort: number;
  /** True if a user's signal ended them. */
  readonly isAsked: boolean;
  readonly failed: boolean;
  /** The first error of the host's own; undefined if there was none, or no rank said one. */
  readonly error?: string | undefined;
  /** True if that is about wrong settings. */
  readonly isSetting: boolean;
  readonly regroups: boolean;
}

/** A host of a start. */
export interface StartedHost {
  /** Id of its launcher. */
  readonly id: string;
  /** The place at which its launcher listens. */
  readonly address: string;
  readonly port: number;
}

/** A start of ranks. */
export interface HostStart {
  readonly kind: "start";
  readonly number: number;
  readonly restarts: number;
  readonly goesOn: boolean;
  /** Id of the run. */
  readonly run: string;
  /** All hosts, in the order of their ranks. */
  readonly hosts: readonly StartedHost[];
  /** Id of the launcher that leads. */
  readonly leader: string;
  /** The receiver's place among the hosts. */
  readonly index: number;
  /** The place at which ranks meet. */
  readonly masterAddr: string;
  readonly masterPort: number;
  /** True if all hosts are launchers on one machine. */
  readonly isOneMachine: boolean;
  /** The state in memory to go on from; undefined if there is none. */
  readonly from?: StartState | undefined;
  /** The reason of the start, in words; empty for the first. */
  readonly why: string;
}

/** A message of a launcher to another one. */
export type LauncherMessage =
  | Hello
  | HostEnd
  | HostStart
  /** The answer of a launcher that leads nobody; it is in a run if it has taken part in a start. */
  | { readonly kind: "elsewhere"; readonly isInRun: boolean }
  /** The answer of a launcher that leads the run. */
  | { readonly kind: "welcome"; readonly waits: string }
  /** Ranks of a start are to end, as others have failed. */
  | { readonly kind: "stop"; readonly number: number }
  /** Ranks of a start are to leave at a step's border. */
  | { readonly kind: "regroup"; readonly number: number }
  /** Asks for files of a state. */
  | { readonly kind: "fetch"; readonly step: number; readonly names: readonly string[] }
  /** A part of a file of a state, in base64. */
  | {
    readonly kind: "piece";
    readonly source: string;
    readonly step: number;
    readonly name: string;
    readonly offset: number;
    readonly data: string;
  }
  /** All files were sent; as an answer, all have come. */
  | { readonly kind: "sent"; readonly source: string; readonly step: number }
  /** The run has ended. */
  | { readonly kind: "end"; readonly why: string };

/** The message in a value; undefined if it is none. */
export function readMessage(value: unknown): LauncherMessage | undefined {
  const parsed = schema().safeParse(value);
  return parsed.success ? parsed.data : undefined;
}

let made: z.ZodType<LauncherMessage> | undefined;

function schema(): z.ZodType<LauncherMessage> {
  const [count, text, word, flag] = [z.int().min(0), z.string(), z.string().min(1), z.boolean()];
  // Names become paths.
  const [file, id] = [z.string().regex(/^[\w-][\w.-]*$/), z.string().regex(/^[\w-]+$/)];
  const held = z.array(z.strictObject({ step: count, holds: z.array(file), needs: z.array(file) }));
  const known = { goesOn: flag, worldSizes: z.array(z.int().min(1)).optional(), held };
  const source = z.strictObject({ address: word, port: count, files: z.array(file) });
  return made ??= z.discriminatedUnion("kind", [
    z.strictObject({
      ...{ kind: z.literal("hello"), id: word, nodeRank: count, numRanks: z.int().min(1), port: count },
      ...{ rankPort: count, machine: text, number: z.int().min(-1), restarts: count, ...known },
    }),
    z.strictObject({
      ...{ kind: z.literal("ended"), number: count, rankPort: count, isAsked: flag, failed: flag },
      ...{ error: text.optional(), isSetting: flag, regroups: flag, ...known },
    }),
    z.strictObject({
      ...{ kind: z.literal("start"), number: count, restarts: count, goesOn: flag, run: word, leader: word },
      ...{ index: count, masterAddr: word, masterPort: count, isOneMachine: flag, why: text },
      from: z.strictObject({ step: count, sources: z.array(source) }).optional(),
      hosts: z.array(z.strictObject({ id: word, address: word, port: count })).min(1),
    }),
    z.strictObject({ kind: z.literal("elsewhere"), isInRun: flag }),
    z.strictObject({ kind: z.literal("welcome"), waits: text }),
    z.strictObject({ kind: z.literal("stop"), number: count }),
    z.strictObject({ kind: z.literal("regroup"), number: count }),
    z.strictObject({ kind: z.literal("fetch"), step: count, names: z.array(file) }),
    z.strictObject({ kind: z.literal("piece"), source: id, step: count, name: file, offset: count, data: text }),
    z.strictObject({ kind: z.literal("sent"), source: id, step: count }),
    z.strictObject({ kind: z.literal("end"), why: text }),
  ]);
}
