/**
 * A reader of a live page, as a browser is: it gets the page, and then every state that the run tells.
 *
 * @module
 */

addEventListener("message", async (event) => {
  if (!(event instanceof MessageEvent)) return;
  const address = String(event.data);
  await (await fetch(address)).text();
  const { body } = await fetch(`${address}events`);
  // States are read as they come, and dropped.
  await body?.pipeTo(new WritableStream()).catch(() => undefined); // the run has ended
});
