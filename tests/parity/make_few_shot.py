"""Makes tests/fixtures/choices/few_shot.json: log-likelihoods by transformers of choices behind examples and chat templates.

    python tests/parity/make_few_shot.py     (torch and transformers; after make_distillation.py, whose teacher is the model)

Examples are the first rows other than the question, as lm-evaluation-harness takes them with `sampler: first_n` from the same split. Each
has its text, a blank, its right choice and an empty line behind. Under a chat template all of it is one user's turn, or with
`fewshot_as_multiturn` each example is a turn of the user and one of the assistant; no blank comes before the choices then.
"""
import json

import torch
from make_choices import FIXTURES, HERE, log_likelihood, place_of
from transformers import AutoTokenizer, LlamaForCausalLM

import make_choices

ROWS = [
    dict(question="2 + 1 =", choices=["3", "4", "33"], answer="3"),
    dict(question="1 + 1 = ", choices=["2", "11"], answer=0),
    dict(prompt="Say hi", choices=["Hi", "No"], answer="A"),
    dict(context="5 + 1 =", choices=["6", "7", "51"], answer=0),
]


def text_of(row):
    return next(row[key] for key in ("question", "prompt", "context") if key in row)


def examples_of(rows, row, count):
    return [other for other in rows[:count + 1] if other != row][:count]


def context_of(row, examples, tokenizer=None, multiturn=False):
    right = lambda one: one["choices"][place_of(one)]
    shown = "".join(f"{text_of(one)} {right(one)}\n\n" for one in examples)
    if tokenizer is None:
        return shown + text_of(row)
    if multiturn:
        turns = [turn for one in examples for turn in (("user", text_of(one)), ("assistant", right(one)))]
    else:
        turns = []
        row = dict(question=shown + text_of(row))
    messages = [dict(role=role, content=content) for role, content in [*turns, ("user", text_of(row))]]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def encoded(tokenizer, context, between, choice):
    text = context.rstrip()
    whole = tokenizer.encode(context + between + choice, add_special_tokens=False)
    return whole, len(whole) - len(tokenizer.encode(text, add_special_tokens=False))


if __name__ == "__main__":
    make_choices.POSITIONS = 200
    model = LlamaForCausalLM.from_pretrained(FIXTURES / "distillation" / "teacher").eval()
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "chat" / "bytes")
    tokenizer.chat_template = (FIXTURES / "chat" / "templates" / "chatml.jinja").read_text()
    cases = []
    for count, chat, multiturn in [(2, False, False), (0, True, False), (1, True, False), (2, True, True)]:
        scores = []
        for row in ROWS:
            context = context_of(row, examples_of(ROWS, row, count), tokenizer if chat else None, multiturn)
            scores.append([log_likelihood(model, *encoded(tokenizer, context, "" if chat else " ", choice)) for choice in row["choices"]])
        cases.append(dict(num_fewshot=count, apply_chat_template=chat, fewshot_as_multiturn=multiturn, log_likelihoods=scores))
    (HERE / "few_shot.json").write_text(json.dumps(dict(rows=ROWS, cases=cases), separators=(",", ":")) + "\n", encoding="utf-8")
