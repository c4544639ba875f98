/**
 * A server of Hugging Face's Hub, or a server of the same protocol: the contents of a revision, and its files, in full or from a
 * byte on.
 *
 * A token is sent where an answer asks for one, and to the server's own address alone: files may lie on others.
 *
 * Permissions on Deno: `--allow-net` of the server, and of others that it sends files from.
 *
 * @module
 */
import * as z from "zod";
import { formatHubName, type HubName } from "../checkpoint/hugging_face/hub_cache.ts";
import { FileError } from "../errors.ts";
import { permissionRemedy } from "../runtime/permissions.ts";

/** Most redirects in a row. */
const MOST_HOPS = 10;

/** A web address, absolute or relative to another; undefined for text that is none. */
export function webAddress(text: string, base?: URL): URL | undefined {
  const url = URL.parse(text, base);
  return url !== null && /^https?:$/.test(url.protocol) ? url : undefined;
}

/** The contents of a revision. */
export interface HubRevision {
  /** The commit that it is. */
  readonly commit: string;
  /** Paths of its files. */
  readonly files: readonly string[];
}

/** The facts that a server gives about a file. */
export interface HubFile {
  /** Names what the file holds: its SHA-256 where it is large, else what git calls it. */
  readonly etag: string;
  readonly byteLength: number;
}

/** An answer that ended early: what came can be gone on from. */
export class InterruptedError extends Error {}

const revisionSchema = z.object({
  sha: z.string().regex(/^[0-9a-f]{40}$/),
  siblings: z.array(z.object({ rfilename: z.string() })),
});

/** Asks a server. */
export class HubServer {
  readonly #endpoint: string;
  readonly #token: string | undefined;
  readonly #stallSeconds: number;
  #sendsToken = false;

  /**
   * @param endpoint its address, e.g. `https://huggingface.co`
   * @param stallSeconds without an answer, or a byte of it, after which a request fails
   */
  constructor(endpoint: string, token: string | undefined, stallSeconds: number) {
    this.#endpoint = endpoint.replace(/\/+$/, "");
    this.#token = token;
    this.#stallSeconds = stallSeconds;
  }

  /** The contents of a revision. @throws {FileError} if there is none, or it may not be read */
  async revision(model: HubName): Promise<HubRevision> {
    const path = `api/${model.repoType}s/${model.name}/revision/${encodeURIComponent(model.revision)}`;
    const { response, stall } = await this.#request(model, `${this.#endpoint}/${path}`, "GET");
    const answer: unknown = await stall(response.json()).catch((cause: unknown) => cause);
    const parsed = revisionSchema.safeParse(answer);
    if (!parsed.success) {
      const got = answer instanceof Error ? `what cannot be read: ${answer.message}` : "something else";
      throw this.#failure(model, `expected a list of files and a commit, got ${got}`);
    }
    const { sha: commit, siblings } = parsed.data;
    return { commit, files: siblings.map(({ rfilename }) => rfilename) };
  }

  /**
   * The facts about a file, without its bytes. @throws {FileError} if the server does not give them, or the file may not be read
   */
  async look(model: HubName, commit: string, file: string): Promise<HubFile> {
    const { response, linked } = await this.#request(model, this.#urlOf(model, commit, file), "HEAD");
    await response.body?.cancel();
    const etag = (linked.etag ?? response.headers.get("etag"))?.replace(/^W\//, "").replaceAll('"', "");
    const length = linked.size ?? response.headers.get("content-length");
    // The etag becomes the name of a file.
    if (etag === undefined || !/^[\w-]+$/.test(etag)) throw this.#failure(model, `no usable etag of '${file}'`);
    if (length === null || !/^\d{1,15}$/.test(length)) throw this.#failure(model, `no size of '${file}'`);
    return { etag, byteLength: Number(length) };
  }

  /**
   * Bytes of a file from one on, or from the first where the server gives no parts.
   *
   * @throws {InterruptedError} if they end early
   * @throws {FileError} if it may not be read
   */
  async *read(
    model: HubName,
    commit: string,
    file: string,
    from: number,
  ): AsyncGenerator<{ readonly at: number; readonly bytes: Uint8Array }> {
    const url = this.#urlOf(model, commit, file);
    const { response, stall } = await this.#request(model, url, "GET", from > 0 ? { range: `bytes=${from}-` } : {});
    const start = response.status === 206 ? startOf(response) : "0";
    if (start === undefined) {
      await response.body?.cancel();
      throw this.#failure(model, `expected a part of '${file}' with its place, got no usable content-range`);
    }
    let at = Number(start);
    const reader = response.body?.getReader();
    try {
      while (reader !== undefined) {
        const { done, value } = await stall(reader.read());
        if (done) return;
        yield { at, bytes: value };
        at += value.length;
      }
    } catch (cause) {
      if (cause instanceof FileError) throw cause;
      throw new InterruptedError(`after ${at} bytes of '${file}'`, { cause });
    } finally {
      await reader?.cancel().catch(() => {});
    }
  }

  #urlOf(model: HubName, commit: string, file: string): string {
    return `${this.#pageOf(model)}/resolve/${commit}/${file.split("/").map(encodeURIComponent).join("/")}`;
  }

  #pageOf({ name, repoType }: HubName): string {
    return `${this.#endpoint}/${repoType === "dataset" ? "datasets/" : ""}${name}`;
  }

  /** Asks, and follows redirects: for a HEAD as far as they stay on the server, since what it says of a file is said there. */
  async #request(model: HubName, url: string, method: "GET" | "HEAD", headers: Readonly<Record<string, string>> = {}) {
    const { origin } = new URL(this.#endpoint);
    const linked: { etag: string | undefined; size: string | undefined } = { etag: undefined, size: undefined };
    let to = new URL(url);
    for (let hop = 0; hop < MOST_HOPS; hop++) {
      const own = to.origin === origin;
      const authorization = own && this.#sendsToken && this.#token !== undefined
        ? { authorization: `Bearer ${this.#token}` }
        : {};
      const { response, stall } = await this.#ask(model, to, {
        method,
        headers: { "accept-encoding": "identity", ...headers, ...authorization },
      });
      linked.etag ??= response.headers.get("x-linked-etag") ?? undefined;
      linked.size ??= response.headers.get("x-linked-size") ?? undefined;
      const location = response.headers.get("location");
      if (response.status >= 300 && response.status < 400 && location !== null) {
        const next = webAddress(location, to);
        if (next === undefined) {
          throw this.#failure(model, `${to.host} redirects to '${location}', which is no address`);
        }
        if (method === "HEAD" && next.origin !== origin && linked.etag !== undefined) {
          return { response, linked, stall };
        }
        await response.body?.cancel();
        to = next;
        continue;
      }
      if (response.ok) return { response, linked, stall };
      await response.body?.cancel();
      const mayHelp = [401, 403, 404].includes(response.status) && own;
      if (!mayHelp || this.#token === undefined || this.#sendsToken) throw this.#refusal(model, to, response);
      this.#sendsToken = true;
    }
    throw this.#failure(model, `more than ${MOST_HOPS} redirects from ${url}`);
  }

  /** One request, and what gives up waiting for parts of its answer. */
  async #ask(model: HubName, url: URL, init: RequestInit) {
    const controller = new AbortController();
    const stall = async <T>(waited: Promise<T>): Promise<T> => {
      const seconds = this.#stallSeconds;
      const timer = setTimeout(() => controller.abort(new Error(`nothing came for ${seconds} s`)), seconds * 1000);
      try {
        return await waited;
      } finally {
        clearTimeout(timer);
      }
    };
    try {
      const response = await stall(fetch(url, { ...init, redirect: "manual", signal: controller.signal }));
      return { response, stall };
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      const detail = permissionRemedy(cause) === undefined
        ? `cannot reach ${url.host}: ${why}; is this machine online? HF_ENDPOINT, or --endpoint, names a mirror`
        : `the server sends files from ${url.host}, which Deno may not ask: add --file-host ${url.host}`;
      throw this.#failure(model, detail, cause);
    }
  }

  #refusal(model: HubName, { host }: URL, { status, headers }: Response): FileError {
    const [code, page] = [headers.get("x-error-code"), this.#pageOf(model)];
    const token = "set HF_TOKEN to a token that may read it";
    const hidden = this.#sendsToken ? "the token given may not read it" : `if it is not public, ${token}`;
    if (code === "GatedRepo") {
      return this.#failure(model, `it is gated: ask for access at ${page}${this.#sendsToken ? "" : `, then ${token}`}`);
    }
    if (code === "RevisionNotFound") return this.#failure(model, `there is no revision '${model.revision}'`);
    if (code === "EntryNotFound") return this.#failure(model, "a file that it names is not there");
    if (status === 404 || code === "RepoNotFound") {
      const other = model.repoType === "model" ? "or '--repo-type dataset' for a data set, " : "";
      return this.#failure(
        model,
        `there is no such ${model.repoType} on ${host}; check the spelling, ${other}and ${hidden}`,
      );
    }
    if (status === 401) {
      const why = this.#sendsToken ? "the token is not valid (HF_TOKEN, or the file of HF_TOKEN_PATH)" : token;
      return this.#failure(model, `${host} wants to know who asks: ${why}`);
    }
    if (status === 403) return this.#failure(model, `${host} does not allow it: ${hidden}`);
    const remedy = status === 429 || status >= 500 ? "; try again later: what came is gone on from" : "";
    return this.#failure(model, `${host} answered with status ${status}${remedy}`);
  }

  #failure(model: HubName, detail: string, cause?: unknown): FileError {
    return new FileError(formatHubName(model), "pull", detail, undefined, { cause });
  }
}

/** The place in its file, in bytes, of the part that a server sends; undefined where the answer does not tell it. */
function startOf({ headers }: Response): string | undefined {
  return /^bytes (\d+)-/.exec(headers.get("content-range") ?? "")?.[1];
}
