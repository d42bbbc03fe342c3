"""The prompt format and answer encoding that suit a model best, by catalog name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """What "auto" stands for."""

    prompt_format: str = "delimited"
    answer_encoding: str = "letters"


PRESETS = {"smollm2-135m": Preset(prompt_format="readable", answer_encoding="labels")}


def preset_for(model: str) -> Preset:
    """The preset of a catalog name; the general defaults for every other model."""
    return PRESETS.get(model, Preset())
