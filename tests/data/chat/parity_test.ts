/** Texts, ids and labels of chats against those of transformers and TRL, on templates in the shapes of well-known ones. @module */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type Chat, contentsOf } from "../../../src/data/chat/columns.ts";
import { encodeRow } from "../../../src/data/chat/encode_row.ts";
import { ChatTemplate } from "../../../src/data/chat/template.ts";
import { TemplateFailure } from "../../../src/data/chat/failure.ts";
import { ConfigError } from "../../../src/errors.ts";
import type { JsonObject } from "../../../src/json.ts";
import { EXPECTED, openTemplate, SNIPPETS, TRL } from "./fixtures.ts";

const PLACE = { file: "chats.jsonl", line: 3 };
const COLUMNS = { textField: "text", name: "data" };

function chatOf(value: JsonObject): Chat {
  const contents = contentsOf({ ...PLACE, value }, COLUMNS);
  assert.ok(contents.kind === "chat");
  return contents;
}

describe("ChatTemplate gives the texts and ids of apply_chat_template", () => {
  for (const [name, cases] of Map.groupBy(EXPECTED.cases, ({ template }) => template)) {
    test(name, async () => {
      const { tokenizer, templates } = await openTemplate(cases[0]?.tokenizer ?? "", name);
      let texts = 0;
      for (const { chat: number, addGenerationPrompt, text, ids, error } of cases) {
        const { messages, tools, variables } = chatOf(EXPECTED.chats[number] ?? {});
        const inputs = { messages, tools, variables, addGenerationPrompt };
        const template = templates.pick(tools !== undefined);
        const where = `chat ${number}`;
        if (error !== undefined) {
          assert.throws(() => template.render(inputs), TemplateFailure, `${where}: ${error}`);
          continue;
        }
        assert.equal(template.render(inputs), text, where);
        assert.deepEqual(tokenizer.encode(text ?? ""), ids, where);
        texts++;
      }
      assert.ok(texts >= 6, `${texts} texts`);
    });
  }
});

describe("encodeRow() trains on the tokens of transformers' masks of assistants, or refuses a template that rewrites turns", () => {
  for (const [name, cases] of Map.groupBy(EXPECTED.cases, ({ template }) => template)) {
    test(name, async () => {
      const { tokenizer, templates } = await openTemplate(cases[0]?.tokenizer ?? "", name);
      const encoding = { tokenizer, templates, lossOn: "assistant", maxLength: 4096, name: "data" } as const;
      let masks = 0;
      for (const { chat: number, ids, mask, addGenerationPrompt } of cases) {
        if (addGenerationPrompt) continue;
        const encode = (): ReturnType<typeof encodeRow> =>
          encodeRow(chatOf(EXPECTED.chats[number] ?? {}), PLACE, encoding);
        if (ids === undefined || mask === undefined || mask === null || !mask.includes(1)) {
          assert.throws(encode, ConfigError, `chat ${number}`);
          continue;
        }
        const { ids: own, labels, cut } = encode();
        assert.deepEqual([...own], ids);
        assert.deepEqual([...labels], ids.map((id, i) => mask[i] === 1 ? id : -100), `chat ${number}`);
        assert.equal(cut, 0);
        masks++;
      }
      assert.ok(masks >= 2, `${masks} masks`);
    });
  }
});

describe("encodeRow() gives the ids and labels of TRL's SFTTrainer", () => {
  for (const { name, template, lossOn, maxLength, rows, expected } of TRL) {
    test(name, async () => {
      const { tokenizer, templates } = await openTemplate("bytes", template);
      const encoding = { tokenizer, templates, lossOn, maxLength, name: "data" };
      const own = rows.map((value) => {
        const { ids, labels } = encodeRow(contentsOf({ ...PLACE, value }, COLUMNS), PLACE, encoding);
        return { ids: [...ids], labels: [...labels] };
      });
      assert.deepEqual(own, expected);
      assert.ok(expected.some(({ labels }) => labels.some((label) => label >= 0)));
    });
  }
});

test("ChatTemplate writes values, strips characters and ends lines as Python does", () => {
  const { messages } = chatOf(EXPECTED.chats[0] ?? {});
  for (const { source, text } of SNIPPETS) {
    const template = new ChatTemplate(source, "snippet", { bos_token: "<s>", eos_token: "</s>" });
    assert.equal(template.render({ messages }), text, source);
  }
});

test("ChatTemplate adds to texts what Python adds, and refuses the rest", () => {
  const render = (source: string, content: unknown): string => {
    const variables = { content: JSON.parse(JSON.stringify(content)) };
    return new ChatTemplate(source, "sum", {}).render({ messages: [], variables });
  };
  const sum = "{{- '<' + content + '>' }}";
  assert.equal(render(sum, "a"), "<a>");
  // jinja2 raises a TypeError for each of these.
  const parts = [{ type: "text", text: "a" }];
  for (const [content, name] of [[parts, "list"], [3, "int"], [true, "bool"], [{ a: 1 }, "dict"]] as const) {
    const said = new RegExp(`it adds a ${name} to a text, which Python refuses`);
    assert.throws(() => render(sum, content), (error) => error instanceof TemplateFailure && said.test(error.message));
  }
  assert.equal(render("{% for part in content %}{{ '<' + part.text + '>' }}{% endfor %}", parts), "<a>");
  assert.equal(render("{{ '<' ~ content ~ '>' }}", 3), "<3>");
  assert.equal(render("{{ (content + 1)|string + '>' }}", 3), "4>");
});
