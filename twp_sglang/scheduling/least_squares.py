"""Least squares with all terms at least 0, in plain arithmetic of a fixed order.

numpy would be no faster at five unknowns, and its sums may differ in the last bit between
machines, which tensor-parallel ranks may not.
"""

from __future__ import annotations

from collections.abc import Sequence

_NOTHING = 1e-9
"""A value below it is held by nothing: its square would leave no room in a float."""


class Moments:
    """Normal equations of ``size`` unknowns, gathered equation by equation."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.matrix = [[0.0] * size for _ in range(size)]
        self.vector = [0.0] * size
        self._data_matrix: list[list[float]] | None = None
        self._data_vector: list[float] = []
        self._square = 0.0

    def add(self, terms: Sequence[float], value: float) -> None:
        """One equation ``terms . x = value``; all of them before :meth:`hold`."""
        for i, left in enumerate(terms):
            if left:
                row = self.matrix[i]
                for j in range(i + 1):
                    row[j] += left * terms[j]
                self.vector[i] += left * value
        self._square += value * value

    def extended(
        self, equations: Sequence[tuple[Sequence[float], float]], column: Sequence[float]
    ) -> Moments:
        """These equations with one unknown more, in a fifth of the time of adding them anew.

        Args:
            equations: terms and value of each that was added, in that order.
            column: what the new unknown has in each.
        """
        size = self.size
        other = Moments(size + 1)
        for i in range(size):
            other.matrix[i][:size] = self.matrix[i]
        other.vector[:size] = self.vector
        other._square = self._square
        last = other.matrix[size]
        places = range(size)
        for (terms, value), entry in zip(equations, column, strict=True):
            if entry:
                for j in places:
                    last[j] += entry * terms[j]
                last[size] += entry * entry
                other.vector[size] += entry * value
        return other

    def hold(self, place: int, at: float, weight: float) -> None:
        """Hold an unknown at ``at`` with the weight of so much of an equation whose value it
        would be alone."""
        if self._data_matrix is None:
            self._data_matrix = [row[:] for row in self.matrix]
            self._data_vector = self.vector[:]
        if at > _NOTHING:
            self.matrix[place][place] += weight / (at * at)
            self.vector[place] += weight / at

    def squared_error(self, x: Sequence[float]) -> float:
        """Sum of squares that ``x`` leaves of the equations, without what holds."""
        matrix = self.matrix if self._data_matrix is None else self._data_matrix
        vector = self.vector if self._data_matrix is None else self._data_vector
        total = self._square
        for i in range(self.size):
            total -= 2.0 * x[i] * vector[i]
            for j in range(i + 1):
                total += (1.0 if i == j else 2.0) * x[i] * matrix[i][j] * x[j]
        return max(0.0, total)


def non_negative(moments: Moments) -> list[float] | None:
    """The solution with no unknown below 0, by leaving out the most negative one at a time;
    None where the equations determine nothing."""
    # Those in no equation first: with two of them, leaving out any single one helps nothing.
    used = [place for place in range(moments.size) if moments.matrix[place][place] > 0.0]
    while used:
        solved = _solve(moments, used)
        if solved is None:
            # The last column that nothing determines goes first.
            used = _without_undetermined(moments, used)
            continue
        worst = min(
            range(len(used)), key=lambda index: solved[index] * _scale(moments, used[index])
        )
        if solved[worst] >= 0.0:
            full = [0.0] * moments.size
            for index, place in enumerate(used):
                full[place] = solved[index]
            return full
        del used[worst]
    return None


def _scale(moments: Moments, place: int) -> float:
    return float(moments.matrix[place][place] ** 0.5)


def _without_undetermined(moments: Moments, used: list[int]) -> list[int]:
    for index in reversed(range(len(used))):
        rest = used[:index] + used[index + 1 :]
        if not rest or _solve(moments, rest) is not None:
            return rest
    return used[:-1]


def _solve(moments: Moments, used: Sequence[int]) -> list[float] | None:
    """Cholesky on the ``used`` unknowns; None where singular."""
    size = len(used)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            high, low = max(used[i], used[j]), min(used[i], used[j])
            entry = moments.matrix[high][low]
            rest = entry - sum(lower[i][k] * lower[j][k] for k in range(j))
            if i == j:
                # Relative to its own size: what is left is noise of the arithmetic.
                if rest <= 1e-10 * entry or entry <= 0.0:
                    return None
                lower[i][i] = rest**0.5
            else:
                lower[i][j] = rest / lower[j][j]
    half: list[float] = []
    for i in range(size):
        rest = moments.vector[used[i]] - sum(lower[i][k] * half[k] for k in range(i))
        half.append(rest / lower[i][i])
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = half[i] - sum(lower[k][i] * solution[k] for k in range(i + 1, size))
        solution[i] = rest / lower[i][i]
    return solution
