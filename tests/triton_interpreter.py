"""The repaired interpreter of the validation suite, under the name the tests use."""

from jevify.evidence.validate.interpreter import repair as repair
