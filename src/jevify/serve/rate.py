"""How fast the engine has been going lately."""

from collections import deque
from statistics import median

# Few enough to follow a change of traffic, enough that one capture of a graph or one hiccup of the machine is no trend.
_BATCHES = 9


class ServiceRate:
    """Engine time a token: the median over the last batches; unknown until one has run."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_BATCHES)
        self._seconds_per_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """Take in a batch that ran."""
        self._recent.append(max(seconds, 1e-9) / tokens)
        self._seconds_per_token = median(self._recent)

    def seconds(self, tokens: float) -> float | None:
        """Engine time that `tokens` will take, None while the rate is unknown."""
        return None if self._seconds_per_token is None else tokens * self._seconds_per_token

    def tokens(self, seconds: float) -> float | None:
        """How many tokens `seconds` of engine time will do, None while the rate is unknown."""
        return None if self._seconds_per_token is None else seconds / self._seconds_per_token
