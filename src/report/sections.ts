/**
 * The parts of a report about one run, as markup: facts, memory, sharding, configuration, environment, samples, warnings.
 *
 * @module
 */
import { countOf, formatBytes } from "../words.ts";
import { type Html, type HtmlValue, safe } from "./html.ts";
import type { RecordedRun } from "./read_run.ts";
import { eventsOfType } from "./run_event.ts";
import { lastOutcome } from "./run_state.ts";
import type { RecordedUnit } from "./run_record.ts";
import { heldOutLosses, MEASURES } from "./series.ts";
import { groupedCount, measureText, settingText, timeText } from "./words_of_numbers.ts";

/** A table that scrolls by itself where the page is narrow; `label` names it for readers. */
export function table(label: string, head: readonly string[], rows: readonly (readonly HtmlValue[])[]): Html {
  return safe`
    <div class="scroll" tabindex="0" role="group" aria-label="${label}">
      <table>
        <thead>
          <tr>${head.map((text) => safe`<th scope="col">${text}</th>`)}</tr>
        </thead>
        <tbody>${
    rows.map(([first, ...rest]) =>
      safe`<tr><th scope="row">${first}</th>${rest.map((cell) => safe`<td>${cell}</td>`)}</tr>`
    )
  }</tbody>
      </table>
    </div>
  `;
}

/** The state of a run in a few facts. */
export function factsOf(run: RecordedRun): Html {
  const { record, series, events } = run;
  const step = series.steps.at(-1);
  const total = record?.config["steps"];
  const outcome = lastOutcome(events) ??
    (record === undefined ? "not known" : "running, or ended without a word");
  const facts: [string, string][] = [
    ["State", outcome],
    ["Step", `${step ?? "none"}${typeof total === "number" ? ` of ${total}` : ""}`],
    ...MEASURES.flatMap(({ key, title }): [string, string][] => {
      const last = series.last[key];
      return last === undefined ? [] : [[title, measureText(key, last.value)]];
    }),
    ...heldOutLosses(series).flatMap((name): [string, string][] => {
      const last = series.last[name];
      return last === undefined ? [] : [[name, `${measureText("loss", last.value)} at step ${last.step}`]];
    }),
    ...record === undefined ? [] : ([
      ["Parameters", groupedCount(record.model.numParameters)],
      ["Ranks", `${record.world.size} (${record.world.axes.map(({ name, size }) => `${name} ${size}`).join(" × ")})`],
      ["Started", timeText(record.started)],
    ] satisfies [string, string][]),
  ];
  return safe`<dl class="facts">${
    facts.map(([name, value]) =>
      safe`
        <div>
          <dt>${name}</dt>
          <dd>${value}</dd>
        </div>
      `
    )
  }</dl>`;
}

/** Memory by owner: predicted by the dry run, beside what was measured at the peak. */
export function memoryOf({ record, events }: RecordedRun): Html {
  const measured = eventsOfType(events, "memory").at(-1);
  const predicted = record?.predicted;
  if (measured === undefined && predicted === undefined) return safe`<p>Nothing is known of memory by owner.</p>`;
  const owners = [...new Set([...Object.keys(predicted?.terms ?? {}), ...Object.keys(measured?.terms ?? {})])];
  const largest = Math.max(1, predicted?.peakBytes ?? 0, measured?.peakBytes ?? 0);
  const cell = (bytes: number | undefined): HtmlValue =>
    bytes === undefined ? "not known" : safe`${bar(bytes, largest)} ${formatBytes(bytes)}`;
  const rows = owners.filter((owner) => (predicted?.terms[owner] ?? 0) + (measured?.terms[owner] ?? 0) > 0)
    .map((owner) => [owner, cell(predicted?.terms[owner]), cell(measured?.terms[owner])]);
  const offloaded = [predicted?.offloaded.peakBytes, measured?.offloaded.peakBytes];
  const more = offloaded.some((bytes) => bytes !== undefined && bytes > 0)
    ? [["offloaded to the host, at its own peak", ...offloaded.map(cell)]]
    : [];
  const when = measured === undefined ? "Measured" : `Measured, to step ${measured.step}`;
  return safe`<p>Bytes in use on rank 0 at the peak of a step. The prediction is a dry run of the step, made before it.</p>${
    table("Memory by owner", ["Owner", "Predicted", when], [
      ["all", cell(predicted?.peakBytes), cell(measured?.peakBytes)],
      ...rows,
      ...more,
    ])
  }`;
}

/** A bar as wide as a part of the whole; the number beside it says the same. */
function bar(part: number, whole: number): Html {
  const width = (100 * Math.min(1, part / whole)).toFixed(2);
  return safe`
    <svg class="bar" aria-hidden="true" focusable="false">
      <rect width="${width}%" height="100%" />
    </svg>
  `;
}

/** The last warning of a rank that waited: each rank's state, and the ranks that it waited for. */
export function ranksOf({ events, series }: RecordedRun): Html {
  const newest = eventsOfType(events, "ranks").at(-1);
  if (newest === undefined) return safe`<p>No rank waited long enough to cause a warning.</p>`;
  const { ranks, time } = newest;
  const ended = series.last["wall_time"]?.value;
  const since = ended !== undefined && ended * 1000 > time
    ? safe` Step ${series.steps.at(-1)} has ended since.`
    : safe` No step has ended since.`;
  const rows = ranks.map(({ rank, state, call, step }) => [
    `rank ${rank}`,
    state === "running" ? "running: the others wait for it" : state,
    call === null ? "none" : safe`<code>${call}</code>`,
    step ?? "none",
  ]);
  return safe`<p>At ${timeText(time)}.${since}</p>${
    table("Ranks that were late", ["Rank", "State", "Newest call", "Step"], rows)
  }`;
}

/** The tree of units with dtypes and padding. */
export function shardingOf({ record }: RecordedRun): Html {
  if (record === undefined) return safe`<p>Nothing is known of the sharding.</p>`;
  const { sharding, world: { size } } = record;
  if (sharding === null) {
    return safe`<p>Each of ${countOf(size, "rank")} holds the whole model (DDP); nothing is sharded.</p>`;
  }
  const freed = ({ reshardAfterForward: is }: RecordedUnit): string =>
    is === true ? "after the forward" : is === false ? "after the backward" : `kept in ${is} parts`;
  const rows = sharding.map((unit) => [
    safe`<span class="depth${Math.min(unit.depth, 6)}">${unit.name}</span>`,
    groupedCount(unit.numel),
    unit.numParameters,
    unit.padding === 0 ? "none" : groupedCount(unit.padding),
    unit.replicas === 1 ? `${unit.worldSize}` : `${unit.worldSize}, in ${unit.replicas} copies`,
    formatBytes(unit.bytesPerRank),
    unit.dtypes.master,
    unit.dtypes.compute,
    unit.dtypes.reduce,
    freed(unit),
  ]);
  const head = [
    ...["Unit", "Elements", "Parameters", "Padding", "Ranks", "A rank holds"],
    ...["Updated in", "Computed in", "Reduced in", "Freed"],
  ];
  return table("Sharding of the model by unit", head, rows);
}

/** Settings that were made, and defaults. */
export function configurationOf({ record }: RecordedRun): Html {
  if (record === undefined) return safe`<p>Nothing is known of the configuration.</p>`;
  const { config, set } = record;
  const entries = Object.entries(config).toSorted(([a], [b]) => a < b ? -1 : 1);
  const row = ([key, value]: [string, unknown]): readonly HtmlValue[] => [
    key,
    safe`<code>${settingText(value)}</code>`,
    ...set === null ? [] : [set[key] ?? "default"],
  ];
  const head = ["Key", "Value", ...set === null ? [] : ["Set by"]];
  if (set === null) {
    return safe`<p>Which keys were set is not known: the program gave values, not flags.</p>${
      table("Configuration", head, entries.map(row))
    }`;
  }
  const [own, defaults] = [true, false].map((isSet) => entries.filter(([key]) => (set[key] !== undefined) === isSet));
  return safe`${table("Settings that were made", head, (own ?? []).map(row))}<details><summary>${
    countOf(defaults?.length ?? 0, "default")
  }</summary>${table("Settings that are defaults", head, (defaults ?? []).map(row))}</details>`;
}

/** Machine, runtime and data. */
export function environmentOf({ record, folder }: RecordedRun): Html {
  if (record === undefined) return safe`<p>Nothing is known of the environment.</p>`;
  const { environment: on, versions, world, data, model, resumed, predicted } = record;
  const rows: (readonly [string, string])[] = [
    ["Folder", folder],
    ["fullyshard", versions.fullyshard],
    ["Runtime", `${versions.runtime} ${versions.runtimeVersion}`],
    ["Host of rank 0", on.host ?? "not known"],
    ["Platform", `${on.os} ${on.arch}, ${countOf(on.cores, "core")}`],
    ["Device of rank 0", `${on.device}: ${on.deviceDetail}`],
    ["Ranks", `${world.size}, joined by ${world.backend}`],
    ["Model", `${model.className}, ${countOf(model.numParameters, "parameter")}`],
    ["Data", data.description],
    [
      "A step of a rank",
      `${predicted.flops.toExponential(2)} floating-point operations, ${
        formatBytes(predicted.bytesCommunicated)
      } received in ${countOf(predicted.collectives, "call")}`,
    ],
    ...resumed === null ? [] : [["Went on from", resumed] as const],
  ];
  return table("Environment", ["Fact", "Value"], rows);
}

/** Samples of the model's text. */
export function samplesOf({ events }: RecordedRun): Html {
  const samples = eventsOfType(events, "sample");
  if (samples.length === 0) return safe`<p>There is no sample.</p>`;
  return safe`${
    samples.map(({ step, text }) =>
      safe`
        <h3>After step ${step}</h3>
        <pre class="sample">${text}</pre>
      `
    )
  }`;
}

/** Warnings, errors, saves and starts in their order. */
export function eventListOf({ events, missing }: RecordedRun): Html {
  const items = events.flatMap((event): Html[] => {
    const at = safe`<time>${timeText(event.time)}</time>`;
    switch (event.type) {
      case "log": {
        const who = event.rank === null ? "" : `, rank ${event.rank}`;
        return [
          safe`<li class="${event.level}">${at} <strong>${
            event.level === "warn" ? "Warning" : "Error"
          }${who}:</strong> ${event.text}</li>`,
        ];
      }
      case "saved":
        return [safe`<li>${at} Saved <code>${event.path}</code></li>`];
      case "start":
        return [safe`<li>${at} Started at step ${event.step}</li>`];
      case "end":
        return [safe`<li>${at} Ended at step ${event.step}: ${event.outcome}</li>`];
      default:
        return [];
    }
  });
  return safe`${
    missing.length === 0 ? undefined : safe`<ul class="missing">${missing.map((text) => safe`<li>${text}</li>`)}</ul>`
  }${items.length === 0 ? safe`<p>No warning, no save.</p>` : safe`<ol class="events">${items}</ol>`}`;
}
