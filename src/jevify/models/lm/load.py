"""Loading a causal language model and its tokenizer through transformers."""

from dataclasses import dataclass
from typing import Any

import torch

from jevify.errors import InputError, JevifyError, UnsupportedModelError
from jevify.models.lm.support import check_config, check_model

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Checkpoint:
    """Where a model comes from: its name as asked for, its folder or hub id, and the revision."""

    name: str
    source: str
    revision: str | None = None
    local_files_only: bool = False

    def options(self) -> dict[str, Any]:
        """Keyword arguments for any transformers `from_pretrained`. Remote code is never trusted."""
        return {
            "revision": self.revision,
            "local_files_only": self.local_files_only,
            "trust_remote_code": False,
        }


def pick_device(device: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:N". Raises InputError when it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device!r} is not known; use auto, cpu, cuda or cuda:N") from error
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"device {device!r} was asked for, but this PyTorch sees no CUDA device; use --device cpu")
        if chosen.index is not None and chosen.index >= torch.cuda.device_count():
            raise InputError(f"device {device!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices")
    return chosen


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype for a name or "auto": bf16 on GPUs that have it, else fp16; fp32 on the CPU."""
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not known; use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def load_config(checkpoint: Checkpoint) -> Any:
    """The checked transformers configuration. Raises UnsupportedModelError, or JevifyError when it cannot be had."""
    from transformers import AutoConfig

    with _told(checkpoint, "configuration"):
        config = AutoConfig.from_pretrained(checkpoint.source, **checkpoint.options())
    check_config(config, checkpoint.name)
    return config


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The transformers tokenizer of `checkpoint`. Raises JevifyError when it cannot be had."""
    from transformers import AutoTokenizer

    with _told(checkpoint, "tokenizer"):
        return AutoTokenizer.from_pretrained(checkpoint.source, **checkpoint.options())


def load_model(checkpoint: Checkpoint, config: Any, *, device: torch.device, dtype: torch.dtype, attention: str) -> Any:
    """The transformers model on `device`, in eval mode without gradients.

    Raises UnsupportedModelError or JevifyError.
    """
    from transformers import AutoModelForCausalLM

    with _told(checkpoint, "weights"):
        model, info = AutoModelForCausalLM.from_pretrained(
            checkpoint.source,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            # A pickle can run code when it is loaded.
            use_safetensors=True,
            output_loading_info=True,
            **checkpoint.options(),
        )
        # transformers fills what is missing with random numbers and goes on.
        if absent := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
            raise ValueError(f"{len(absent)} tensors are missing or of another shape: {', '.join(absent[:5])}")
    model = model.to(device).eval().requires_grad_(False)
    check_model(model, checkpoint.name)
    return model


class _told:
    """Turns the errors of a missing or broken checkpoint into one message that names it."""

    def __init__(self, checkpoint: Checkpoint, what: str) -> None:
        self.checkpoint, self.what = checkpoint, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, JevifyError):
            return
        if isinstance(error, KeyError | ValueError) and self.what == "configuration":
            raise UnsupportedModelError(f"{self.checkpoint.name} cannot be used: {_first_line(error)}") from error
        raise JevifyError(
            f"the {self.what} of {self.checkpoint.name!r} could not be loaded: {_first_line(error)}; "
            f"fetch it again (jevify models pull {self.checkpoint.name}) or mend the folder"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
