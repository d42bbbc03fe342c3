"""How fast the engine has been going lately."""

# Weight of the newest batch: about the last ten count.
_NEWEST = 0.2


class ServiceRate:
    """Tokens per second of engine time, a moving average over batches; None until one has run."""

    def __init__(self) -> None:
        self._seconds_per_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """Take in a batch that ran."""
        fresh = seconds / max(tokens, 1)
        known = self._seconds_per_token
        self._seconds_per_token = fresh if known is None else known + _NEWEST * (fresh - known)

    @property
    def tokens_per_second(self) -> float | None:
        """The rate, None while it is unknown."""
        return None if self._seconds_per_token is None else 1 / max(self._seconds_per_token, 1e-9)

    def seconds(self, tokens: float) -> float | None:
        """Engine time that `tokens` will take, None while the rate is unknown."""
        return None if self._seconds_per_token is None else tokens * self._seconds_per_token
