"""Writes transformers' plans of tensor and of pipeline parallelism of the families that this library has, for `plans_test.ts`.

    python tests/axes/make_plans.py > tests/fixtures/tensor_plans.json

Needs transformers 5.24.
"""

import json
import os

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

ZOO = os.path.join(os.path.dirname(__file__), "../fixtures/zoo")


def plan_of(family):
    with open(os.path.join(ZOO, f"{family}.json")) as file:
        model_type = json.load(file)["model_type"]
    config = CONFIG_MAPPING[model_type]
    model = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    if isinstance(model, tuple):
        model = model[0]
    base = model.base_model_prefix
    plan = {f"{base}.{name}": style for name, style in (config.base_model_tp_plan or {}).items()}
    return {**plan, **(getattr(model, "_tp_plan", None) or {})}


def stages_of(family):
    """Modules before the blocks and behind them, by the pipeline plans of body and model; None where there is no plan."""
    with open(os.path.join(ZOO, f"{family}.json")) as file:
        model_type = json.load(file)["model_type"]
    config = CONFIG_MAPPING[model_type]
    model = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    if isinstance(model, tuple):
        model = model[0]
    if not config.base_model_pp_plan:
        return None
    names = list(config.base_model_pp_plan)
    place = names.index("layers")
    prefix = model.base_model_prefix
    behind = [f"{prefix}.{name}" for name in names[place + 1 :]] + list(getattr(model, "_pp_plan", None) or {})
    return [[f"{prefix}.{name}" for name in names[:place]], behind]


families = sorted(name[: -len(".json")] for name in os.listdir(ZOO))
print(json.dumps({"source": f"transformers {transformers.__version__}", "families": {f: plan_of(f) for f in families}, "stages": {f: stages_of(f) for f in families}}, indent=1))
