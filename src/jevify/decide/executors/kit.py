"""The executors of one engine: built once each, from one model and what its settings ask for."""

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from jevify.accel.graphs import CaptureSpace, GraphPool
from jevify.decide.executors.base import Executor
from jevify.decide.executors.forked import ForkedExecutor
from jevify.decide.executors.independent import IndependentExecutor
from jevify.decide.executors.packed import PackedExecutor
from jevify.decide.head import AnswerHead
from jevify.decide.settings import DecideSettings
from jevify.errors import SettingError, UnsupportedModelError
from jevify.models.lm.attention import KernelAttention, ReferenceAttention, pick_attention
from jevify.models.lm.dense import DenseDecoder
from jevify.models.lm.fused import Fusion, model_ops
from jevify.models.lm.shared_prefix import SharedPrefix
from jevify.models.lm.weights import DenseWeights

# Settings of one executor alone that metadata shows.
_SHOWN = {
    "forked": ("efficient_cache", "length_aware", "branch_batch_size"),
    "packed": ("token_budget", "graph_keys"),
}
_SPACES: "WeakKeyDictionary[Any, CaptureSpace]" = WeakKeyDictionary()
_HEADS: "WeakKeyDictionary[Any, WeakSet[AnswerHead]]" = WeakKeyDictionary()
_GUARD = threading.Lock()


class ExecutorKit:
    """Makes executors by name: independent, forked, packed, and the oracle, which is independent in fp32.

    Raises SettingError or UnsupportedModelError at construction for what the settings ask for and this model or
    machine has not. Its owner holds the model's lock around every use of it and of its executors.
    """

    def __init__(self, model: Any, weights: DenseWeights, settings: DecideSettings) -> None:
        self._model, self._weights, self._settings = model, weights, settings
        self._head = AnswerHead(weights.head, weights.head_bias)
        with _GUARD:
            _HEADS.setdefault(model, WeakSet()).add(self._head)
        self._built: dict[str, Executor] = {}
        self._graphs = self._graph_pool()
        self._ops = model_ops(model, settings.fused_kernels)
        self._attention: KernelAttention | ReferenceAttention
        self._attention, self._attention_reason = pick_attention(
            weights, settings.shared_attention, specialize_short=settings.specialize_short
        )
        if self._bucketed and not isinstance(self._attention, KernelAttention):
            raise SettingError(
                "--graph-keys bucketed needs the attention kernel, whose graphs fix sizes only: "
                f"{self._attention_reason}"
            )
        if settings.fused_kernels:
            # A model whose modules the kernels do not fit is refused now, not at its first request.
            self.executor(settings.executor)

    @property
    def attention_name(self) -> str:
        """What packed rows, and branches beside a shared prefix, attend with."""
        return self._attention.name

    def executor(self, name: str) -> Executor:
        """The executor of that name, the same one each time."""
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def put(self, name: str, build: Callable[[Any, AnswerHead], Executor]) -> None:
        """Have `build(model, head)` run what `name` would."""
        self._built[name] = build(self._model, self._head)

    def isolate_graphs(self) -> None:
        """Capture from now on into memory of its own, which counts against no other engine's budget."""
        if self._graphs is not None:
            self._graphs = self._graphs.apart()
            self._built.clear()

    def clear(self) -> None:
        """Drop this kit's graphs, and the selected head rows of every engine on the model."""
        self.clear_graphs()
        with _GUARD:
            for head in _HEADS[self._model]:
                head.clear()

    def clear_graphs(self) -> None:
        """Drop the graphs and the shapes remembered to fail."""
        if self._graphs is not None:
            self._graphs.clear()

    def active(self, name: str) -> dict[str, Any]:
        """The settings that executor `name` runs with, for metadata."""
        settings = self._settings
        found: dict[str, Any] = {
            "executor": name,
            "shared_attention": self._attention.name,
            "shared_attention_reason": self._attention_reason,
            "cuda_graphs": self._graphs is not None,
            "fused_kernels": list(self._ops.kernels),
            "strict": settings.strict,
        }
        return found | {field: getattr(settings, field) for field in _SHOWN.get(name, ())}

    def counters(self) -> dict[str, Any]:
        """Counters of the head-row cache, of kernels launched from Python, and of every executor built, by name."""
        return {
            "head_rows": asdict(self._head.counters),
            "kernel_launches": dict(self._ops.launches),
            **{name: dict(executor.counters()) for name, executor in self._built.items()},
        }

    def _build(self, name: str) -> Executor:
        settings = self._settings
        if name == "packed":
            return PackedExecutor(
                DenseDecoder(self._weights, self._ops, self._attention),
                self._head,
                token_budget=settings.token_budget,
                graphs=self._graphs,
                bucketed=self._bucketed,
                strict=settings.strict,
            )
        if name == "forked":
            attention, shared, fusion = self._on_modules()
            return ForkedExecutor(
                self._model,
                self._head,
                branch_batch_size=settings.branch_batch_size,
                efficient_cache=settings.efficient_cache,
                length_aware=settings.length_aware,
                strict=settings.strict,
                fusion=fusion,
                fusion_optional=self._sharing_optional,
                attention=attention,
                shared=shared,
                graphs=self._graphs,
            )
        return IndependentExecutor(self._model, self._head, float32=name == "oracle")

    @property
    def _sharing_optional(self) -> bool:
        """Whether nothing but sharing under "auto" asks for adapters on the modules."""
        return not self._settings.fused_kernels and self._settings.shared_attention == "auto"

    def _on_modules(self) -> tuple[KernelAttention | None, SharedPrefix | None, Fusion | None]:
        """What the forked executor puts on the modules. Raises UnsupportedModelError where it was asked for."""
        attention = self._attention if isinstance(self._attention, KernelAttention) else None
        if attention is None and not self._settings.fused_kernels:
            return None, None, None
        shared = SharedPrefix() if attention else None
        try:
            return attention, shared, Fusion(self._model, self._ops, shared)
        except UnsupportedModelError as error:
            if not self._sharing_optional:
                raise
            self._attention_reason = str(error)
            self._attention = ReferenceAttention(self._model.device, self._model.dtype)
            return None, None, None

    @property
    def _bucketed(self) -> bool:
        return self._settings.graph_keys == "bucketed" and self._graphs is not None

    def _graph_pool(self) -> GraphPool | None:
        settings, device = self._settings, self._model.device
        if not settings.cuda_graphs or device.type == "cpu":
            return None
        with _GUARD:
            if self._model not in _SPACES:
                _SPACES[self._model] = CaptureSpace(device)
        budget = settings.graph_budget_mb * 2**20
        return GraphPool(_SPACES[self._model], max_graphs=settings.max_graphs, budget_bytes=budget)
