"""Request terms from HTTP headers: whose request it is, and objectives of its own.

X-TWP-Client: team-a
X-TWP-ITL-SLO: 50ms
X-TWP-TTFT-SLO: 2s
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b

from twp_sglang.config_values import closest
from twp_sglang.durations import milliseconds
from twp_sglang.one_line import one_line, shown
from twp_sglang.scheduling.request_terms import CLIENT_MAX_CHARACTERS, RequestTerms

PREFIX = "x-twp-"
CLIENT = "x-twp-client"
ITL_SLO = "x-twp-itl-slo"
TTFT_SLO = "x-twp-ttft-slo"

_SPELLED = {CLIENT: "X-TWP-Client", ITL_SLO: "X-TWP-ITL-SLO", TTFT_SLO: "X-TWP-TTFT-SLO"}


KEY_CLIENT = re.compile(r"/*key-[0-9a-f]{16}(/|$)")
"""How the names begin that :func:`key_client` gives."""


class HeaderError(Exception):
    """A header that cannot be used; the message is for its sender."""


Headers = Iterable[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""


def terms_in(headers: Headers) -> RequestTerms:
    """The terms that ``headers`` ask for.

    Raises:
        HeaderError: one of ours is unknown, given twice or cannot be used; names header, value
            and mend.
    """
    given: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        if not name.startswith(PREFIX):
            continue
        if name not in _SPELLED:
            near = closest(name, _SPELLED)
            hint = f"did you mean {_SPELLED[near]}?" if near else f"known: {_known()}"
            raise HeaderError(f"{one_line(name)}: no such header; {hint}")
        value = raw_value.decode("latin-1").strip()
        if name in given:
            raise HeaderError(
                f"{_SPELLED[name]}: {shown(value)} beside {shown(given[name])}; send it once"
            )
        given[name] = value
    return RequestTerms(
        _client(given[CLIENT]) if CLIENT in given else "",
        _objective(ITL_SLO, given.get(ITL_SLO)),
        _objective(TTFT_SLO, given.get(TTFT_SLO)),
    )


def _known() -> str:
    return ", ".join(_SPELLED.values())


def _client(value: str) -> str:
    if not value:
        raise HeaderError("X-TWP-Client: is empty; name the client or leave the header out")
    if len(value) > CLIENT_MAX_CHARACTERS or not value.isprintable():
        raise HeaderError(
            f"X-TWP-Client: {value[:40]!r}: give at most {CLIENT_MAX_CHARACTERS} printable "
            "characters"
        )
    return value


def _objective(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return milliseconds(value)
    except ValueError as error:
        raise HeaderError(f"{_SPELLED[name]}: {shown(value)}: {error}") from None


def key_client(headers: Headers) -> str:
    """A name for the sender's API key that does not tell the key; empty without one.

    The same key gets the same name on every server and after every restart, so that traces
    and figures of several can be laid side by side.
    """
    for raw_name, raw_value in headers:
        if raw_name.lower() == b"authorization":
            scheme, _, key = raw_value.strip().partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                digest = blake2b(key.strip(), digest_size=8, person=b"twp-client").hexdigest()
                return f"key-{digest}"
    return ""
