/**
 * The state in a host's memory, and that of the host before it: sent to the next host while training goes on, and put together again
 * from what the hosts of a new start have.
 *
 * @module
 */
import { Buffer } from "node:buffer";
import { setTimeout as sleep } from "node:timers/promises";
import {
  listDirectory,
  makeDirectory,
  openReadable,
  openWritable,
  pathKind,
  readTextSync,
  removePath,
  renamePath,
  replaceFile,
} from "../../runtime/files.ts";
import { COPIED_FILE, COPIES_FOLDER, KEPT_FOLDER } from "../../runtime/elastic_folder.ts";
import type { HostState, LauncherMessage, StartState } from "./messages.ts";
import { connectPeer, type Peer } from "./wire.ts";

/** Bytes of a file in one message, and of messages that wait for the network. */
const [PIECE_BYTES, WAITING_BYTES] = [2 ** 19, 2 ** 23] as const;

/** Pause before a state is sent again. */
const RETRY_MS = 500;

/** States that a host has of itself and of another one. */
const KEPT_STATES = 2;

const NAME = /^checkpoint-(\d+)$/;
const MANIFEST = "manifest.json";

/** The state that a launcher has in its folder. */
export class StateCopies {
  readonly #folder: string;
  readonly #token: string;
  readonly #id: string;
  /** Number of the present start: names of files are the same in all, and their contents are not. */
  #number = -1;
  /** The step that waits to be sent, while another one is sent. */
  #next: number | undefined;
  #isSending = false;
  #neighbor: { readonly address: string; readonly port: number } | undefined;

  constructor(folder: string, token: string, id: string) {
    this.#folder = folder;
    this.#token = token;
    this.#id = id;
  }

  /** The states of which this host has files, the newest first. */
  inventory(): readonly HostState[] {
    const states = new Map<number, { holds: Set<string>; needs: readonly string[] }>();
    for (const { step, path } of this.#places()) {
      const state = states.get(step) ?? { holds: new Set(), needs: [] };
      for (const name of listDirectory(path)) state.holds.add(name);
      if (state.needs.length === 0) state.needs = neededFiles(`${path}/${MANIFEST}`);
      states.set(step, state);
    }
    return [...states].sort(([a], [b]) => b - a)
      .map(([step, { holds, needs }]) => ({ step, holds: [...holds], needs: [...needs] }));
  }

  /** Sends a state of this host's ranks to the next host, or notes it to be sent. */
  async send(step: number): Promise<void> {
    if (this.#neighbor === undefined) return this.#note(step);
    this.#next = step;
    if (this.#isSending) return;
    this.#isSending = true;
    try {
      const number = this.#number;
      while (this.#next !== undefined && this.#neighbor !== undefined && number === this.#number) {
        const own: number = this.#next;
        this.#next = undefined;
        if (await this.#sendOne(own, this.#neighbor)) this.#note(own);
        else {
          await sleep(RETRY_MS);
          this.#next ??= own;
        }
      }
    } finally {
      this.#isSending = false;
    }
  }

  /**
   * Prepares a start: takes the state that it resumes from, and removes all others.
   *
   * @param number number of the start
   * @param neighbor the launcher of the next host; undefined if there is no other host
   * @throws {Error} if a host does not give its files
   */
  async prepare(
    number: number,
    from: StartState | undefined,
    neighbor: { readonly address: string; readonly port: number } | undefined,
  ): Promise<void> {
    [this.#number, this.#neighbor, this.#next] = [number, neighbor, undefined];
    const kept = `${this.#folder}/${KEPT_FOLDER}`;
    makeDirectory(kept);
    if (from !== undefined) {
      const path = `${kept}/checkpoint-${from.step}`;
      makeDirectory(path);
      for (const { step, path: other } of this.#places()) {
        if (step !== from.step || other === path) continue;
        for (const name of listDirectory(other)) if (pathKind(`${path}/${name}`) === "none") copy(other, path, name);
      }
      for (const { address, port, files } of from.sources) {
        const lacking = files.filter((name) => pathKind(`${path}/${name}`) === "none");
        if (lacking.length > 0) await this.#fetch(address, port, from.step, lacking, path);
      }
    }
    for (const name of listDirectory(kept)) {
      if (name !== `checkpoint-${from?.step}`) removePath(`${kept}/${name}`);
    }
    // The host before this one may have begun the start already, and have sent a state of it.
    const copies = `${this.#folder}/${COPIES_FOLDER}`;
    for (const name of pathKind(copies) === "directory" ? listDirectory(copies) : []) {
      if (!this.#isPresent(name)) removePath(`${copies}/${name}`);
    }
    replaceFile(`${this.#folder}/${COPIED_FILE}`, "-1");
  }

  /** Serves a launcher that sends files or asks for some. */
  serve(peer: Peer, message: LauncherMessage): void {
    if ((message.kind === "piece" || message.kind === "sent") && !this.#isPresent(message.source)) return peer.close();
    if (message.kind === "piece") this.#receive(message);
    else if (message.kind === "sent") {
      const folder = `${this.#folder}/${COPIES_FOLDER}/${message.source}`;
      renameIfThere(`${folder}/checkpoint-${message.step}`);
      const steps = listDirectory(folder).flatMap((name) => stepOf(name) ?? []).sort((a, b) => b - a);
      for (const step of steps.slice(KEPT_STATES)) removePath(`${folder}/checkpoint-${step}`);
      peer.send({ kind: "sent", source: message.source, step: message.step });
    } else if (message.kind === "fetch") {
      void sendFiles(peer, this.#pathsOf(message.step, message.names), this.#id, message.step);
    }
  }

  /** True for the files of a launcher that takes part in this start, or in a later one that this host has not heard of yet. */
  #isPresent(source: string): boolean {
    return Number(source.slice(source.lastIndexOf("_") + 1)) >= this.#number;
  }

  /** Takes a piece of another host's file. */
  #receive(piece: LauncherMessage & { readonly kind: "piece" }): void {
    const folder = `${this.#folder}/${COPIES_FOLDER}/${piece.source}/checkpoint-${piece.step}.partial`;
    makeDirectory(folder);
    writePiece(`${folder}/${piece.name}`, piece);
  }

  async #sendOne(
    step: number,
    { address, port }: { readonly address: string; readonly port: number },
  ): Promise<boolean> {
    const path = `${this.#folder}/${KEPT_FOLDER}/checkpoint-${step}`;
    const peer = await connectPeer(address, port, this.#token);
    if (peer === undefined) return false;
    const answer = Promise.withResolvers<boolean>();
    peer.onMessage = ({ kind }) => kind === "sent" && answer.resolve(true);
    peer.onEnd = () => answer.resolve(false);
    try {
      await sendFiles(peer, listDirectory(path).map((name) => `${path}/${name}`), `${this.#id}_${this.#number}`, step);
      return await answer.promise;
    } finally {
      peer.close();
    }
  }

  async #fetch(address: string, port: number, step: number, names: readonly string[], path: string): Promise<void> {
    const peer = await connectPeer(address, port, this.#token);
    const done = Promise.withResolvers<boolean>();
    if (peer === undefined) throw new Error(`the launcher at ${address}:${port} does not answer`);
    peer.onMessage = (message) => {
      if (message.kind === "piece" && message.step === step && names.includes(message.name)) {
        writePiece(`${path}/.${message.name}.fetched`, message);
      } else if (message.kind === "sent") done.resolve(true);
    };
    peer.onEnd = () => done.resolve(false);
    peer.send({ kind: "fetch", step, names: [...names] });
    const isWhole = await done.promise;
    peer.close();
    if (!isWhole) throw new Error(`the launcher at ${address}:${port} ended while it sent files`);
    for (const name of names) renamePath(`${path}/.${name}.fetched`, `${path}/${name}`);
  }

  #note(step: number): void {
    replaceFile(`${this.#folder}/${COPIED_FILE}`, String(step));
  }

  /** All states that are complete as far as this host has them. */
  #places(): { readonly step: number; readonly path: string }[] {
    const copies = `${this.#folder}/${COPIES_FOLDER}`;
    const folders = pathKind(copies) === "directory" ? listDirectory(copies).map((name) => `${copies}/${name}`) : [];
    return [`${this.#folder}/${KEPT_FOLDER}`, ...folders].flatMap((folder) => {
      if (pathKind(folder) !== "directory") return [];
      return listDirectory(folder).flatMap((name) => {
        const step = stepOf(name);
        return step === undefined ? [] : [{ step, path: `${folder}/${name}` }];
      });
    });
  }

  #pathsOf(step: number, names: readonly string[]): readonly string[] {
    const places = this.#places().filter((place) => place.step === step);
    return names.flatMap((name) => {
      const place = places.find(({ path }) => pathKind(`${path}/${name}`) === "file");
      return place === undefined ? [] : [`${place.path}/${name}`];
    });
  }
}

/** Sends files, and says that they are all. Waits where the network is slower. */
async function sendFiles(peer: Peer, paths: readonly string[], source: string, step: number): Promise<void> {
  for (const path of paths) {
    using file = openReadable(path);
    const name = path.slice(path.lastIndexOf("/") + 1);
    const piece = new Uint8Array(Math.min(PIECE_BYTES, file.byteLength));
    for (let offset = 0; offset === 0 || offset < file.byteLength; offset += PIECE_BYTES) {
      const part = piece.subarray(0, Math.min(PIECE_BYTES, file.byteLength - offset));
      file.read(offset, part);
      peer.send({ kind: "piece", source, step, name, offset, data: Buffer.from(part).toString("base64") });
      await peer.drained(WAITING_BYTES);
    }
  }
  peer.send({ kind: "sent", source, step });
}

function writePiece(path: string, { offset, data }: { readonly offset: number; readonly data: string }): void {
  using file = openWritable(path, offset === 0 ? "create" : "resume");
  file.write(new Uint8Array(Buffer.from(data, "base64")), offset);
}

function copy(from: string, to: string, name: string): void {
  using file = openReadable(`${from}/${name}`);
  const bytes = new Uint8Array(file.byteLength);
  file.read(0, bytes);
  replaceFile(`${to}/${name}`, bytes);
}

/** Gives a received state its name. */
function renameIfThere(path: string): void {
  if (pathKind(`${path}.partial`) !== "directory") return;
  removePath(path);
  renamePath(`${path}.partial`, path);
}

function stepOf(name: string): number | undefined {
  const step = NAME.exec(name)?.[1];
  return step === undefined ? undefined : Number(step);
}

/** The files that a manifest lists; none if there is no manifest. */
function neededFiles(manifest: string): readonly string[] {
  if (pathKind(manifest) !== "file") return [];
  const body: unknown = JSON.parse(readTextSync(manifest));
  if (typeof body !== "object" || body === null || !("files" in body)) return [];
  return [MANIFEST, ...Object.keys(Object(body.files))];
}
