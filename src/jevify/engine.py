"""The door: `from jevify.engine import DecisionEngine`."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch

from jevify.accel.stages import StageTimer
from jevify.decide.chat import ChatEncoder
from jevify.decide.compile import CompiledRequest, Limits, RequestCompiler
from jevify.decide.decision import UNCALIBRATED, Decision, answers_of
from jevify.decide.drift import Drift, measure
from jevify.decide.encodings import QuestionEncoder
from jevify.decide.executors.base import BranchScores, Executor
from jevify.decide.executors.kit import ExecutorKit
from jevify.decide.head import AnswerHead
from jevify.decide.known_drift import KnownDrift, fingerprint, forget_fingerprint
from jevify.decide.near_ties import Verdict, drift_metadata, settle_ties, verdict
from jevify.decide.plan import RequestPlan
from jevify.decide.presets import preset_for
from jevify.decide.settings import BOUNDS_OF_MEMORY, BOUNDS_OF_REQUESTS, DecideSettings
from jevify.decide.workflow import Workflow
from jevify.errors import InputError, SettingError
from jevify.models.catalog import DEFAULT_MODEL, locate
from jevify.models.lm.load import Checkpoint, load_config, load_model, load_tokenizer, pick_device, pick_dtype
from jevify.models.lm.support import check_config, check_model
from jevify.models.lm.weights import check_in_place, merge

Mode = Literal["parallel", "independent"]
Questions = Workflow | Mapping[str, Any]

_LOCKS: "WeakKeyDictionary[Any, threading.RLock]" = WeakKeyDictionary()
_GUARD = threading.Lock()
_WARMUP = (
    "The parcel arrived two days late and the box was torn.",
    {"warmup": {"type": "noul", "instructions": "Is the customer unhappy?"}},
)


class DecisionEngine:
    """Answers typed questions about a context with one dense language model.

    Calls on engines that share a model are serialized by that model's lock. Weights, dtype and device must stay fixed:
    a moved or recast model is refused, and after changing weights in place call `clear_optimization_cache`. Nothing of
    a request is kept after it returns.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        revision: str | None = None,
        chat: ChatEncoder | None = None,
        **settings: Any,
    ) -> None:
        """Wrap a loaded transformers model and tokenizer.

        Mutates `model`: it is put in eval mode without gradients, and its projections become views into merged tensors
        of the same values. chat: an encoder already made for `tokenizer`, to save making it again. settings: fields of
        DecideSettings. Raises SettingError or UnsupportedModelError.
        """
        self.name = name or model.name_or_path or type(model).__name__
        self.revision = revision
        check_config(model.config, self.name)
        check_model(model, self.name)
        self._model, self._tokenizer = model, tokenizer
        self._device_type: Literal["cpu", "cuda"] = "cuda" if model.device.type == "cuda" else "cpu"
        self.settings = DecideSettings(**settings).resolved(self._device_type, preset_for(self.name))
        self._check_attention()
        self._chat = chat or ChatEncoder(tokenizer, self.name)
        self._compiler = RequestCompiler(
            QuestionEncoder(
                self._chat,
                layout=self.settings.prompt_format,
                encoding=self.settings.answer_encoding,
                max_label_tokens=self.settings.max_label_tokens,
            ),
            Limits(
                questions=self.settings.max_questions,
                question_tokens=self.settings.max_question_tokens,
                context_length=model.config.max_position_embeddings,
            ),
        )
        with self._lock:
            self._weights = merge(model.eval().requires_grad_(False))
            self._kit = ExecutorKit(model, self._weights, self.settings)
        self._decisions = self._fallbacks = self._near_ties = self._settled = 0
        self._drift = KnownDrift(
            model, self.settings, name=self.name, revision=self.revision, tree_attention=self._kit.attention_name
        )

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = DEFAULT_MODEL,
        *,
        device: str | torch.device = "auto",
        dtype: str = "auto",
        revision: str | None = None,
        local_files_only: bool = False,
        **settings: Any,
    ) -> "DecisionEngine":
        """Load a catalog name, a local folder or a hub id.

        device: auto, cpu, cuda or cuda:N. dtype: auto (bf16 on GPUs that have it, else fp16; fp32 on the CPU), float32,
        float16 or bfloat16. settings: fields of DecideSettings, `attention` among them. Everything that can be refused
        without the weights is refused before they load. Raises InputError for what the user can mend, JevifyError
        when a checkpoint cannot be had.
        """
        if not isinstance(model, str | Path):
            raise InputError(f"model is {model!r}; give a catalog name, a folder or a hub id")
        model = str(model)
        wanted = DecideSettings(**settings)
        place = pick_device(str(device))
        kind = pick_dtype(dtype, place)
        wanted.resolved("cuda" if place.type == "cuda" else "cpu", preset_for(model))
        source = locate(model, revision=revision, local_files_only=local_files_only)
        checkpoint = Checkpoint(model, source.path_or_id, source.revision, local_files_only)
        config = load_config(checkpoint)
        tokenizer = load_tokenizer(checkpoint)
        chat = ChatEncoder(tokenizer, model)
        loaded = load_model(checkpoint, config, device=place, dtype=kind, attention=wanted.attention)
        found = getattr(loaded.config, "_commit_hash", None) or revision
        return cls(loaded, tokenizer, name=model, revision=found, chat=chat, **settings)

    def with_settings(self, **settings: Any) -> "DecisionEngine":
        """Another engine on the same model, tokenizer and weights, with these settings changed.

        A setting of this engine that does not act on the executor named here goes back to its default.
        """
        changed = {**asdict(self.settings.kept_by(settings.get("executor", self.settings.executor))), **settings}
        return DecisionEngine(
            self._model, self._tokenizer, name=self.name, revision=self.revision, chat=self._chat, **changed
        )

    def with_executor(self, build: Callable[[Any, AnswerHead], Executor]) -> "DecisionEngine":
        """An engine of the same settings that runs its requests through `build(model, head)`, to measure other ways."""
        made = self.with_settings()
        made._kit.put(made.settings.executor, build)
        return made

    @property
    def config(self) -> Any:
        """The transformers configuration of the model."""
        return self._model.config

    def decide(self, context: Any, questions: Questions, *, mode: Mode = "parallel") -> Decision:
        """Answer every question about `context`.

        context: text, or a JSON object or array. questions: a Workflow, or a mapping from id to Choice, Noul, Score or
        their plain dicts. mode: "independent" runs the oracle, with no optimization active. Raises InputError.

        Under `stable`, near ties are scored again in fp32, one question a forward, and the first decision measures the
        drift where it is not known yet (`warmup` does it before), which metadata shows as the stage "measuring".
        """
        return self.decide_many([(context, questions)], mode=mode)[0]

    def decide_many(self, requests: Iterable[tuple[Any, Questions]], *, mode: Mode = "parallel") -> list[Decision]:
        """Answer several requests together; the packed executor runs them in one pass where they fit.

        Results are in order. Every request is checked before any runs; an error names the request by its index. Stage
        times and forward calls in the metadata are those of the whole call.
        """
        name = self._executor_name(mode)
        if isinstance(requests, str | Mapping) or not isinstance(requests, Iterable):
            raise InputError(f"requests must be a list of (context, questions) pairs, not {type(requests).__name__}")
        return self._run(list(requests), name, mode)

    def prepare(self, context: Any, questions: Questions) -> CompiledRequest:
        """Check and tokenize one request for `decide_prepared`, without the model and without its lock.

        Safe to call from several threads. Raises InputError as `decide` does.
        """
        return self._compiler.compile(context, questions)

    def decide_prepared(self, requests: Sequence[CompiledRequest], *, mode: Mode = "parallel") -> list[Decision]:
        """As `decide_many`, of requests that `prepare` of this engine made."""
        if not requests:
            raise InputError("there is no request to decide")
        return self._decide(list(requests), self._executor_name(mode), mode, self._timer())

    def oracle(self, context: Any, questions: Questions) -> Decision:
        """The reference answer: one question a forward, computed in fp32 on the same weights, module by module."""
        return self._run([(context, questions)], "oracle", "independent")[0]

    def measure(self, context: Any, questions: Questions) -> tuple[int, list[int]]:
        """Shared prefix tokens, and the tokens of each full question, without running the model."""
        compiled = self.prepare(context, questions)
        return len(compiled.plan.prefix), compiled.question_tokens

    def identity(self) -> dict[str, Any]:
        """What answers depend on besides the request, JSON-ready: equal ones give the same answers up to the drift.

        Settings that only bound memory or refuse requests are left out, and so is the device.
        """
        bounds = ("strict", *BOUNDS_OF_MEMORY, *BOUNDS_OF_REQUESTS)
        settings = {name: value for name, value in asdict(self.settings).items() if name not in bounds}
        return {
            "model": self.name,
            "revision": self.revision,
            "weights": fingerprint(self._model),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "settings": {**settings, "fused_kernels": list(self.settings.fused_kernels)},
        }

    def warmup(self, context: Any = _WARMUP[0], questions: Questions | None = None) -> None:
        """Run one request so that the first real one pays no one-time cost. Give your own for its own shapes.

        The drift of the engine's executor is measured where it is not known yet, with a few dozen small forwards, and
        kept in the user's cache.
        """
        self.decide(context, questions if questions is not None else _WARMUP[1])
        with self._lock:
            if self._drift.of(self.settings.executor) is None:
                self._measure_drift(self.settings.executor)

    def clear_optimization_cache(self) -> None:
        """Drop all that derives from the weights, in every engine on the model: call it after an in-place change."""
        with self._lock:
            self._kit.clear()
            forget_fingerprint(self._model)

    def counters(self) -> dict[str, Any]:
        """Cumulative counters of this engine, by executor, and of its head-row cache."""
        with self._lock:
            return {
                "decisions": self._decisions,
                "fallbacks": self._fallbacks,
                "near_ties": self._near_ties,
                "settled": self._settled,
                **self._kit.counters(),
            }

    def _check_attention(self) -> None:
        loaded = self._model.config._attn_implementation
        if self.settings.executor != "packed" and loaded != self.settings.attention:
            raise SettingError(
                f"--attention {self.settings.attention}: this model was loaded with {loaded} attention, which its "
                "engines share; load it again with the other"
            )

    @property
    def _lock(self) -> threading.RLock:
        with _GUARD:
            return _LOCKS.setdefault(self._model, threading.RLock())

    def _executor_name(self, mode: Mode) -> str:
        if mode not in ("parallel", "independent"):
            raise InputError(f"mode is {mode!r}; use parallel or independent")
        return "independent" if mode == "independent" else self.settings.executor

    def _timer(self) -> StageTimer:
        cuda = self._device_type == "cuda"
        return StageTimer(partial(torch.cuda.synchronize, self._model.device) if cuda else lambda: None)

    def _compile_all(self, requests: Sequence[tuple[Any, Questions]]) -> list[CompiledRequest]:
        if not requests:
            raise InputError("there is no request to decide")
        prepared = []
        for index, request in enumerate(requests):
            with _named(index, len(requests)):
                if not isinstance(request, tuple | list) or len(request) != 2:
                    raise InputError(f"a request is a pair of context and questions, not {type(request).__name__}")
                prepared.append(self._compiler.prepare(*request))
        compiled = []
        for index, found in enumerate(zip(prepared, self._compiler.tokenize(prepared), strict=True)):
            with _named(index, len(requests)):
                compiled.append(self._compiler.finish(*found))
        return compiled

    def _run(self, requests: Sequence[tuple[Any, Questions]], name: str, mode: Mode) -> list[Decision]:
        timer = self._timer()
        with timer.stage("prepare", queues=False):
            compiled = self._compile_all(requests)
        return self._decide(compiled, name, mode, timer)

    def _decide(self, compiled: list[CompiledRequest], name: str, mode: Mode, timer: StageTimer) -> list[Decision]:
        with ExitStack() as held:
            with timer.stage("wait", queues=False):
                held.enter_context(self._lock)
            check_in_place(self._weights)
            executor = self._kit.executor(name)
            before = executor.counters()["forward_calls"]
            plans = [request.plan for request in compiled]
            scores = executor.run(plans, timer)
            calls = executor.counters()["forward_calls"] - before
            drift, verdicts, settling = self._judge(name, plans, scores, timer)
            self._decisions += len(compiled)
            if name in ("forked", "packed"):
                self._fallbacks += len(self.settings.fallbacks(self._device_type))
            answers = [
                answers_of(request.questions, branch_scores, self.settings.temperature)
                for request, branch_scores in zip(compiled, scores, strict=True)
            ]
            shared = {**self._metadata(name, mode), "drift": drift_metadata(drift), "forward_calls": calls + settling}
            shared["stages_ms"] = timer.milliseconds()
        return [
            Decision(
                model=self.name,
                answers=found,
                probability_status=UNCALIBRATED,
                metadata={**shared, **_request_metadata(request, judged, shares=name in ("forked", "packed"))},
            )
            for request, found, judged in zip(compiled, answers, verdicts, strict=True)
        ]

    def _judge(
        self, name: str, plans: list[RequestPlan], scores: list[BranchScores], timer: StageTimer
    ) -> tuple[Drift | None, list[list[Verdict]], int]:
        """The drift, how close each question was, and the forwards spent on settling.

        Mutates `scores` under `stable`: those of near ties are replaced by the oracle's.
        """
        drift = self._drift.of(name)
        if drift is None and self.settings.stable:
            with timer.stage("measuring"):
                drift = self._measure_drift(name)
        verdicts = [[verdict(options, drift) for options in branches] for branches in scores]
        ties = sum(one.near_tie is True for judged in verdicts for one in judged)
        self._near_ties += ties
        if not (ties and self.settings.stable and drift is not None and drift.status == "measured"):
            return drift, verdicts, 0
        oracle = self._kit.executor("oracle")
        before = oracle.counters()["forward_calls"]
        with timer.stage("settling"):
            settle_ties(plans, scores, verdicts, lambda tied: oracle.run(tied, StageTimer()))
        self._settled += ties
        return drift, verdicts, oracle.counters()["forward_calls"] - before

    def _measure_drift(self, name: str) -> Drift:
        """Measure the drift of executor `name` and keep it.

        On an engine of its own: the probes count for nothing here, evict no graph, and are held to no bound.
        """
        bounds = {field: getattr(DecideSettings, field) for field in BOUNDS_OF_REQUESTS}
        prober = self.with_settings(stable=False, strict=False, **bounds)
        prober._kit.isolate_graphs()
        try:
            drift = measure(partial(prober._scores, name), partial(prober._scores, "oracle"))
        finally:
            prober._kit.clear_graphs()
        self._drift.keep(name, drift)
        return drift

    def _scores(self, name: str, requests: Sequence[tuple[Any, Questions]]) -> list[BranchScores]:
        plans = [request.plan for request in self._compile_all(requests)]
        return self._kit.executor(name).run(plans, StageTimer())

    def _metadata(self, name: str, mode: Mode) -> dict[str, Any]:
        settings = self.settings
        plain = mode == "independent"
        dtype = "float32" if name == "oracle" else str(self._model.dtype).removeprefix("torch.")
        return {
            "mode": mode,
            "executor": "independent" if plain else name,
            "device": str(self._model.device),
            "dtype": dtype,
            "scoring_dtype": "float32",
            "attention": self._model.config._attn_implementation if name != "packed" else "tree",
            "revision": self.revision,
            "prompt_format": settings.prompt_format,
            "answer_encoding": settings.answer_encoding,
            "generated_tokens": 0,
            "temperature": settings.temperature,
            "optimizations": {} if plain else self._optimizations(name),
        }

    def _optimizations(self, name: str) -> dict[str, Any]:
        counters = self._kit.counters()
        return {
            **self._kit.active(name),
            "fallbacks": self.settings.fallbacks(self._device_type),
            "counters": {
                **counters[name],
                "fallbacks": self._fallbacks,
                "head_rows": counters["head_rows"],
                "kernel_launches": counters["kernel_launches"],
            },
        }


@contextmanager
def _named(index: int, count: int) -> Iterator[None]:
    """Let an InputError say which of several requests it is about."""
    try:
        yield
    except InputError as error:
        if count == 1:
            raise
        raise InputError(f"request {index}: {error}") from error


def _request_metadata(request: CompiledRequest, verdicts: Sequence[Verdict], *, shares: bool) -> dict[str, Any]:
    branches = zip(request.questions, request.question_tokens, request.plan.branches, verdicts, strict=True)
    return {
        "shared_prefix_tokens": len(request.plan.prefix) if shares else 0,
        "compiled_workflow": request.compiled,
        "questions": {
            name: {"tokens": tokens, "label_tokens": [len(path) for path in branch.answers], **judged.metadata()}
            for name, tokens, branch, judged in branches
        },
    }
