/**
 * The script of a live page: takes states of the run as they come, and asks the run to save or to stop.
 */
(() => {
  "use strict";
  const state = document.getElementById("live-state");
  const buttons = ["save", "stop"].map((name) => document.getElementById(name));
  if (state === null) return;
  const say = (text) => {
    if (state.textContent !== text) state.textContent = text;
  };

  /** Puts in new markup of a section, unless the reader is in it; what is open stays open. */
  const replace = (id, markup) => {
    const body = document.querySelector(`#${id} > .body`);
    if (body === null || body.dataset.markup === markup || body.contains(document.activeElement)) return;
    const open = [...body.querySelectorAll("details")].map((one) => one.open);
    body.innerHTML = markup;
    body.dataset.markup = markup;
    [...body.querySelectorAll("details")].forEach((one, i) => {
      one.open = open[i] === true;
    });
  };

  const source = new EventSource("events");
  source.addEventListener("open", () => say("The run goes on; this page follows it."));
  // What changes with every step comes apart from what seldom changes.
  for (const part of ["run", "rest"]) {
    source.addEventListener(part, ({ data }) => {
      const { data: detail, sections } = JSON.parse(data);
      if (detail !== undefined) dispatchEvent(new CustomEvent("fullyshard-data", { detail }));
      for (const [id, markup] of Object.entries(sections)) replace(id, markup);
    });
  }
  source.addEventListener("end", ({ data }) => {
    source.close();
    const { failure } = JSON.parse(data);
    say(
      failure === undefined
        ? "The run has ended; report.html in its folder has the same."
        : `The run has failed. ${failure}`,
    );
    state.classList.toggle("failed", failure !== undefined);
    for (const button of buttons) button.disabled = true;
  });
  source.addEventListener("error", () => say("The run does not answer; this page asks again."));

  const words = {
    save: "The run saves a checkpoint after the present step.",
    stop: "The run saves a checkpoint after the present step, and stops.",
  };
  for (const button of buttons) {
    button.addEventListener("click", async () => {
      try {
        const { ok, status } = await fetch(button.id, { method: "POST" });
        say(ok ? words[button.id] : `The run refuses with status ${status}.`);
      } catch {
        say("The run does not answer.");
      }
    });
  }
})();
