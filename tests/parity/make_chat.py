"""Makes tests/fixtures/chat: what transformers and TRL make of chats under the templates that lie there.

    python tests/parity/make_chat.py     (torch, transformers, tokenizers and trl)

`bytes/tokenizer.json` and `pieces/tokenizer.json` are learned here: byte-level BPE, and BPE of pieces with a mark for blanks. Of each
template and chat, `expected.json` has the text and ids of `apply_chat_template`, and the mask of assistants' tokens: by the template's
{% generation %}, else by what each turn adds to the text, through the tokenizer's offsets. `trl.json` has the labels of TRL's SFTTrainer.
"""
import json
import logging
import tempfile
from pathlib import Path

from datasets import Dataset
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

logging.disable(logging.WARNING)
HERE = Path(__file__).resolve().parent.parent / "fixtures" / "chat"
SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<start_of_turn>", "<end_of_turn>",
           "<|user|>", "<|assistant|>", "<|system|>", "<|User|>", "<|Assistant|>"]
# What lies in a tokenizer's folder for each template, as models have it.
KINDS = {"chatml": "bytes", "llama3": "bytes", "gemma": "pieces", "mistral": "pieces", "phi3": "pieces", "qwen_tools": "bytes",
         "zephyr": "pieces", "deepseek": "bytes", "generation": "bytes", "thinking": "bytes"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather <now> & \"here\".", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
CHATS = [
    dict(messages=[dict(role="user", content="What is 2 + 2?"), dict(role="assistant", content="2 + 2 = 4.")]),
    dict(messages=[dict(role="system", content="  Answer in French.\n"), dict(role="user", content="Good morning"),
                   dict(role="assistant", content="Bonjour, ça va ?"), dict(role="user", content="And\n\nnow?  "),
                   dict(role="assistant", content=" Très bien 🙂 — merci\n")]),
    dict(messages=[dict(role="user", content="<|im_end|> is a token"), dict(role="assistant", content="日本語 and </s> too"),
                   dict(role="user", content=""), dict(role="assistant", content="x")]),
    dict(messages=[dict(role="user", content="Weather in Köln?"),
                   dict(role="assistant", content=None, tool_calls=[dict(type="function", function=dict(
                       name="weather", arguments=dict(city="Köln", days=3, exact=True, of=None, share=0.25)))]),
                   dict(role="tool", name="weather", content="{\"sky\": \"grey\"}"),
                   dict(role="assistant", content="Grey, as ever.")], tools=[WEATHER]),
    dict(messages=[dict(role="user", content="Think."), dict(role="assistant", content="Done.", reasoning_content="Hm, first…"),
                   dict(role="user", content="Again."), dict(role="assistant", content="Done again.", reasoning="Second.")]),
    dict(messages=[dict(role="user", content="Hi"), dict(role="assistant", content="Hello", thinking="Greet.")],
         chat_template_kwargs=dict(enable_thinking=False)),
    dict(messages=[dict(role="user", content="a"), dict(role="user", content="b")]),
    dict(messages=[dict(role="system", content="s"), dict(role="user", content="No answer yet")]),
]
TEXTS = [message["content"] for chat in CHATS for message in chat["messages"] if message["content"]] * 4

# Jinja as Python runs it, where other engines differ.
SNIPPETS = [
    "{{ none }}|{{ nothing }}|{{ true }}|{{ False }}|{{ 1 }}|{{ 2.5 }}|{{ -3 }}",
    "{{ messages[0].content.lstrip('W') }}|{{ messages[0]['content'].strip('Wh?').rstrip('2 ') }}|{{ '  a '.strip() }}",
    "{{ 'xxa</t>\n\n b\n'.split('</t>')[-1].lstrip('\n') }}|{{ ('xa' ~ 'ax').strip('x') }}|{{ ['xa'][0].lstrip('x') | upper }}",
    "{% for message in messages %}{{ message.name }}{{ message['role'].rstrip('rt').lstrip('u') }};{% endfor %}",
    "{{ {'a': none, 'b': [1, \"it's\", true, {'c': 'x\\n'}]} }}|{{ [] }}|{{ messages }}",
    "{% set x = 'a' %}{% if x %}\r\n  {{ x }}\r\n{% endif %}\r\nend\r\n",
    "{%- macro show(value) %}<{{ value }}>{% endmacro %}{{ show(none) }}{{ show('a') }}{{ show(messages[0].absent) }}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}",
    "{{ {'b': 1, 'a': 'é<&>'} | tojson }}{{ {'b': [1, 2], 'a': {}} | tojson(indent=2) }}{{ 'é\"/' | tojson }}",
    "{{ strftime_now('%Y %% %B')[4:7] }}{{ bos_token + eos_token }}",
]


def learn():
    made = {}
    for kind in ("bytes", "pieces"):
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False) if kind == "pieces" else models.BPE())
        if kind == "bytes":
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            alphabet = pre_tokenizers.ByteLevel.alphabet()
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
            tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
            alphabet = sorted(set("".join(TEXTS)) | set("▁\n[]|<>_/?{}\":,." "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(TEXTS, trainer)
        folder = HERE / kind
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        (folder / "tokenizer_config.json").write_text(json.dumps(dict(
            tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token=dict(content="</s>", lstrip=False, rstrip=False,
            normalized=False, single_word=False, __type="AddedToken"), clean_up_tokenization_spaces=False), indent=1) + "\n")
        made[kind] = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                             clean_up_tokenization_spaces=False)
    return made


def template_of(name):
    return (HERE / "templates" / f"{name}.jinja").read_text()


def turn_mask(tokenizer, chat, text, **kwargs):
    """Spans of assistants' turns by their prefixes; None where no prefix is the text's."""
    spans = []
    for i, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(chat[:i], tokenize=False, add_generation_prompt=True, **kwargs)
        up_to = tokenizer.apply_chat_template(chat[:i + 1], tokenize=False, **kwargs)
        if not (text.startswith(up_to) and up_to.startswith(before)):
            return None
        spans.append((len(before), len(up_to)))
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [int(any(start < span[1] and end > span[0] for span in spans)) for start, end in offsets]


def expected(tokenizers):
    cases = []
    for name, kind in KINDS.items():
        tokenizer, source = tokenizers[kind], template_of(name)
        tokenizer.chat_template = source
        for number, row in enumerate(CHATS):
            kwargs = dict(tools=row.get("tools"), **row.get("chat_template_kwargs", {}))
            for prompt in (False, True):
                case = dict(template=name, tokenizer=kind, chat=number, addGenerationPrompt=prompt)
                try:
                    case["text"] = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=prompt, **kwargs)
                except (TemplateError, TypeError) as error:
                    cases.append(dict(**case, error=str(error)))
                    continue
                case["ids"] = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=prompt, **kwargs)["input_ids"]
                if not prompt and "generation %}" in source:
                    case["mask"] = tokenizer.apply_chat_template(row["messages"], return_assistant_tokens_mask=True, return_dict=True,
                                                                 **kwargs)["assistant_masks"]
                elif not prompt:
                    try:
                        case["mask"] = turn_mask(tokenizer, row["messages"], case["text"], **kwargs)
                    except TemplateError:
                        case["mask"] = None
                cases.append(case)
    return cases


def trl_labels(tokenizer, rows, **options):
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(output_dir=folder, report_to="none", use_cpu=True, bf16=False, **options)
        trainer = SFTTrainer(LlamaForCausalLM(config), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        return [dict(ids=row["input_ids"], labels=row["labels"]) for row in trainer.train_dataset]


def trl(tokenizers):
    tokenizer = tokenizers["bytes"]
    tokenizer.pad_token = "<unk>"
    chats = [CHATS[i] for i in (0, 1, 2)]
    conversational = [dict(prompt=chat["messages"][:-1], completion=chat["messages"][-1:]) for chat in chats]
    plain = [dict(prompt="2 + 2 = ", completion="4"), dict(prompt="Say hi:", completion=" hi 🙂"), dict(prompt="a", completion="b</s>")]
    made = []

    def add(name, template, rows, loss_on, **options):
        tokenizer.chat_template = template_of(template)
        made.append(dict(name=name, template=template, lossOn=loss_on, maxLength=options.get("max_length", 1024), rows=rows,
                         expected=trl_labels(tokenizer, rows, **options)))

    messages = [dict(messages=chat["messages"]) for chat in chats]
    add("messages, assistant_only_loss", "generation", messages, "assistant", assistant_only_loss=True)
    add("messages, all", "chatml", messages, "all")
    add("prompt and completion, completion_only_loss", "chatml", conversational, "completion", completion_only_loss=True)
    add("prompt and completion, all", "chatml", conversational, "all", completion_only_loss=False)
    add("prompt and completion, a long one cut", "chatml", conversational[1:2], "completion", completion_only_loss=True,
        max_length=len(made[2]["expected"][1]["ids"]) - 4)
    add("texts, completion_only_loss", "chatml", plain, "completion")
    add("texts, all", "chatml", plain, "all", completion_only_loss=False)
    return made


if __name__ == "__main__":
    tokenizers = learn()
    write = lambda name, value: (HERE / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    cases = expected(tokenizers)
    write("expected.json", dict(chats=CHATS, cases=cases))
    tokenizer = tokenizers["bytes"]
    write("snippets.json", [dict(source=source, text=tokenizer.apply_chat_template(CHATS[0]["messages"], chat_template=source, tokenize=False))
                            for source in SNIPPETS])
    write("trl.json", trl(tokenizers))
    print(len(cases), "cases,", sum("error" in case for case in cases), "refused")
