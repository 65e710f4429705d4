"""How well output lengths were predicted, each answer judged before it is learned from.

The probability that the law gave to an answer at most as long as the one that came must be
spread evenly over 0 to 1 (Dawid 1984). Ten equal classes of it are counted; the error is the
largest distance between their cumulated share and the diagonal. Answers cut at their limit
have no length of their own and are left out.
"""

from __future__ import annotations

from typing import Any

CLASSES = 10

WEIGHT = 1.0 / 512.0
"""Memory of 512 answers, that of the curves."""


class LengthCalibration:
    """Running comparison of predicted and actual lengths.

    Args:
        level: probability that the predicted quantile is meant to have.
    """

    def __init__(self, level: float) -> None:
        self._level = level
        self.judged = 0
        self._classes = [0.0] * CLASSES
        self._covered = 0.0
        self._error = 0.0
        self._absolute = 0.0

    def judge(
        self, probability: float, quantile_tokens: float, mean_tokens: float, actual_tokens: int
    ) -> None:
        """One answer ended by itself.

        Args:
            probability: given to answers at most this long, 0 to 1.
            quantile_tokens: predicted quantile of its length.
            mean_tokens: expected length.
            actual_tokens: what came.
        """
        self.judged += 1
        weight = max(WEIGHT, 1.0 / self.judged)
        found = min(int(probability * CLASSES), CLASSES - 1)
        for place in range(CLASSES):
            self._classes[place] += weight * ((place == found) - self._classes[place])
        covered = actual_tokens <= quantile_tokens
        self._covered += weight * (covered - self._covered)
        error = mean_tokens - actual_tokens
        self._error += weight * (error - self._error)
        self._absolute += weight * (abs(error) - self._absolute)

    def snapshot(self) -> dict[str, Any]:
        """JSON types only; None until an answer was judged."""
        if not self.judged:
            return {
                "judged": 0,
                "quantile": self._level,
                "coverage": None,
                "calibration_error": None,
                "mean_error_tokens": None,
                "mean_absolute_error_tokens": None,
            }
        below = 0.0
        worst = 0.0
        for place, share in enumerate(self._classes):
            below += share
            worst = max(worst, abs(below - (place + 1) / CLASSES))
        return {
            "judged": self.judged,
            "quantile": self._level,
            "coverage": round(self._covered, 4),
            "calibration_error": round(worst, 4),
            "mean_error_tokens": round(self._error, 2),
            "mean_absolute_error_tokens": round(self._absolute, 2),
        }
