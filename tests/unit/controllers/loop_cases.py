"""Length laws and loops that the tests of the closed forms share."""

from controllers.models import LatencyModel, LengthLaw, LoopModel, LoopTiming

LENGTH_SPECS = (
    "const:50",
    "uniform:1:99",
    "geometric:50",
    "mix:20@0.5,50@0.3,200@0.2",
    "const:1",
)


def make_loop(
    spec: str = "geometric:50",
    *,
    law: str = "paper",
    beta: float = 0.2,
    delay_steps: int = 0,
    l_min_ms: float = 43.0,
    b0: float = 8.0,
    alpha_ms: float = 4.3,
    a_ms: float = 0.0,
    kappa: float = 0.0,
    prefill: float = 0.0,
    prompt_tokens: float = 0.0,
    queue: float | str = "saturated",
    **law_params: object,
) -> LoopModel:
    latency = LatencyModel(
        l_min_ms=l_min_ms,
        b0=b0,
        alpha_ms=alpha_ms,
        a_ms=a_ms,
        kappa_ms_per_token=kappa,
        prefill_ms_per_token=prefill,
    )
    if law == "predictive":
        law_params.setdefault("latency", latency)
    return LoopModel(
        latency=latency,
        lengths=LengthLaw.parse(spec),
        timing=LoopTiming(delay_steps=delay_steps),
        law=law,
        law_params=law_params,
        beta=beta,
        queue=queue,
        prompt_tokens=prompt_tokens,
    )
