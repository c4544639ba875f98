/**
 * The page's script: draws the numbers by uPlot, and reads them out at a step that a slider or the pointer chooses. It makes no
 * markup of texts.
 */
(() => {
  "use strict";
  const place = document.getElementById("data");
  const slider = document.getElementById("step");
  const output = document.getElementById("values");
  const figures = [...document.querySelectorAll(".chart")];
  if (place === null || slider === null || output === null || figures.length === 0) return;
  const DASHES = [[], [8, 3], [3, 3], [10, 3, 3, 3]];
  let data = JSON.parse(place.textContent);
  let steps = [];
  let charts = [];
  let moving = false;

  const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** A number as people read it. */
  const text = (key, value) => {
    if (value === null || value === undefined) return "–";
    if (key === "peak_bytes") return bytes(value);
    if (key === "tokens_per_second") return String(Math.round(value));
    return key === "learning_rate" ? value.toExponential(2) : value.toPrecision(4);
  };
  const bytes = (value) =>
    value >= 2 ** 30
      ? `${(value / 2 ** 30).toFixed(2)} GiB`
      : value >= 2 ** 20
      ? `${(value / 2 ** 20).toFixed(1)} MiB`
      : `${(value / 2 ** 10).toFixed(1)} KiB`;
  const short = (key, value) =>
    value === null || value === undefined
      ? ""
      : key === "peak_bytes"
      ? bytes(value)
      : Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3)
      ? value.toExponential(1)
      : String(Number(value.toPrecision(4)));

  /** A run's numbers at the steps of all runs. */
  const laid = (run, name) => {
    const at = new Map(run.steps.map((step, i) => [step, run.values[name]?.[i] ?? null]));
    return steps.map((step) => at.get(step) ?? null);
  };

  /** The lines of a chart: of each run the measure, and with the loss the held-out losses. */
  const linesOf = (key) =>
    data.runs.flatMap((run, index) => {
      const own = run.values[key] === undefined ? [] : [{ name: key, run, index, held: false }];
      const held = key === "loss" ? run.heldOut : [];
      return [...own, ...held.map((name) => ({ name, run, index, held: true }))];
    });

  const draw = () => {
    for (const { chart } of charts) chart?.destroy();
    steps = [...new Set(data.runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
    slider.max = String(Math.max(0, steps.length - 1));
    const axis = { stroke: colorOf("--quiet"), grid: { stroke: colorOf("--line"), width: 1 }, ticks: { show: false } };
    charts = figures.map((figure) => {
      const key = figure.dataset.key;
      const plot = figure.querySelector(".plot");
      const lines = linesOf(key);
      plot.textContent = "";
      if (lines.length === 0) {
        plot.textContent = "No numbers.";
        return { key, lines };
      }
      const values = lines.map(({ run, name }) => laid(run, name));
      const options = {
        width: Math.max(120, plot.clientWidth),
        height: plot.clientHeight,
        legend: { show: false },
        cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
        scales: { x: { time: false } },
        axes: [
          { ...axis, size: 30 },
          { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => short(key, tick)) },
        ],
        series: [
          {},
          ...lines.map(({ index, held }) => ({
            stroke: colorOf(`--c${index % 8}`),
            width: held ? 1 : 2,
            dash: held ? [2, 4] : DASHES[index % 4],
            spanGaps: true,
            points: { show: held || steps.length < 3, size: held ? 9 : 6, fill: colorOf("--back") },
          })),
        ],
        hooks: {
          setCursor: [(chart) => {
            if (moving || chart.cursor.idx === null || chart.cursor.idx === undefined) return;
            slider.value = String(chart.cursor.idx);
            say();
          }],
        },
      };
      const seen = values.flat().filter((value) => value !== null);
      const ends = `${text(key, seen[0])} at first, ${text(key, seen.at(-1))} at last`;
      plot.setAttribute("aria-label", `${figure.querySelector("span").textContent} by step: ${ends}`);
      return { key, lines, values, chart: new uPlot(options, [steps, ...values], plot) };
    });
    slider.value = slider.max;
    say();
  };

  /** Tells the numbers at the slider's step. */
  const say = () => {
    const place = Number(slider.value);
    slider.setAttribute("aria-valuetext", `step ${steps[place]}`);
    const parts = data.runs.flatMap((run, index) => {
      const numbers = charts.flatMap(({ key, lines, values = [] }) =>
        lines.flatMap((line, i) => {
          const value = values[i]?.[place];
          const isOwn = line.index === index && value !== null && value !== undefined;
          return isOwn ? [`${line.name} ${text(key, value)}`] : [];
        })
      );
      if (numbers.length === 0) return [];
      return [`${data.runs.length > 1 ? `${run.name}: ` : ""}${numbers.join("  ·  ")}`];
    });
    output.textContent = [`Step ${steps[place] ?? "none"}`, ...parts].join(data.runs.length > 1 ? "\n" : "  ·  ");
  };

  slider.addEventListener("input", () => {
    say();
    moving = true;
    const place = Number(slider.value);
    for (const { chart, values = [] } of charts) {
      if (chart === undefined) continue;
      const value = values.map((list) => list[place]).find((one) => one !== null && one !== undefined);
      const top = value === undefined ? 0 : chart.valToPos(value, "y");
      chart.setCursor({ left: chart.valToPos(steps[place], "x"), top }, false);
    }
    moving = false;
  });

  let width = document.documentElement.clientWidth;
  new ResizeObserver(() => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    for (const { chart } of charts) {
      const plot = chart?.root.parentElement;
      if (plot) chart.setSize({ width: Math.max(120, plot.clientWidth), height: plot.clientHeight });
    }
  }).observe(document.documentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("fullyshard-data", ({ detail }) => {
    const [place, last] = [slider.value, slider.max];
    data = detail;
    draw();
    // A reader who looks at an earlier step stays there.
    if (place !== last) {
      slider.value = place;
      say();
    }
  });
  draw();
})();
