/**
 * Finds an assistant's text in a chat whose template does not mark it: turn by turn, from the text that each turn adds to the text
 * of the turns before.
 *
 * @module
 */
import { TemplateFailure } from "./failure.ts";
import type { ChatTemplate, MarkedText, TemplateInputs, TextSpan } from "./template.ts";

/**
 * The text of a chat with the spans of its assistant's turns. Of each turn the text of all messages before it, with what begins an
 * assistant's turn, is compared with the text of all messages up to it: what is more is the turn, with what ends it.
 *
 * @throws {TemplateFailure} if the template writes the beginning of the chat otherwise when there is more of it, so that no part of
 * the full text is the turn
 */
export function renderTurns(template: ChatTemplate, inputs: TemplateInputs): MarkedText {
  const text = template.render(inputs);
  const { messages } = inputs;
  const spans: TextSpan[] = [];
  for (const [i, { role }] of messages.entries()) {
    if (role !== "assistant") continue;
    const { start, end } = turnOf(template, inputs, i, text);
    spans.push({ start, end });
  }
  return { text, spans };
}

function turnOf(template: ChatTemplate, inputs: TemplateInputs, i: number, text: string): TextSpan {
  const { messages } = inputs;
  const before = i === 0
    ? ""
    : template.render({ ...inputs, messages: messages.slice(0, i), addGenerationPrompt: true });
  const upTo = i === messages.length - 1 ? text : template.render({ ...inputs, messages: messages.slice(0, i + 1) });
  requirePrefix(text, upTo, `messages 0 to ${i}`);
  requirePrefix(upTo, before, `messages 0 to ${i - 1} and what begins an assistant's turn`);
  return { start: before.length, end: upTo.length };
}

/**
 * Refuses a text that does not begin with the text of a part of its chat.
 *
 * @param what the part
 */
export function requirePrefix(text: string, prefix: string, what: string): void {
  if (text.startsWith(prefix)) return;
  let same = 0;
  while (same < prefix.length && text[same] === prefix[same]) same++;
  const show = (whole: string): string => JSON.stringify(whole.slice(same, same + 40));
  throw new TemplateFailure(
    `it rewrites earlier turns: the text of ${what} alone goes on with ${
      show(prefix)
    } at character ${same}, and with ` +
      `${
        show(text)
      } when more messages follow; so no part of the text is an assistant's turn. Put {% generation %} and ` +
      "{% endgeneration %} around it in a file of your own ('--chat-template'), divide the chat, or train on all ('--loss-on all')",
  );
}
