/**
 * The training loop, readable from top to bottom: open, resume, step, save, export, sample. It awaits only data and checkpoints.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { requireSavable } from "../checkpoint/state_dict/savable.ts";
import type { FlightRecord } from "../comm/flight_record.ts";
import type { DataLoader } from "../data/loader.ts";
import { openFilePool } from "../device/state_pool.ts";
import { formatDuration } from "../runtime/clock.ts";
import { freeGarbage } from "../runtime/garbage.ts";
import type { Logger } from "../runtime/log.ts";
import { readRankEnvironment } from "../runtime/rank_environment.ts";
import { eventTurn, type StopRequest, type StopSignal, watchStopSignals } from "../runtime/signals.ts";
import { scalarsOf, type Tracker } from "../trackers/tracker.ts";
import { countOf, formatBytes } from "../words.ts";
import { averaged } from "./averaged.ts";
import { axesOf } from "./axes_config.ts";
import { baseWeights } from "./base_weights.ts";
import {
  requireData,
  requireGraphs,
  requireSameConfig,
  requireSaves,
  requireThreads,
  requireTracker,
} from "./checks.ts";
import type { RunConfig } from "./config.ts";
import { memoryPeak } from "./dry_run.ts";
import { beginElastic, type ElasticRun, readElasticRun } from "./elastic.ts";
import { requireEvaluations } from "./evaluation_config.ts";
import { Evaluations } from "./evaluations.ts";
import { finishModel, openPrompt } from "./finish.ts";
import { writeFlightRecord } from "./flight.ts";
import { keeperOf, type StateKeeper } from "./keeper.ts";
import { keepCompanions } from "./kept_files.ts";
import { RunJournal } from "./journal.ts";
import { type LivePage, openLivePage } from "./live.ts";
import { MetricsFile, type StepMetrics } from "./metrics.ts";
import { takeFolder } from "./output_folder.ts";
import { noticeStart } from "./notices.ts";
import { openData, openHeldOut } from "./open_data.ts";
import { openObjective, requireObjective } from "./open_preference.ts";
import { parallelize } from "./parallelize.ts";
import { optimizerOf } from "./optimizer.ts";
import { scalerOf } from "./parts.ts";
import { planModel } from "./plan_model.ts";
import { Progress } from "./progress.ts";
import { exchangeNews, type RankNews, STOP_WORDS, type StopReason } from "./rank_news.ts";
import { requireEqualReplicas } from "./replicas.ts";
import { launch, type Run } from "./run.ts";
import { recordOf } from "./run_record.ts";
import { resumeRun } from "./resume.ts";
import { stateOf } from "./run_state.ts";
import { CheckpointSaver } from "./saver.ts";
import { type StepContext, trainStep } from "./step.ts";
import { StepGraph } from "./step_graph.ts";
import { trackersOf } from "./trackers.ts";
import { callAll } from "./trainer_callbacks.ts";
import type { TrainerOptions, TrainResult } from "./trainer_options.ts";

/**
 * Trains a causal language model as the configuration says, on the ranks of the launch environment.
 *
 * @throws {ConfigError} {@link CheckpointError} {@link OutOfMemoryError} {@link NonFiniteError} {@link CollectiveError}
 */
export async function runTraining(config: RunConfig, options: TrainerOptions): Promise<TrainResult> {
  const elastic = readElasticRun();
  return await runOn(elastic === undefined ? config : beginElastic(config, elastic, options), options, elastic);
}

async function runOn(
  config: RunConfig,
  options: TrainerOptions,
  elastic: ElasticRun | undefined,
): Promise<TrainResult> {
  requireThreads(config);
  requireTracker(config);
  requireObjective(config);
  using journal = new RunJournal(config, options.log);
  const log = options.log.also((record) => journal.take(record));
  const onStop = (record: FlightRecord, reason: string): string => writeFlightRecord(record, reason, config.out);
  const axes = axesOf(config, readRankEnvironment()?.worldSize ?? 1); // refuses sizes before a device is opened
  const { device, memoryBytes, cpuMath, threads, attention, stagingBytes, trace } = config;
  const { timeoutSeconds, joinTimeoutSeconds, reportSeconds } = config;
  await using run = await launch({
    ...{ device, memoryBytes, cpuMath, threads, attention, stagingBytes, trace, axes },
    ...{ timeoutSeconds, joinTimeoutSeconds, reportSeconds, log, onStop },
  });
  journal.follow(() => run.group.flightRecord());
  // See Note [A process that stays].
  const leavesNothing = run.device.traits.backend === "shm" && run.group.kind !== "mpi";
  if (elastic !== undefined && leavesNothing) options.output.elastic?.({ stays: true });
  const training = new Training(config, { ...options, log }, run, journal, elastic);
  try {
    const result = await training.train();
    await training.end(result.finished === undefined ? "stopped" : "finished");
    return result;
  } catch (error) {
    run.group.abort(textOf(error));
    journal.fail(error, run.group.rank);
    await training.end("failed", error);
    throw error;
  }
}

function textOf(error: unknown): string {
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
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
  /** The checkpoint that the run went on from. */
  #resumed: string | undefined;
  /** Of rank 0. */
  #trackers: readonly Tracker[] = [];

  readonly #journal: RunJournal;
  readonly #elastic: ElasticRun | undefined;
  /** Of rank 0. */
  #live: LivePage | undefined;

  constructor(
    config: RunConfig,
    options: TrainerOptions,
    run: Run,
    journal: RunJournal,
    elastic: ElasticRun | undefined,
  ) {
    this.#elastic = elastic;
    this.#journal = journal;
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
    requireData(config);
    requireEvaluations(config);
    requireGraphs(config, device, group);
    const plan = (): ReturnType<typeof planModel> => planModel(this.#run, config, this.#options.hfConfig);
    const { model, estimate } = await group.together("plan the model", plan);
    // What a rank opens here is closed too where another rank fails meanwhile.
    using opened = new DisposableStack();
    const folder = await group.together("take the output folder", async () => {
      return group.rank === 0 ? opened.use(await takeFolder(config, this.#elastic?.goesOn)) : undefined;
    });
    await group.together("open the live page", async () => {
      if (group.rank === 0 && config.live) this.#live = await openLivePage(config, this.#log);
    });
    using data = await openData(config, this.#run, model, this.#log);
    using heldOut = await openHeldOut(config, this.#run, model, data, this.#log);
    const evaluations = new Evaluations(config, this.#run, heldOut, this.#log.once());
    const prompt = await openPrompt(config, model, data);
    const isTokenizerNamed = config.tokenizer !== undefined;
    await group.together(
      "read the files beside the weights",
      () => keepCompanions(model, data, isTokenizerNamed, group),
    );
    noticeStart(config, this.#run, estimate, data, this.#log.once());
    const { offloadStates } = config;
    const pool = await group.together(
      "open the file of optimizer states",
      async () => offloadStates === undefined ? undefined : opened.use(await openFilePool(offloadStates)),
    );
    const note = (text: string): void => this.#log.once().info(text);
    parallelize(model, this.#run, { ...config, ppLayers: estimate.ppLayers }, { optimizerStates: pool, note });
    await model.load();
    requireSavable(trainedPart(model), group); // before training, and not after it
    const objective = await openObjective(config, this.#run, model, { data, heldOut }, this.#log.once());
    const optimizer = optimizerOf(model, config);
    using scaler = scalerOf(device, config);
    using graph = config.cudaGraphs ? new StepGraph(device) : undefined;
    const { maxGradNorm } = config;
    const parts = { device, group, data: dataRanks, model, optimizer, scaler, graph, ...objective };
    const context: StepContext = { ...parts, maxGradNorm, baseWeights: await baseWeights(model, group) };
    const resumed = await resumeRun(this.#run, config, this.#elastic, context, {
      loader: data,
      evaluations,
      log: this.#log,
    });
    if (resumed !== undefined) [this.#step, this.#saved, this.#resumed] = [resumed.step, resumed.saved, resumed.path];
    await group.together("open the trackers", () => {
      if (group.rank === 0) this.#trackers = trackersOf(config, this.#step, this.#log);
    });
    const onSaved = async (path: string, step: number): Promise<void> => {
      this.#journal.saved(path, step, memoryPeak(this.#run));
      for (const { onSave } of this.#options.callbacks ?? []) await onSave?.({ path, step }, context);
    };
    using saver = new CheckpointSaver(context, config, this.#log, onSaved);
    using keeper = keeperOf(context, config, this.#elastic, this.#log, this.#options.output);
    const facts = { config, run: this.#run, model, estimate, data, resumed: this.#resumed, firstStep: this.#step };
    const record = group.rank === 0 ? recordOf({ ...facts, set: this.#options.set }) : undefined;
    const begin = (): string | undefined => {
      const done = folder?.begin();
      if (record !== undefined) this.#journal.begin(record, record.firstStep);
      return done;
    };
    const { signal, isOver } = await this.#loop(context, data, evaluations, { saver, keeper }, begin);
    this.#journal.measured(this.#step, memoryPeak(this.#run));
    const [peak, expected] = [memoryPeak(this.#run).peakBytes, estimate.peakBytes].map(formatBytes);
    this.#log.once().info(`Peak memory of a rank: ${peak} (predicted ${expected})`);
    if (isOver) await evaluations.end(this.#step, context);
    const finished = isOver
      ? await averaged(context, () => finishModel(config, this.#run, model, data.tokenizer, prompt, this.#log.once()))
      : undefined;
    if (finished?.sample !== undefined) this.#journal.add({ type: "sample", step: this.#step, text: finished.sample });
    const { best, bestCheckpoint } = evaluations;
    const bestEvaluation = best && {
      metric: best.metric,
      bestMetric: best.best_metric,
      bestGlobalStep: best.best_global_step,
      bestModelCheckpoint: bestCheckpoint,
    };
    return { step: this.#step, loss: this.#loss, finished, signal, best: bestEvaluation, isMain: group.rank === 0 };
  }

  /** Delivers the values that trackers have not sent yet, writes the report, and ends the live page. Never throws. */
  async end(outcome: "finished" | "stopped" | "failed", error?: unknown): Promise<void> {
    const { rank } = this.#run.group;
    using live = this.#live;
    if (rank === 0) this.#journal.add({ type: "end", step: this.#step, outcome });
    const ended = outcome === "failed" ? outcome : "finished";
    await Promise.all([...this.#trackers.map((tracker) => tracker.finish(ended)), this.#journal.finishReport()]);
    await live?.finish(outcome === "failed" ? textOf(error) : undefined);
  }

  /**
   * Trains until the last step, until early stopping, or until a stop; returns the signal, if one was the cause, and whether the
   * training is over.
   */
  async #loop(
    context: StepContext,
    loader: DataLoader,
    evaluations: Evaluations,
    { saver, keeper }: { readonly saver: CheckpointSaver; readonly keeper: StateKeeper | undefined },
    beginFolder: () => string | undefined,
  ): Promise<{ readonly signal: StopSignal | undefined; readonly isOver: boolean }> {
    const { out, steps, stopAfter = steps, logEvery, saveEvery, loadBestModelAtEnd, checkReplicas } = this.#config;
    const { onStep, callbacks = [] } = this.#options;
    const log = this.#log.once();
    const main = this.#run.group.rank === 0;
    using metrics = main ? new MetricsFile(out, this.#step) : undefined;
    using progress = main ? new Progress(this.#options.output, steps, logEvery) : undefined;
    using stop = watchStopSignals((signal) => log.info(`${signal} came: saving after this step, then stopping`));
    const last = Math.max(this.#step, Math.min(steps, stopAfter));
    const [first, begun] = [this.#step, performance.now()];
    const hasReplicas = checkReplicas > 0 && requireEqualReplicas(context, this.#step) > 0;
    if (checkReplicas > 0 && !hasReplicas) {
      log.info("checkReplicas compares nothing: no two ranks of this run hold the same elements");
    }
    let signal: StopSignal | undefined;
    let stops: StopReason = "";
    let [endsEarly, isKept] = [false, false];
    while (this.#step < last && signal === undefined && stops === "" && !endsEarly) {
      const { line: trained, seconds } = await this.#takeStep(context, loader);
      if (hasReplicas && this.#step % checkReplicas === 0) requireEqualReplicas(context, this.#step);
      if (this.#step === first + 1) {
        const done = await this.#run.group.together("begin the output folder", beginFolder);
        if (!main) this.#journal.begin(undefined, first);
        this.#options.output.elastic?.({ begun: true });
        if (done !== undefined) log.info(done);
      }
      const evaluated = await evaluations.after(this.#step, context, loader);
      const line = { ...trained, ...evaluated?.figures };
      metrics?.write(line);
      for (const tracker of this.#trackers) tracker.log(line.step, scalarsOf({ ...line }));
      progress?.step(line, seconds);
      const wishes = evaluated === undefined
        ? []
        : [await callAll(callbacks.map((one) => one.onEvaluate), evaluated.figures, this.#step, context)];
      wishes.push(await callAll([onStep, ...callbacks.map((one) => one.onStep)], line, context));
      const news = await this.#betweenSteps(stop, saver, wishes.includes(true));
      ({ signal, stops } = news);
      endsEarly = evaluated?.ends === true && this.#step < steps;
      const savesBest = loadBestModelAtEnd && evaluated?.isBest === true;
      if (savesBest || news.saves || (saveEvery > 0 && this.#step % saveEvery === 0)) {
        await this.#save(context, loader, saver, evaluations);
      }
      const state = (): ReturnType<typeof stateOf> => stateOf(this.#config, this.#step, context, loader, evaluations);
      isKept = await keeper?.keep(this.#step, stops === "regroup", state) === true;
    }
    await keeper?.finish();
    // More steps would later resume from the last step's checkpoint.
    const regroups = stops === "regroup" && this.#step < steps;
    const saves = (saveEvery > 0 || this.#step < steps) && !(regroups && isKept);
    if (saves && this.#saved < this.#step) await this.#save(context, loader, saver, evaluations);
    await saver.finishPending();
    const isOver = this.#step >= steps || endsEarly;
    if (!isOver && !regroups) this.#options.output.over?.();
    const taken = `${countOf(this.#step - first, "step")} in ${formatDuration(performance.now() - begun)}`;
    const why = signal !== undefined ? `, as ${signal} came` : STOP_WORDS[stops];
    const without = evaluations.best?.evaluations_without_gain;
    const where = endsEarly
      ? `Stopped early after step ${this.#step} of ${steps}${
        without === undefined ? "" : ` (no improvement in ${countOf(without, "evaluation")})`
      }`
      : this.#step < steps
      ? `Stopped after step ${this.#step} of ${steps}${why}`
      : "Trained";
    log.info(`${where}: ${taken}`);
    if (regroups) this.#options.output.elastic?.({ regroups });
    else if (!isOver) log.info("Resume with the same command and '--resume auto' (under npm after '--')");
    return { signal, isOver };
  }

  /** Takes one step; returns its metrics, and the seconds that it took. */
  async #takeStep(context: StepContext, loader: DataLoader): Promise<{ line: StepMetrics; seconds: number }> {
    const started = performance.now();
    const batch = await loader.next();
    this.#step++;
    const { loss, gradNorm, tokens, learningRate, figures } = trainStep(context, batch, this.#step);
    this.#loss = loss;
    if (!Number.isFinite(gradNorm)) {
      const scale = context.scaler?.getScale();
      this.#log.once().info(
        `Skipped the update of step ${this.#step}: gradients overflowed; the loss scale is now ${scale}`,
      );
    }
    const seconds = (performance.now() - started) / 1000;
    const line: StepMetrics = {
      step: this.#step,
      loss,
      ...figures,
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
    asksToStop: boolean,
  ): Promise<RankNews> {
    await eventTurn();
    const asked = this.#live?.take();
    const stops = asksToStop
      ? "callback"
      : asked?.stops === true
      ? "page"
      : this.#elastic?.isAskedToLeave() === true
      ? "regroup"
      : "";
    const own: RankNews = { signal: stop.signal, stops, saves: asked?.saves === true, isIdle: saver.isIdle };
    const news = exchangeNews(this.#run.group, own);
    if (news.isIdle) await saver.finishPending();
    return news;
  }

  async #save(
    context: StepContext,
    loader: DataLoader,
    saver: CheckpointSaver,
    evaluations: Evaluations,
  ): Promise<void> {
    evaluations.noteCheckpoint(this.#step);
    const keep = [this.#resumed, evaluations.bestCheckpoint].filter((path) => path !== undefined);
    await saver.save({ ...stateOf(this.#config, this.#step, context, loader, evaluations), keep });
    freeGarbage();
    this.#saved = this.#step;
  }
}
