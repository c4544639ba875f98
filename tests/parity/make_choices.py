"""Makes tests/fixtures/choices: log-likelihoods by transformers of the choices of questions, and the figures of multiple choice.

    python tests/parity/make_choices.py     (torch and transformers; after make_chat.py)

A text and its choice are encoded together, by both tokenizers of tests/fixtures/chat, and what is behind the tokens of the text alone
is scored, as EleutherAI's lm-evaluation-harness does: `acc` by the sum of log-likelihoods, `acc_norm` and `acc_bytes` by that sum
over the choice's characters and bytes. `margin` is the least distance of the best two of any question: how far rounding is from another
answer.
"""
import json
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
HERE = FIXTURES / "choices"
POSITIONS = 40
DELIMITER = " "
ROWS = [
    dict(question="Good", choices=["morning", "evening", "now"], answer=0),
    dict(question="What is 2 + 2?", choices=["4", "5", "22", "four"], answer="A"),
    dict(prompt="2 + 2 =", choices=["4", "4.", "4. 2 + 2 = 4."], answer="4."),  # each the begin of the next
    dict(context="Answer in French:", choices=["Très bien 🙂", "Good", "日本語"], answer=2),  # bytes are not characters
    dict(context="Good ", choices=["morning", " morning", "x"], answer="B"),  # white space before the choice
    dict(context="Weather in\n", choices=["Köln", "here"], answer="here"),
    dict(context="", choices=["Done.", "Hi", "And now?"], answer="b"),  # nothing before the choice
    dict(context="Hm", choices=["Done", "Done again"], answer=1),
]
LONG = dict(context="Good morning, ça va ? " * 6, choices=["Done again.", "Hi"], answer=0)


def encoded(tokenizer, context, choice, add_bos):
    text, between = context.rstrip(), context[len(context.rstrip()):] + DELIMITER
    start = [tokenizer.bos_token_id] if add_bos or text == "" else []
    alone = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.encode(text + between + choice, add_special_tokens=False)
    return start + whole, len(whole) - len(alone)


def log_likelihood(model, ids, scored):
    ids = ids[-(POSITIONS + 1):]
    with torch.no_grad():
        scores = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
    return sum(scores[place - 1, ids[place]].item() for place in range(len(ids) - scored, len(ids)))


def place_of(row):
    answer, choices = row["answer"], row["choices"]
    return answer if isinstance(answer, int) else choices.index(answer) if answer in choices else ord(answer.upper()) - ord("A")


def texts_of(tokenizer, row, add_bos):
    context = next(row[key] for key in ("question", "prompt", "context") if key in row)
    return [encoded(tokenizer, context, choice, add_bos) for choice in row["choices"]]


def fitting(tokenizer):
    """The rows whose choices all have tokens of their own: `pieces` joins words that it has learned together."""
    return [row for row in ROWS if all(scored > 0 for _, scored in texts_of(tokenizer, row, False))]


def measured(model, tokenizer, rows, add_bos):
    scores = [[log_likelihood(model, *text) for text in texts_of(tokenizer, row, add_bos)] for row in rows]
    lengths = dict(acc=lambda text: 1, acc_norm=len, acc_bytes=lambda text: len(text.encode()))
    found, margin = dict(log_likelihoods=scores), math.inf
    for name, length in lengths.items():
        right = []
        for row, likelihoods in zip(rows, scores):
            weighed = [likelihood / length(choice) for likelihood, choice in zip(likelihoods, row["choices"])]
            best, second = sorted(weighed, reverse=True)[:2]
            margin = min(margin, best - second)
            right.append(int(weighed.index(best) == place_of(row)))
        mean = sum(right) / len(right)
        found[name] = mean
        found[f"{name}_stderr"] = math.sqrt(sum((one - mean) ** 2 for one in right) / (len(right) - 1)) / math.sqrt(len(right))
    return dict(found, margin=margin)


if __name__ == "__main__":
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=420, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, max_position_embeddings=POSITIONS, tie_word_embeddings=True, initializer_range=0.25,
                         bos_token_id=None, eos_token_id=None, use_cache=False)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(HERE / "llama")
    (HERE / "llama" / "generation_config.json").unlink(missing_ok=True)
    cases = []
    for kind in ("bytes", "pieces"):
        tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "chat" / kind)
        for add_bos in (False, True):
            rows = fitting(tokenizer)
            cases.append(dict(tokenizer=kind, add_bos_token=add_bos, rows=rows, **measured(model, tokenizer, rows, add_bos)))
    cut = measured(model, AutoTokenizer.from_pretrained(FIXTURES / "chat" / "bytes"), [LONG, ROWS[0]], True)
    text = json.dumps(dict(cases=cases, cut=dict(rows=[LONG, ROWS[0]], **cut)), ensure_ascii=False, indent=1)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")
    print([case["margin"] for case in [*cases, cut]])
