"""Which checkpoints this project runs, decided from the configuration before any weight is read."""

from typing import Any

from jevify.errors import UnsupportedModelError

MODEL_TYPES = ("llama", "qwen2", "qwen3")
# Rope variants whose frequencies do not depend on the length of the input.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def check_config(config: Any, name: str) -> None:
    """Raise UnsupportedModelError, naming every reason, unless `config` is a dense Qwen2, Qwen3 or Llama.

    config: a transformers PretrainedConfig. name: what the user asked for, used in the message.
    """
    reasons = list(_reasons(config))
    if reasons:
        raise UnsupportedModelError(f"{name} cannot be used: " + "; ".join(reasons))


def _reasons(config: Any) -> list[str]:
    if config.model_type not in MODEL_TYPES:
        return [f"its model type is {config.model_type!r}, and only {', '.join(MODEL_TYPES)} are supported"]
    found = []
    if getattr(config, "use_sliding_window", False) or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    ):
        found.append("it uses sliding-window or hybrid attention")
    if getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0):
        found.append("it is a mixture of experts")
    if getattr(config, "quantization_config", None):
        found.append("its weights are quantized; use the unquantized checkpoint")
    for cap in ("final_logit_softcapping", "attn_logit_softcapping"):
        if getattr(config, cap, None):
            found.append(f"it caps logits ({cap})")
    if config.hidden_act != "silu":
        found.append(f"its activation is {config.hidden_act!r}, not 'silu'")
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type not in ROPE_TYPES:
        found.append(f"its rope type {rope_type!r} changes with the input length")
    return found


def check_model(model: Any, name: str) -> None:
    """Raise UnsupportedModelError for a loaded model that is offloaded or quantized, or whose head is not linear."""
    from torch import nn

    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise UnsupportedModelError(f"{name} cannot be used: its head is {type(head).__name__}, not a linear layer")
    places = {str(parameter.device) for parameter in model.parameters()}
    if len(places) > 1 or "meta" in places:
        raise UnsupportedModelError(
            f"{name} cannot be used: its weights are spread over {', '.join(sorted(places))}; load it on one device"
        )
    wrapped = sorted(
        {type(module).__name__ for module in model.modules() if "Linear" in type(module).__name__} - {"Linear"}
    )
    if wrapped:
        raise UnsupportedModelError(f"{name} cannot be used: its layers are wrapped ({', '.join(wrapped)})")
