"""Hypothesis strategies of requests as no client library would write them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def _few_answers(parameters: Any) -> bool:
    """SGLang makes a list of ``n`` copies before it looks at n: memory is gone at 2**31."""
    answers = parameters.get("n") if isinstance(parameters, dict) else None
    return not isinstance(answers, int | float) or answers < 100


def _generate(prompt: dict[str, Any], parameters: Any, extra: dict[str, Any]) -> dict[str, Any]:
    return {**prompt, "sampling_params": parameters, **extra}


TOKEN_IDS = st.integers(3, 250)
"""Inside the tiny vocabulary."""

odd = st.one_of(
    st.sampled_from(
        (
            None, True, False, -1, 0, 1, 2, 2**31, 2**63 - 1, 2**63, 10**30, 0.5, -0.5, 1e308, 3.0,
            "", "3", "none", "x" * 600, [], [1], ["a"], [[]], {}, {"a": 1}, {"twp": {}},
        )
    ),
    st.text(max_size=8),
    st.integers(-5, 20),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
"""Values of every JSON type, most of them wrong wherever they stand."""

terms = st.one_of(
    odd,
    st.dictionaries(
        st.sampled_from(("client", "itl_slo_ms", "ttft_slo_ms", "priority", "x")), odd, max_size=4
    ),
)
"""What may stand under ``custom_params.twp``."""

custom_params = st.one_of(odd, st.fixed_dictionaries({"twp": terms}))

_READ_BY_THE_CORE = ("max_new_tokens", "min_new_tokens", "n", "ignore_eos", "stop_token_ids")

good_sampling = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(0, 12)},
    optional={"ignore_eos": st.booleans(), "custom_params": custom_params, "n": st.integers(1, 3)},
)

sampling = st.one_of(
    odd,
    good_sampling,
    good_sampling,
    st.builds(
        lambda good, wrong: {**good, **wrong},
        good_sampling,
        st.dictionaries(st.sampled_from(_READ_BY_THE_CORE), odd, min_size=1, max_size=2),
    ),
).filter(lambda value: not isinstance(value, list) and _few_answers(value))
"""No lists: for a single prompt SGLang answers them with 500 (docs/soak.md)."""

good_prompts = st.fixed_dictionaries({"input_ids": st.lists(TOKEN_IDS, min_size=1, max_size=30)})

prompts = st.one_of(
    good_prompts,
    good_prompts,
    st.fixed_dictionaries({"input_ids": st.lists(TOKEN_IDS, max_size=2)}),
    st.fixed_dictionaries({"input_ids": st.lists(st.lists(TOKEN_IDS, max_size=4), max_size=3)}),
    st.fixed_dictionaries({"text": st.text(max_size=20)}),
    st.fixed_dictionaries({"text": odd}),
    st.fixed_dictionaries({"input_ids": odd}),
    st.fixed_dictionaries({"input_ids": st.lists(st.integers(-5, 2**40), max_size=4)}),
    st.just({}),
    st.just({"input_ids": [5] * 3000}),
)

generate_bodies = st.one_of(
    odd,
    st.builds(_generate, good_prompts, good_sampling, st.just({})),
    st.builds(
        _generate,
        prompts,
        sampling,
        st.fixed_dictionaries(
            {},
            optional={
                "stream": st.booleans(),
                "rid": odd,
                "priority": odd,
                "return_logprob": st.booleans(),
            },
        ),
    ),
)

openai_bodies = st.builds(
    lambda prompt, wrong, own: {"model": "default", "max_tokens": 4, **prompt, **wrong, **own},
    st.one_of(
        st.fixed_dictionaries({"prompt": st.text(max_size=12)}),
        st.fixed_dictionaries({"prompt": st.lists(TOKEN_IDS, max_size=20)}),
        st.fixed_dictionaries(
            {"messages": st.just([{"role": "user", "content": "hi"}])},
        ),
    ),
    st.dictionaries(
        st.sampled_from(("max_tokens", "n", "priority", "stream", "ignore_eos", "user")),
        odd,
        max_size=2,
    ),
    st.fixed_dictionaries({}, optional={"custom_params": custom_params, "rid": st.text()}),
).filter(_few_answers)

headers = st.dictionaries(
    st.sampled_from(
        (
            "X-TWP-Client",
            "X-TWP-ITL-SLO",
            "X-TWP-TTFT-SLO",
            "X-TWP-Clinet",
            "x-twp-",
            "X-TWP-Priority",
        )
    ),
    st.one_of(
        st.sampled_from(
            (
                "",
                "team-a",
                "50ms",
                "2s",
                "-1ms",
                "1e999s",
                "nanms",
                "5",
                "0s",
                "x" * 4000,
                "{}",
                "\xe9",
            )
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    ),
    max_size=3,
)

request_ids = st.one_of(
    st.text(max_size=30),
    st.sampled_from(("", ".", "..", "../config", "a/b", "%2e%2e", "\0", "x" * 3000, "\N{SNOWMAN}")),
)

good_changes = st.fixed_dictionaries(
    {},
    optional={
        "gamma": st.floats(0.01, 1.0),
        "t_max_steps": st.integers(1, 500),
        "itl_slo": st.sampled_from(("30ms", "0.2s", "auto")),
        "queue_max_requests": st.one_of(st.none(), st.integers(50, 500)),
    },
).filter(bool)

patches = st.one_of(
    odd,
    good_changes,
    good_changes,
    st.dictionaries(
        st.sampled_from(
            ("gamma", "beta", "h0_tokens", "h_min_tokens", "b0", "policy", "law", "chunk_tokens",
             "t_max_steps", "l_min_ms", "evidence", "itl_slo_ms", "ttft_slo", "gama", "")
        ),
        odd,
        min_size=1,
        max_size=3,
    ),
)  # fmt: skip
