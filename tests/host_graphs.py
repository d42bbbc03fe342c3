"""The capture space of the validation suite, under the name the tests use."""

from jevify.evidence.validate.host_graphs import HostGraph as HostGraph
from jevify.evidence.validate.host_graphs import HostSpace as HostSpace
