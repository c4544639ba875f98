/**
 * A reader of a live page, as a browser is: it gets the page, and then every state that the run tells.
 *
 * @module
 */

addEventListener("message", async ({ data }: MessageEvent<string>) => {
  await (await fetch(data)).text();
  const { body } = await fetch(`${data}events`);
  // States are read as they come, and dropped.
  await body?.pipeTo(new WritableStream()).catch(() => undefined); // the run has ended
});
