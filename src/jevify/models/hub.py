"""Models of the Hugging Face Hub, kept in the hub client's own cache."""

import json
import os
from pathlib import Path

from jevify.errors import InputError, JevifyError

# Weights as safetensors only: a pickle can run code when it is loaded.
_WANTED = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.tiktoken", "tokenizer.model"]
# Subfolders and consolidated files repeat the weights in formats of other programs.
_UNWANTED = ["*/*", "consolidated*"]


def pull_hub(model: str, revision: str | None = None, local_files_only: bool = False) -> Path:
    """The snapshot folder of `model`, downloaded unless it is complete or `local_files_only`.

    Only safetensors, configuration and tokenizer files of the top folder are fetched. Raises InputError when
    there is no such model, revision or access, JevifyError when the hub cannot be reached or the files are
    not in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    named = model if revision is None else f"{model} at revision {revision}"
    try:
        snapshot = snapshot_download(
            model,
            revision=revision,
            local_files_only=local_files_only,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
        )
    except HFValidationError as error:
        raise InputError(f"{model!r} is not a hub id (owner/name): {error}") from error
    except GatedRepoError as error:
        raise InputError(
            f"{model} asks for its terms to be accepted: do so on its hub page, then run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(f"{model} has no revision {revision!r} on the hub") from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"the hub shows no model {model}: check the spelling; for a private one run `hf auth login` first"
        ) from error
    except LocalEntryNotFoundError as error:
        raise JevifyError(
            f"{named} is not in the hub cache, and "
            + ("only local files are allowed" if local_files_only else "the hub cannot be reached")
            + f". Run `jevify models pull {model}` where the network is open, or give the path of "
            "a folder that holds the model."
        ) from error
    except OSError as error:
        raise JevifyError(
            f"{named} could not be fetched from the hub: {error}. Check the network and the proxy settings "
            "and pull again, or give the path of a folder that holds the model."
        ) from error
    if missing := _missing_weights(Path(snapshot)):
        raise JevifyError(
            f"{named} is not whole: {', '.join(missing)} not there. Pull again where the network is open. "
            "If the hub has no safetensors files of it, it cannot be used: pickled weights are never loaded."
        )
    return Path(snapshot)


def installed_hub(model: str, revision: str | None = None) -> Path | None:
    """The snapshot folder in the hub cache if it has a config and all weights; the network is not touched."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    snapshot = Path(config).parent
    return None if _missing_weights(snapshot) else snapshot


def _missing_weights(snapshot: Path) -> list[str]:
    shards = {"model.safetensors"}
    index = snapshot / "model.safetensors.index.json"
    if os.path.isfile(index):
        try:
            shards = set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [index.name]
    return sorted(shard for shard in shards if not os.path.isfile(snapshot / shard))
