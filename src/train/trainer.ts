/**
 * The training loop, readable from top to bottom: open, resume, step, save, export, sample. It awaits only data and checkpoints.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { loadCheckpoint } from "../checkpoint/sharded/load.ts";
import { requireSavable } from "../checkpoint/state_dict/savable.ts";
import type { FlightRecord } from "../comm/flight_record.ts";
import type { DataLoader } from "../data/loader.ts";
import { BYTE_TOKENIZER, type Tokenizer } from "../data/tokenizer.ts";
import { openFilePool } from "../device/state_pool.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { formatDuration } from "../runtime/clock.ts";
import type { Logger } from "../runtime/log.ts";
import { runtime } from "../runtime/processes.ts";
import { eventTurn, STOP_SIGNALS, type StopRequest, type StopSignal, watchStopSignals } from "../runtime/signals.ts";
import { scalarsOf, type Tracker } from "../trackers/tracker.ts";
import { countOf, formatBytes } from "../words.ts";
import { adapterScales, hasAdapter, requireSameScales } from "./adapter_config.ts";
import {
  requireData,
  requireGraphs,
  requirePrompt,
  requireSameConfig,
  requireSaves,
  requireThreads,
} from "./checks.ts";
import type { RunConfig } from "./config.ts";
import { memoryPeak } from "./dry_run.ts";
import { evaluate } from "./evaluate.ts";
import { writeFlightRecord } from "./flight.ts";
import { generate } from "./generate.ts";
import { addCompanions, keepCompanions } from "./kept_files.ts";
import { MetricsFile, type StepMetrics } from "./metrics.ts";
import { takeFolder } from "./output_folder.ts";
import { Progress } from "./progress.ts";
import { launch, type Run } from "./run.ts";
import { saveModel } from "./save_model.ts";
import { parseSavedState } from "./saved_state.ts";
import { CheckpointSaver } from "./saver.ts";
import { optimizerOf, parallelize, planModel, scalerOf, type StepEstimate } from "./setup.ts";
import { type StepContext, trainStep } from "./step.ts";
import { StepGraph } from "./step_graph.ts";
import { type TextData, textData } from "./text_data.ts";
import { trackersOf } from "./trackers.ts";
import type { FinishedModel, TrainerOptions, TrainResult } from "./trainer_options.ts";

interface SamplePrompt {
  readonly text: string;
  readonly ids: readonly number[];
}

/** Facts that ranks exchange between steps. */
interface RankNews {
  readonly signal: StopSignal | undefined;
  /** True if `onStep` asked to stop. */
  readonly stops: boolean;
  /** True if no save is under way. */
  readonly isIdle: boolean;
}

/**
 * Trains a causal language model as the configuration says, on the ranks of the launch environment.
 *
 * @throws {ConfigError} {@link CheckpointError} {@link OutOfMemoryError} {@link NonFiniteError} {@link CollectiveError}
 */
export async function runTraining(config: RunConfig, options: TrainerOptions): Promise<TrainResult> {
  requireThreads(config);
  const onStop = (record: FlightRecord, reason: string): string => writeFlightRecord(record, reason, config.out);
  await using run = await launch({ ...config, log: options.log, onStop });
  const training = new Training(config, options, run);
  try {
    const result = await training.train();
    await training.endTrackers("finished");
    return result;
  } catch (error) {
    run.group.abort(error instanceof Error ? `${error.name}: ${error.message}` : String(error));
    await training.endTrackers("failed");
    throw error;
  }
}

class Training {
  readonly #config: RunConfig;
  readonly #options: TrainerOptions;
  readonly #log: Logger;
  readonly #run: Run;
  /** Step of the newest checkpoint of this run. */
  #saved = 0;
  #step = 0;
  #loss = NaN;
  /** Of rank 0. */
  #trackers: readonly Tracker[] = [];

  constructor(config: RunConfig, options: TrainerOptions, run: Run) {
    this.#config = config;
    this.#options = options;
    this.#log = options.log.withRank(run.group.rank);
    this.#run = run;
  }

  async train(): Promise<TrainResult> {
    const config = this.#config;
    const { device, group, data: dataRanks } = this.#run;
    requireSameConfig(group, config);
    requireSaves(config);
    requireGraphs(config, device, group);
    const plan = (): ReturnType<typeof planModel> => planModel(this.#run, config, this.#options.hfConfig);
    const { model, estimate } = await group.together("plan the model", plan);
    using folder = await group.together("take the output folder", async () => {
      return group.rank === 0 ? await takeFolder(config) : undefined;
    });
    using data = await this.#openData(model, "data");
    using heldOut = config.evalData.length > 0 ? await this.#openData(model, "evalData", data.tokenizer) : undefined;
    const prompt = await this.#openPrompt(model, data);
    const isTokenizerNamed = config.tokenizer !== undefined;
    await group.together(
      "read the files beside the weights",
      () => keepCompanions(model, data, isTokenizerNamed, group),
    );
    this.#describe(estimate, data);
    const { offloadStates } = config;
    using pool = await group.together(
      "open the file of optimizer states",
      async () => offloadStates === undefined ? undefined : await openFilePool(offloadStates),
    );
    const note = (text: string): void => this.#log.once().info(text);
    parallelize(model, this.#run, config, { optimizerStates: pool, note });
    await model.load();
    requireSavable(trainedPart(model), group); // before training, and not after it
    const optimizer = optimizerOf(model, config);
    using scaler = scalerOf(device, config);
    using graph = config.cudaGraphs ? new StepGraph(device) : undefined;
    const { maxGradNorm } = config;
    const context: StepContext = { device, group, data: dataRanks, model, optimizer, maxGradNorm, scaler, graph };
    if (config.resume !== undefined) await this.#resume(config.resume, context, data);
    this.#trackers = await group.together(
      "open the trackers",
      async () => group.rank === 0 ? trackersOf(config, this.#step, this.#log) : [],
    );
    using saver = new CheckpointSaver(context, config, this.#log);
    const signal = await this.#loop(context, data, heldOut, saver, () => folder?.begin());
    const [peak, expected] = [memoryPeak(this.#run).peakBytes, estimate.peakBytes].map(formatBytes);
    this.#log.once().info(`At most ${peak} of a rank's memory were in use, ${expected} were expected`);
    const finished = this.#step < config.steps ? undefined : await this.#finish(model, data.tokenizer, prompt);
    return { step: this.#step, loss: this.#loss, finished, signal, isMain: group.rank === 0 };
  }

  /** Delivers what trackers have not yet. Never throws. */
  async endTrackers(outcome: "finished" | "failed"): Promise<void> {
    await Promise.all(this.#trackers.map((tracker) => tracker.finish(outcome)));
  }

  #tellBytes({ vocabSize }: CausalLm): void {
    const [log, unused] = [this.#log.once(), vocabSize - BYTE_TOKENIZER.vocabSize];
    if (unused <= 0) log.info("Tokens are bytes: no --tokenizer");
    else {
      const why = "Tokens are bytes, as no --tokenizer is given";
      log.warn(`${why}: ${unused} of the model's ${vocabSize} ids are never used`);
    }
  }

  #openData(model: CausalLm, name: "data" | "evalData", tokenizer?: Tokenizer): Promise<TextData> {
    const config = this.#config;
    requireData(config);
    if (tokenizer === undefined && config.tokenizer === undefined && model.files?.folder === undefined) {
      this.#tellBytes(model);
    }
    return textData(this.#run, model, config[name], {
      ...config,
      ...tokenizer === undefined ? {} : { tokenizer, eosToken: undefined },
      name,
      batch: config.globalBatch,
      padTo: config.cudaGraphs ? config.sequenceLength : undefined, // a graph is of one shape
      onTokenize: ({ files, byteLength }) =>
        this.#log.info(`Tokenizing ${countOf(files.length, "file")}, ${formatBytes(byteLength)}`),
    });
  }

  #describe({ numParameters, peakBytes }: StepEstimate, { numSamples, description }: TextData): void {
    const { strategy, precision, globalBatch } = this.#config;
    const { device, group: { kind, size } } = this.#run;
    const [log, ranks] = [this.#log.once(), `${strategy.toUpperCase()} over ${countOf(size, "rank")} (${kind})`];
    log.info(`${ranks}, ${countOf(numParameters, "parameter")}, ${precision}, about ${formatBytes(peakBytes)} a rank`);
    log.info(`On ${device.name}, ${device.detail}`);
    log.info(`${description}: an epoch is ${countOf(Math.ceil(numSamples / globalBatch), "step")}`);
  }

  async #resume(from: string, context: StepContext, loader: DataLoader): Promise<void> {
    const { out: directory, broadcastFromRank0 } = this.#config;
    const log = this.#log.once();
    const what = { ...context, model: trainedPart(context.model), environment: this.#environment() };
    const loaded = await loadCheckpoint({ ...what, directory, from, broadcastFromRank0 });
    if (loaded === undefined) return log.info(`No checkpoint in '${directory}' yet, so training begins at step 1`);
    const { path, step, state, skipped, differences, changes } = loaded;
    for (const reason of skipped) log.warn(`Skipped a checkpoint that is not whole: ${reason}`);
    for (const difference of differences) log.warn(`Results need not agree to the bit: ${difference}`);
    const saved = parseSavedState(state, path);
    requireSameScales(context.model, saved.settings);
    for (const change of changes) log.warn(`Training goes on otherwise than it began: ${change}`);
    await this.#run.group.together("restore the data's place", () => loader.restore({ ...saved.data, step }));
    if (saved.scaler !== undefined) context.scaler?.restore(saved.scaler);
    for (const [key, now] of Object.entries(this.#settings())) {
      const before = saved.settings[key];
      const means = key === "globalBatch" ? this.#otherBatch(step, loader.state().cursor) : "";
      if (before !== now) log.warn(`Training goes on otherwise than it began: ${key} was ${before}, is ${now}${means}`);
    }
    await this.#run.group.together(
      "read the files beside the weights",
      () => addCompanions(context.model, path, context.group),
    );
    [this.#step, this.#saved] = [step, step];
    log.info(`Resumed '${path}' at step ${step}`);
  }

  /** The effect of a changed global batch on the coming steps, for the log. */
  #otherBatch(step: number, cursor: number): string {
    const { globalBatch, steps } = this.#config;
    const all = cursor + Math.max(0, steps - step) * globalBatch;
    return `: steps from ${step + 1} on take ${
      countOf(globalBatch, "sample")
    } each. Steps and the learning rate's schedule are ` +
      `counted on as before; ${countOf(all, "sample")} will have been taken by step ${steps}`;
  }

  /** Trains until the last step, or until a stop; returns the signal, if one was the cause. */
  async #loop(
    context: StepContext,
    loader: DataLoader,
    heldOut: DataLoader | undefined,
    saver: CheckpointSaver,
    beginFolder: () => string | undefined,
  ): Promise<StopSignal | undefined> {
    const { out, steps, stopAfter = steps, logEvery, evalEvery, saveEvery } = this.#config;
    const log = this.#log.once();
    const main = this.#run.group.rank === 0;
    using metrics = main ? new MetricsFile(out, this.#step) : undefined;
    using progress = main ? new Progress(this.#options.output, steps, logEvery) : undefined;
    using stop = watchStopSignals((signal) => log.info(`${signal} came: saving after this step, then stopping`));
    const last = Math.max(this.#step, Math.min(steps, stopAfter));
    const [first, begun] = [this.#step, performance.now()];
    let signal: StopSignal | undefined;
    let stops = false;
    while (this.#step < last && signal === undefined && !stops) {
      const { line: trained, seconds } = await this.#takeStep(context, loader);
      if (this.#step === first + 1) {
        const done = await this.#run.group.together("begin the output folder", beginFolder);
        if (done !== undefined) log.info(done);
      }
      const isDue = this.#step === steps || (evalEvery > 0 && this.#step % evalEvery === 0);
      const evaluation = isDue && heldOut !== undefined ? await evaluate(this.#run, context.model, heldOut) : undefined;
      const line = evaluation === undefined ? trained : { ...trained, eval_loss: evaluation.loss };
      metrics?.write(line);
      for (const tracker of this.#trackers) tracker.log(line.step, scalarsOf({ ...line }));
      progress?.step(line, seconds);
      const wish = await this.#options.onStep?.(line, context);
      ({ signal, stops } = await this.#betweenSteps(stop, saver, wish === "stop"));
      if (saveEvery > 0 && this.#step % saveEvery === 0) await this.#save(context, loader, saver);
    }
    // More steps would later resume from the last step's checkpoint.
    const saves = saveEvery > 0 || this.#step < steps;
    if (saves && this.#saved < this.#step) await this.#save(context, loader, saver);
    await saver.finishPending();
    if (this.#step < steps) this.#options.output.over?.();
    const taken = `${countOf(this.#step - first, "step")} in ${formatDuration(performance.now() - begun)}`;
    const why = signal !== undefined ? `, as ${signal} came` : stops ? ", as onStep asked for" : "";
    const where = this.#step < steps ? `Stopped after step ${this.#step} of ${steps}${why}` : "Trained";
    log.info(`${where}: ${taken}`);
    if (this.#step < steps) log.info("Go on with the same command and '--resume auto' (with npm, after '--')");
    return signal;
  }

  /** Takes one step; returns its metrics, and the seconds that it took. */
  async #takeStep(context: StepContext, loader: DataLoader): Promise<{ line: StepMetrics; seconds: number }> {
    const started = performance.now();
    const batch = await loader.next();
    this.#step++;
    const { loss, gradNorm, tokens, learningRate } = trainStep(context, batch, this.#step);
    this.#loss = loss;
    if (!Number.isFinite(gradNorm)) {
      const scale = context.scaler?.getScale();
      this.#log.once().info(
        `Step ${this.#step} changed nothing: gradients overflowed; the loss is scaled by ${scale} from now on`,
      );
    }
    const seconds = (performance.now() - started) / 1000;
    const line: StepMetrics = {
      step: this.#step,
      loss,
      learning_rate: learningRate,
      grad_norm: gradNorm,
      tokens_per_second: tokens / seconds,
      wall_time: Date.now() / 1000,
      peak_bytes: memoryPeak(this.#run).peakBytes,
    };
    return { line, seconds };
  }

  /**
   * Reports a checkpoint that is complete on all ranks. Returns the first signal or wish to stop of any rank, the same on all
   * ranks.
   */
  async #betweenSteps(
    stop: StopRequest,
    saver: CheckpointSaver,
    stops: boolean,
  ): Promise<Pick<RankNews, "signal" | "stops">> {
    await eventTurn();
    const own: RankNews = { signal: stop.signal, stops, isIdle: saver.isIdle };
    const news = this.#run.group.exchangeText(JSON.stringify(own), "stop requests").map((text): RankNews =>
      JSON.parse(text)
    );
    if (news.every(({ isIdle }) => isIdle)) await saver.finishPending();
    const signal = STOP_SIGNALS.find((one) => news.some((rank) => rank.signal === one));
    return { signal, stops: news.some((rank) => rank.stops) };
  }

  async #save({ model, scaler }: StepContext, loader: DataLoader, saver: CheckpointSaver): Promise<void> {
    const scaling = scaler === undefined ? {} : { scaler: { ...scaler.state() } };
    const state = {
      settings: { ...this.#settings(), ...adapterScales(model) },
      data: { ...loader.state() },
      ...scaling,
    };
    await saver.save({ step: this.#step, state, environment: this.#environment() });
    this.#saved = this.#step;
  }

  /** Settings that decide the coming steps, besides weights, data and the optimizer's groups. */
  #settings(): Record<string, string | number | boolean> {
    const { steps, globalBatch, maxGradNorm, precision } = this.#config;
    return { steps, globalBatch, maxGradNorm, precision };
  }

  /** Facts of the machine for a resume elsewhere. */
  #environment(): Record<string, string> {
    const { name, version } = runtime();
    return { runtime: name, runtimeVersion: version };
  }

  /** Prompt of the sample, if there is to be one. Refused before training if it leaves no position for the sample. */
  async #openPrompt(model: CausalLm, data: TextData): Promise<SamplePrompt | undefined> {
    if (this.#config.sampleTokens === 0) return undefined;
    const { prompt: text = await data.beginning(model.maxPositions >> 1) } = this.#config;
    return { text, ids: requirePrompt(text, data.tokenizer, model) };
  }

  async #finish(model: CausalLm, tokenizer: Tokenizer, prompt: SamplePrompt | undefined): Promise<FinishedModel> {
    const { out, sampleTokens, seed } = this.#config;
    const folder = `${out}/model`;
    await saveModel(model, folder, this.#run.group);
    const what = hasAdapter(model) ? "adapter" : "model";
    this.#log.once().info(`Wrote the ${what} to '${folder}': to train it further, give '--${what} ${folder}'`);
    if (prompt === undefined) return { folder, sample: undefined };
    const maxNewTokens = Math.min(sampleTokens, model.maxPositions - prompt.ids.length);
    // Ids beyond the vocabulary are never drawn.
    const named = tokenizer.eosId === undefined ? model.eosIds : [tokenizer.eosId, ...model.eosIds];
    const eosId = named.filter((id) => id < model.vocabSize);
    const ids = generate(model, prompt.ids, { maxNewTokens, seed, eosId });
    return { folder, sample: `${prompt.text}${tokenizer.decode(ids.filter((id) => id < tokenizer.vocabSize))}` };
  }
}
