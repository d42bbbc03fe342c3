"""The tiny models and tokenizers of the validation suite, under the name the tests use."""

from jevify.evidence.validate.tiny import CHATML as CHATML
from jevify.evidence.validate.tiny import FAMILIES as FAMILIES
from jevify.evidence.validate.tiny import LLAMA3 as LLAMA3
from jevify.evidence.validate.tiny import THINKING as THINKING
from jevify.evidence.validate.tiny import config as config
from jevify.evidence.validate.tiny import model as model
from jevify.evidence.validate.tiny import tokenizer as tokenizer
