"""Settings that are invalid, not built yet, or without effect are refused by name."""

import subprocess
import sys

import pytest

from jevify.accel.ops import triton_runtime
from jevify.decide.presets import Preset, preset_for
from jevify.decide.settings import DecideSettings
from jevify.errors import SettingError

pytestmark = pytest.mark.cpu
PRESET = Preset()


def test_defaults_are_the_documented_ones():
    settings = DecideSettings()
    assert (settings.branch_batch_size, settings.max_graphs, settings.graph_budget_mb) == (8, 4, 192)
    assert (settings.max_questions, settings.max_question_tokens, settings.max_label_tokens) == (32, 2048, 64)
    assert settings.temperature == 1
    assert settings.changed() == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"executor": "turbo"}, "--executor is 'turbo'; use one of auto, independent, forked, packed"),
        ({"attention": "flash"}, "--attention is 'flash'"),
        ({"branch_batch_size": 0}, "--branch-batch-size is 0; use a whole number from 1 to 256"),
        ({"branch_batch_size": True}, "--branch-batch-size is True"),
        ({"token_budget": 8.5}, "--token-budget is 8.5"),
        ({"max_label_tokens": 2000}, "--max-label-tokens is 2000"),
        ({"max_questions": 0}, "--max-questions is 0"),
        ({"fused_kernels": "rmsnorm"}, "fused_kernels is 'rmsnorm'; give a tuple of kernel names"),
        ({"fused_kernels": None}, "fused_kernels is None; give a tuple of kernel names"),
        ({"strict": 1}, "strict is 1; use True or False"),
        ({"stable": "yes"}, "stable is 'yes'; use True or False"),
        ({"efficient_cache": "no"}, "efficient_cache is 'no'; use True or False"),
        ({"temperature": 0}, "--temperature is 0"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"temperature": "1"}, "--temperature is '1'"),
        ({"prompt_format": "yaml"}, "--prompt-format is 'yaml'"),
        ({"answer_encoding": "verify"}, "--answer-encoding is 'verify'; use one of auto, letters, labels"),
        (
            {"fused_kernels": ("swiglu", "softmax")},
            "--fused-kernels names 'softmax'; the kernels are rmsnorm, swiglu",
        ),
        (
            {"specialize_short": False, "shared_attention": "off"},
            "--no-short-attention has nothing to turn off with --shared-attention off",
        ),
        ({"max_graphs": 8}, "--max-graphs has no effect"),
        ({"graph_budget_mb": 8}, "--graph-budget-mb has no effect"),
        ({"graph_keys": "bucketed"}, "--graph-keys has no effect without --cuda-graphs"),
        (
            {"graph_keys": "bucketed", "cuda_graphs": True, "shared_attention": "off"},
            "--graph-keys bucketed needs the attention kernel",
        ),
    ],
)
def test_refused_at_construction(changes, message):
    with pytest.raises(SettingError) as caught:
        DecideSettings(**changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cuda_graphs": True, "graph_keys": "bucketed"},
            "--graph-keys bucketed has no effect on the forked executor",
        ),
        ({"specialize_short": False}, "--no-short-attention has no effect on a CPU"),
        ({"executor": "packed", "specialize_short": False}, "--no-short-attention has no effect on a CPU"),
        (
            {"executor": "packed", "branch_batch_size": 4},
            "--branch-batch-size 4 has no effect on the packed executor",
        ),
        (
            {"executor": "packed", "efficient_cache": False},
            "--no-efficient-cache has no effect on the packed executor",
        ),
        (
            {"executor": "packed", "length_aware": False},
            "--no-length-grouping has no effect on the packed executor",
        ),
        (
            {"executor": "packed", "attention": "eager"},
            "--attention eager has no effect on the packed executor",
        ),
        (
            {"executor": "forked", "token_budget": 64},
            "--token-budget 64 has no effect on the forked executor",
        ),
        (
            {"executor": "independent", "token_budget": 64},
            "--token-budget 64 has no effect on the independent executor",
        ),
        (
            {"executor": "independent", "branch_batch_size": 2},
            "--branch-batch-size 2 has no effect on the independent",
        ),
        (
            {"executor": "independent", "fused_kernels": ("rmsnorm", "rope")},
            "--fused-kernels rmsnorm rope has no effect on the independent executor; it acts on forked and packed",
        ),
        ({"executor": "independent", "cuda_graphs": True}, "--cuda-graphs has no effect on the independent executor"),
        (
            {"executor": "independent", "shared_attention": "off"},
            "--shared-attention off has no effect on the independent",
        ),
        ({"cuda_graphs": True, "strict": True}, "--strict: --cuda-graphs needs a CUDA device"),
        ({"cuda_graphs": True, "attention": "eager"}, "--cuda-graphs needs --attention sdpa"),
    ],
)
def test_refused_without_effect_here(changes, message):
    with pytest.raises(SettingError) as caught:
        DecideSettings(**changes).resolved("cpu", PRESET)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("executor", ["forked", "packed"])
def test_fused_kernels_are_refused_with_the_reason_where_they_cannot_run(monkeypatch, executor):
    settings = DecideSettings(executor=executor, fused_kernels=("rope",))
    monkeypatch.setattr(triton_runtime, "triton", object())
    monkeypatch.setattr(triton_runtime, "INTERPRETED", True)
    assert settings.resolved("cpu", PRESET).fused_kernels == ("rope",)
    monkeypatch.setattr(triton_runtime, "INTERPRETED", False)
    assert settings.resolved("cuda", PRESET).fused_kernels == ("rope",)
    with pytest.raises(SettingError, match=r"^--fused-kernels rope: kernels need a CUDA device"):
        settings.resolved("cpu", PRESET)
    monkeypatch.setattr(triton_runtime, "triton", None)
    for device in ("cpu", "cuda"):
        with pytest.raises(SettingError, match=r"^--fused-kernels rope: Triton is not installed; pip install"):
            settings.resolved(device, PRESET)


@pytest.mark.parametrize("executor", ["auto", "forked", "packed"])
def test_graphs_run_on_a_gpu(executor):
    settings = DecideSettings(cuda_graphs=True, executor=executor, strict=True, max_graphs=8)
    found = settings.resolved("cuda", PRESET)
    assert (found.cuda_graphs, found.max_graphs, found.fallbacks("cuda")) == (True, 8, {})


def test_graphs_on_a_gpu_copy_no_cache_object():
    with pytest.raises(SettingError, match="--no-efficient-cache has no effect with --cuda-graphs"):
        DecideSettings(cuda_graphs=True, efficient_cache=False).resolved("cuda", PRESET)


def test_graphs_on_a_cpu_fall_back_and_say_so():
    settings = DecideSettings(cuda_graphs=True).resolved("cpu", PRESET)
    assert settings.fallbacks("cpu") == {"cuda_graphs": "CUDA graphs need a CUDA device; running eagerly"}


def test_auto_becomes_what_it_means():
    found = DecideSettings().resolved("cpu", preset_for("some/model"))
    assert (found.executor, found.prompt_format, found.answer_encoding) == ("forked", "delimited", "letters")
    own = DecideSettings(answer_encoding="letters").resolved("cpu", Preset("readable", "labels"))
    assert (own.prompt_format, own.answer_encoding) == ("readable", "letters")


def test_checking_settings_needs_no_torch():
    code = "import sys, jevify.decide.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
