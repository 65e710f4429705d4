"""Terms of the headers into the request's sampling parameters, beside those of its body.

They travel in ``custom_params`` under ``twp`` (:mod:`twp_sglang.scheduling.request_terms`).
Headers win over the body: a gateway sets headers, and what it says of a client must not be
overruled by the client. A request with an API key is its key's, whatever it says of itself: a
name from header or body stays inside that key, so that nobody is charged for another key.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from patches.http.header_terms import KEY_CLIENT
from twp_sglang.config_values import closest
from twp_sglang.one_line import one_line, shown
from twp_sglang.scheduling.request_terms import CLIENT_MAX_CHARACTERS, KEY, RequestTerms

_NUMBERS = ("itl_slo_ms", "ttft_slo_ms")
_FIELDS = ("client", *_NUMBERS)


def merged(sampling_params: Any, terms: RequestTerms, key_client: str) -> Any:
    """``sampling_params`` with the terms in force.

    Args:
        sampling_params: of SGLang: a table, one for each prompt of a batch, or None. Anything
            else is left as it is, for SGLang to complain of.

    Raises:
        ValueError: the body's own terms cannot be used; names field, value and mend.
    """
    if isinstance(sampling_params, list):
        return [merged(item, terms, key_client) for item in sampling_params]
    if sampling_params is None:
        sampling_params = {}
    if not isinstance(sampling_params, Mapping):
        return sampling_params
    custom = sampling_params.get("custom_params")
    if custom is not None and not isinstance(custom, Mapping):
        return sampling_params
    in_force = {
        **checked((custom or {}).get(KEY)),
        **{name: value for name, value in terms._asdict().items() if value},
    }
    in_force["client"] = client_within(key_client, in_force.get("client", ""))
    in_force = {name: value for name, value in in_force.items() if value}
    if not in_force:
        return sampling_params
    return {**sampling_params, "custom_params": {**(custom or {}), KEY: in_force}}


def client_within(key_client: str, name: str) -> str:
    """The client that ``name`` stands for when it is sent with the key of ``key_client``.

    Either may be empty. Without a key, a name that looks like a key's is put behind a slash.
    """
    if key_client:
        return f"{key_client}/{name}" if name else key_client
    return f"/{name}" if KEY_CLIENT.match(name) else name


def checked(terms: Any) -> dict[str, Any]:
    """The body's ``custom_params.twp``, known to be usable; empty where there is none.

    Raises:
        ValueError: it is not; names field, value and mend.
    """
    if terms is None:
        return {}
    where = f"custom_params.{KEY}"
    if not isinstance(terms, Mapping):
        raise ValueError(f"{where} = {shown(terms)}: give a table of {', '.join(_FIELDS)}")
    for name, value in terms.items():
        if name not in _FIELDS:
            near = closest(str(name), _FIELDS)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(_FIELDS)}"
            raise ValueError(f"{where}.{one_line(str(name))}: no such field; {hint}")
        if name in _NUMBERS:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not _usable(value):
                raise ValueError(f"{where}.{name} = {shown(value)}: give milliseconds above 0")
        elif not _is_name(value):
            raise ValueError(
                f"{where}.{name} = {str(value)[:40]!r}: give a text of at most "
                f"{CLIENT_MAX_CHARACTERS} printable characters"
            )
    return dict(terms)


def _is_name(value: Any) -> bool:
    # A line end or a lone surrogate would reach logs and traces with the name.
    return (
        isinstance(value, str) and 0 < len(value) <= CLIENT_MAX_CHARACTERS and value.isprintable()
    )


def _usable(value: float) -> bool:
    try:
        return isfinite(value) and value > 0
    except OverflowError:  # a whole number too large for a float
        return False
