"""The loop linearised at its operating point, from analytic derivatives.

Broken at the window H, the loop gain (negative feedback, so that 1 + L = 0 is critical) is

    L(z) = -z^-d * M(z) u(z)

    u(z)   what a token of window does to each field of the law's sample: batch P, KV,
           step time (a + alpha [B > B0]) P + kappa KV, its filter beta z/(z - 1 + beta), ...
    M(z)   the law from sample to window, e0' (zI - A)^-1 B from its Jacobian

which for the paper's law on its own plant is
g * gamma/(z - 1 + gamma) * beta z/(z - 1 + beta) * z^-d * rbar P(z), g = d ln l/d ln B.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import schur

from controllers.laws.jacobian import SAMPLE_FIELDS, LawJacobian
from controllers.models import LoopModel
from controllers.operating_point import (
    SWITCHING_LAWS,
    Equilibrium,
    Regime,
    equilibrium,
    queue_depth,
    steady_sample,
)
from controllers.plant import (
    Complex,
    PlantResponse,
    StateSpace,
    admission_state_space,
    grid_response,
    plant_response,
)

_F = {name: i for i, name in enumerate(SAMPLE_FIELDS)}


class LinearLoop:
    """``loop`` linearised at ``point``; build with :func:`linearise`."""

    def __init__(
        self, loop: LoopModel, point: Equilibrium, jacobian: LawJacobian, slope_ms: float
    ) -> None:
        self.loop = loop
        self.point = point
        self.jacobian = jacobian
        self.slope_ms = slope_ms
        """d l/d B at rest, ms per request, without KV."""
        self._law_a = np.array(jacobian.state, dtype=np.float64)
        self._law_b = np.array(jacobian.sample, dtype=np.float64)

    @cached_property
    def law_eigenvalues(self) -> NDArray[np.complex128]:
        """Eigenvalues of the law alone, its feedback cut."""
        return np.asarray(np.linalg.eigvals(self._law_a), dtype=np.complex128)

    # -- frequency response -------------------------------------------------------------

    def _gain_on(self, omega: NDArray[np.float64], plant: PlantResponse) -> Complex:
        loop, latency = self.loop, self.loop.latency
        z: Complex = np.exp(1j * omega)
        kv = loop.prompt_tokens * plant.batch + plant.output_kv
        prompts = loop.prompt_tokens * plant.admissions
        decode: Complex = self.slope_ms * plant.batch + latency.kappa_ms_per_token * kv
        itl: Complex = np.asarray(loop.beta * z / (z - 1 + loop.beta) * decode, dtype=np.complex128)
        fields = np.zeros((len(SAMPLE_FIELDS), omega.size), dtype=np.complex128)
        fields[_F["sigma"]] = itl / latency.l_min_ms
        fields[_F["itl_ms"]] = itl
        fields[_F["step_ms"]] = decode + latency.prefill_ms_per_token * prompts
        fields[_F["load_tokens"]] = 1.0
        fields[_F["batch"]] = plant.batch
        fields[_F["kv_tokens"]] = kv
        fields[_F["prefill_tokens"]] = prompts
        driven = self._law_b @ fields
        gain: Complex = -(z ** -float(loop.timing.delay_steps)) * self._window_of(z, driven)
        return gain

    def _window_of(self, z: Complex, driven: Complex) -> Complex:
        """First row of (zI - A)^-1 times the driven states."""
        # By the Schur form, back-substituting for all z at once: a solve per frequency would
        # dominate the margins of long length laws, and a transfer function in powers of z
        # loses its digits near z = 1, where most of a law's eigenvalues lie.
        triangle, basis = self._law_schur
        rotated = basis.conj().T @ driven
        solved = np.zeros_like(rotated)
        for i in reversed(range(triangle.shape[0])):
            carried = rotated[i] + triangle[i, i + 1 :] @ solved[i + 1 :]
            solved[i] = carried / (z - triangle[i, i])
        window: Complex = basis[0] @ solved
        return window

    @cached_property
    def _law_schur(self) -> tuple[Complex, Complex]:
        triangle, basis = schur(self._law_a, output="complex")
        return triangle, basis

    def gain(self, omega: ArrayLike) -> Complex:
        """L(e^{j omega}) at ``omega`` in radians per step, shape (n,)."""
        frequencies = np.atleast_1d(np.asarray(omega, dtype=np.float64))
        return self._gain_on(frequencies, plant_response(self.loop.lengths, frequencies))

    @cached_property
    def grid(self) -> tuple[NDArray[np.float64], Complex]:
        """A grid on (0, pi] that resolves the plant, and L on it."""
        grid = grid_response(self.loop.lengths)
        return grid.omega, self._gain_on(grid.omega, grid.plant)

    # -- state space --------------------------------------------------------------------

    def open_loop(self) -> StateSpace:
        """State space of L (H in, minus the law's window out), for short length laws.

        Raises:
            ValueError: the length law is too long for dense matrices.
        """
        loop, latency = self.loop, self.loop.latency
        plant = admission_state_space(loop.lengths)
        used = [i for i in range(len(SAMPLE_FIELDS)) if np.any(self._law_b[:, i])]
        # Rows of (admissions, batch, KV of output) that make each field of the sample.
        mix = np.zeros((len(SAMPLE_FIELDS), 3))
        kv_row = np.array([0.0, loop.prompt_tokens, 1.0])
        decode_row = np.array([0.0, self.slope_ms, 0.0]) + latency.kappa_ms_per_token * kv_row
        prompt_row = np.array([loop.prompt_tokens, 0.0, 0.0])
        mix[_F["step_ms"]] = decode_row + latency.prefill_ms_per_token * prompt_row
        mix[_F["batch"]] = [0.0, 1.0, 0.0]
        mix[_F["kv_tokens"]] = kv_row
        mix[_F["prefill_tokens"]] = prompt_row
        n, m, d = plant.a.shape[0], len(used), loop.timing.delay_steps
        states = self._law_a.shape[0]
        size = n + 1 + d * m + states
        a, b = np.zeros((size, size)), np.zeros((size, 1))
        a[:n, :n], b[:n] = plant.a, plant.b
        # ITL filter: lhat = (1 - beta) lhat_before + beta l; its state is lhat_before.
        a[n, n] = 1 - loop.beta
        a[n, :n] = loop.beta * (decode_row @ plant.c)
        b[n] = loop.beta * (decode_row @ plant.d)
        fields, feed = np.zeros((len(SAMPLE_FIELDS), size)), mix @ plant.d
        fields[:, :n] = mix @ plant.c
        for name, scale in (("sigma", 1.0 / latency.l_min_ms), ("itl_ms", 1.0)):
            fields[_F[name]] = scale * a[n]
            feed[_F[name]] = scale * b[n]
        feed[_F["load_tokens"]] = 1.0
        law = slice(size - states, size)
        drive = self._law_b[:, used]
        a[law, law] += self._law_a
        if d == 0:
            a[law] += drive @ fields[used]
            b[law] += drive @ feed[used]
        else:
            first = n + 1
            a[first : first + m] = fields[used]
            b[first : first + m] = feed[used]
            for stage in range(1, d):
                row = first + stage * m
                a[row : row + m, row - m : row] = np.eye(m)
            a[law, first + (d - 1) * m : first + d * m] = drive
        c = np.zeros((1, size))
        c[0, size - states] = -1.0
        return StateSpace(a, b, c, np.zeros((1, 1)))

    def closed_loop_matrix(self) -> NDArray[np.float64]:
        """A - B C: the free motion of all states with the loop closed."""
        system = self.open_loop()
        closed: NDArray[np.float64] = system.a - system.b @ system.c
        return closed

    def poles(self) -> NDArray[np.complex128]:
        """Closed-loop poles; stable when all lie inside the unit circle."""
        return np.asarray(np.linalg.eigvals(self.closed_loop_matrix()), dtype=np.complex128)

    def to_control(self) -> Any:
        """L as a ``control.StateSpace`` with dt = 1; mind docs/control.md on its margins."""
        import control

        system = self.open_loop()
        return control.ss(system.a, system.b, system.c, system.d, dt=1)


def linearise(loop: LoopModel, point: Equilibrium | None = None) -> LinearLoop:
    """Linearise ``loop`` at ``point``, by default its own equilibrium.

    At the knee itself the lower slope is taken, as in ``LatencyModel.slope_ms``.

    Raises:
        ValueError: the law switches and has no derivative that describes its motion.
    """
    if loop.law in SWITCHING_LAWS:
        raise ValueError(
            f"law = {loop.law!r} moves by fixed steps and has no linear margins: use `step` to "
            "see its cycle, or one of paper, regulated, predictive, gradient2, fixed"
        )
    point = equilibrium(loop) if point is None else point
    law = loop.make_law()
    sample = steady_sample(loop, point.window_tokens, point.batch, point.step_ms, queue_depth(loop))
    state = law.initial()._replace(window_tokens=point.window_tokens)
    state = _settled(loop, state, sample._asdict(), point)
    jacobian = law.jacobian(sample, state)
    if point.regime in (Regime.CLAMPED_MIN, Regime.CLAMPED_MAX):
        # Resting on a clamp: the window does not move for small changes.
        jacobian = LawJacobian(
            (tuple(0.0 for _ in jacobian.state[0]), *jacobian.state[1:]),
            (tuple(0.0 for _ in jacobian.sample[0]), *jacobian.sample[1:]),
        )
    above = point.batch > loop.latency.b0 * (1 + 1e-9)
    slope = loop.latency.a_ms + (loop.latency.alpha_ms if above else 0.0)
    return LinearLoop(loop, point, jacobian, slope)


def _settled(loop: LoopModel, state: Any, sample: dict[str, Any], point: Equilibrium) -> Any:
    """The rest of the law's state as it is after a long time at ``point``."""
    if loop.law == "gradient2":
        return state._replace(long_itl_ms=point.step_ms)
    if loop.law == "predictive":
        law: Any = loop.make_law()
        modelled = law.decode_ms(point.batch, point.kv_tokens)
        gain = point.step_ms / modelled if modelled > 0 else 1.0
        gains = law.config.gains
        return state._replace(
            gain_decode=min(max(gain, gains.decode_min), gains.decode_max),
            residual_var=0.0,
            row_tokens=sample["load_tokens"] / point.batch if point.batch > 0 else 0.0,
            row_kv_tokens=loop.kv_per_request,
            prefill_per_step=sample["prefill_tokens"],
        )
    return state
