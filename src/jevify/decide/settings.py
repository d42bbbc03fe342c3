"""What a user may set on an engine, checked before any model loads."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jevify.accel.ops import KERNELS as KERNELS
from jevify.accel.ops import MODULE_KERNELS
from jevify.decide.presets import Preset
from jevify.errors import SettingError

EXECUTORS = ("independent", "forked", "packed")
# What mode="parallel" means until evidence moves it.
DEFAULT_EXECUTOR: Mapping[str, str] = {"cpu": "forked", "cuda": "forked"}

_CHOICES: dict[str, tuple[str, ...]] = {
    "executor": ("auto", *EXECUTORS),
    "attention": ("sdpa", "eager"),
    "shared_attention": ("auto", "off", "on"),
    "graph_keys": ("exact", "bucketed"),
    "prompt_format": ("auto", "delimited", "readable", "json"),
    "answer_encoding": ("auto", "letters", "labels"),
}
_BOUNDS: dict[str, tuple[int, int]] = {
    "branch_batch_size": (1, 256),
    "token_budget": (16, 1_048_576),
    "max_graphs": (1, 256),
    "graph_budget_mb": (1, 65_536),
    "max_label_tokens": (1, 1_024),
    "max_questions": (1, 4_096),
    "max_question_tokens": (16, 1_048_576),
}
BOUNDS_OF_REQUESTS = ("max_questions", "max_question_tokens", "max_label_tokens")
"""Settings that only refuse what is too large."""
BOUNDS_OF_MEMORY = ("branch_batch_size", "token_budget", "max_graphs", "graph_budget_mb")
"""Settings that only say how much is held at once."""

# Which executors each setting acts on; settings not named act on all.
_ACTS_ON: dict[str, tuple[str, ...]] = {
    "attention": ("independent", "forked"),
    "branch_batch_size": ("forked",),
    "token_budget": ("packed",),
    "efficient_cache": ("forked",),
    "length_aware": ("forked",),
    "fused_kernels": ("forked", "packed"),
    "shared_attention": ("forked", "packed"),
    "specialize_short": ("forked", "packed"),
    "cuda_graphs": ("forked", "packed"),
    "graph_keys": ("packed",),
    "max_graphs": ("forked", "packed"),
    "graph_budget_mb": ("forked", "packed"),
}


@dataclass(frozen=True)
class DecideSettings:
    """Settings of a decision engine, as the command line spells them.

    Raises SettingError at construction for a value out of range or one that another leaves without effect, and, in
    `resolved`, for one without effect on the chosen executor. `token_budget` and `max_question_tokens`
    count tokens, `graph_budget_mb` MiB.
    """

    executor: str = "auto"
    attention: str = "sdpa"
    branch_batch_size: int = 8
    token_budget: int = 8_192
    efficient_cache: bool = True
    length_aware: bool = True
    shared_attention: str = "auto"
    specialize_short: bool = True
    cuda_graphs: bool = False
    max_graphs: int = 4
    graph_budget_mb: int = 192
    graph_keys: str = "exact"
    fused_kernels: tuple[str, ...] = ()
    prompt_format: str = "auto"
    answer_encoding: str = "auto"
    max_label_tokens: int = 64
    max_questions: int = 32
    max_question_tokens: int = 2_048
    temperature: float = 1.0
    strict: bool = False
    stable: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise SettingError(f"{_flag(name)} is {getattr(self, name)!r}; use one of {', '.join(allowed)}")
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise SettingError(f"{_flag(name)} is {value!r}; use a whole number from {low} to {high}")
        for entry in fields(self):
            if type(entry.default) is bool and type(getattr(self, entry.name)) is not bool:
                raise SettingError(f"{entry.name} is {getattr(self, entry.name)!r}; use True or False")
        if type(self.temperature) not in (int, float) or not 0.01 <= self.temperature <= 100:
            raise SettingError(f"--temperature is {self.temperature!r}; use a number from 0.01 to 100")
        if not isinstance(self.fused_kernels, tuple | list):
            raise SettingError(f"fused_kernels is {self.fused_kernels!r}; give a tuple of kernel names")
        object.__setattr__(self, "fused_kernels", tuple(self.fused_kernels))
        self._refuse_unknown_kernels()
        self._refuse_idle()

    def _refuse_unknown_kernels(self) -> None:
        for kernel in self.fused_kernels:
            if kernel not in KERNELS:
                raise SettingError(f"--fused-kernels names {kernel!r}; the kernels are {', '.join(KERNELS)}")

    def _refuse_idle(self) -> None:
        """Refuse what another setting leaves without effect."""
        if self.shared_attention == "off":
            if not self.specialize_short:
                raise SettingError("--no-short-attention has nothing to turn off with --shared-attention off")
            if self.graph_keys == "bucketed":
                raise SettingError("--graph-keys bucketed needs the attention kernel: leave out --shared-attention off")
        for name in ("max_graphs", "graph_budget_mb", "graph_keys"):
            if getattr(self, name) != getattr(DecideSettings, name) and not self.cuda_graphs:
                raise SettingError(f"{_flag(name)} has no effect without --cuda-graphs")

    def resolved(self, device_type: Literal["cpu", "cuda"], preset: Preset) -> "DecideSettings":
        """These settings with every "auto" but shared attention replaced by what it means here.

        Raises SettingError when a setting that differs from its default does not act on the chosen executor, or when
        fused kernels or the attention kernel were asked for and cannot run here (CUDA graphs on a CPU fall back to
        ordinary execution, which is an error only under strict).
        """
        executor = DEFAULT_EXECUTOR[device_type] if self.executor == "auto" else self.executor
        for name, value in self.changed().items():
            if executor not in _ACTS_ON.get(name, EXECUTORS):
                raise SettingError(
                    f"{_spelled(name, value)} has no effect on the {executor} executor; "
                    f"it acts on {' and '.join(_ACTS_ON[name])}"
                )
        for kernel in self.fused_kernels:
            if executor == "forked" and kernel not in MODULE_KERNELS:
                raise SettingError(
                    f"--fused-kernels {kernel} has no effect on the forked executor; it multiplies by the merged "
                    "weights of packed"
                )
        wanted = {"fused_kernels": self.fused_kernels, "shared_attention": self.shared_attention}
        for name, value in wanted.items():
            # "auto" asks for nothing that could be refused.
            if value in ((), "auto", "off"):
                continue
            # Triton is slow to import and seldom asked for.
            from jevify.accel.ops.triton_runtime import unavailable

            if reason := unavailable(device_type):
                raise SettingError(f"{_spelled(name, value)}: {reason}")
        if not self.specialize_short and device_type == "cpu":
            raise SettingError("--no-short-attention has no effect on a CPU: the attention kernel needs a CUDA device")
        if self.cuda_graphs and device_type == "cuda" and not self.efficient_cache:
            raise SettingError("--no-efficient-cache has no effect with --cuda-graphs: graphs copy no cache object")
        if self.cuda_graphs and self.attention == "eager":
            raise SettingError("--cuda-graphs needs --attention sdpa; eager attention cannot be captured")
        if self.cuda_graphs and self.strict and device_type == "cpu":
            raise SettingError("--strict: --cuda-graphs needs a CUDA device and would fall back to ordinary execution")
        return replace(
            self,
            executor=executor,
            prompt_format=preset.prompt_format if self.prompt_format == "auto" else self.prompt_format,
            answer_encoding=preset.answer_encoding if self.answer_encoding == "auto" else self.answer_encoding,
        )

    def kept_by(self, executor: str) -> "DecideSettings":
        """These settings, those that do not act on `executor` at their defaults."""
        idle = {name: getattr(DecideSettings, name) for name, acts in _ACTS_ON.items() if executor not in acts}
        kernels = tuple(name for name in self.fused_kernels if executor == "packed" or name in MODULE_KERNELS)
        return replace(self, executor=executor, **{"fused_kernels": kernels, **idle})

    def changed(self) -> dict[str, Any]:
        """Settings that differ from their default."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if getattr(self, entry.name) != entry.default
        }

    def fallbacks(self, device_type: Literal["cpu", "cuda"]) -> dict[str, str]:
        """Asked-for settings that run as ordinary execution here, with the reason."""
        found = {}
        if self.cuda_graphs and device_type == "cpu":
            found["cuda_graphs"] = "CUDA graphs need a CUDA device; running eagerly"
        return found


_FLAGS = {
    "length_aware": "--no-length-grouping",
    "efficient_cache": "--no-efficient-cache",
    "specialize_short": "--no-short-attention",
}


def _flag(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def _spelled(name: str, value: Any) -> str:
    """The setting as the command line spells it."""
    if isinstance(value, bool):
        return _flag(name)
    return f"{_flag(name)} {' '.join(value) if isinstance(value, tuple) else value}"
