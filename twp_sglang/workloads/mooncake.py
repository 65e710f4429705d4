"""Mooncake traces (arXiv 2407.00079): JSON lines with prefix block hashes.

Each line has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``, one per
512 prompt tokens; equal ids mean an equal prompt up to the end of that block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twp_sglang.workloads.fields import Place, json_lines, opened, seconds, tokens
from twp_sglang.workloads.request import PrefixBlock, Request
from twp_sglang.workloads.workload import Workload, in_order

BLOCK_TOKENS = 512


def read_mooncake(path: Path, limit: int | None = None) -> Workload:
    """Read a Mooncake trace.

    Raises:
        WorkloadError: the file cannot be read, a line is bad (with its number), or there
            is no request.
    """
    place = Place(path)
    requests: list[Request] = []
    with opened(path) as handle:
        for line in json_lines(handle, place):
            if limit is not None and len(requests) >= limit:
                break
            requests.append(_request(line, place))
    return in_order(path.name, requests)


def _request(line: dict[str, Any], place: Place) -> Request:
    for field in ("timestamp", "input_length", "output_length"):
        if field not in line:
            raise place.error(f"no field {field}")
    input_tokens = tokens(line["input_length"], "input_length", place)
    ids = line.get("hash_ids", [])
    if not isinstance(ids, list):
        raise place.error(f"hash_ids is {ids!r}, not a list")
    if len(ids) > -(-input_tokens // BLOCK_TOKENS):
        raise place.error(
            f"{len(ids)} hash_ids for {input_tokens} tokens: one stands for {BLOCK_TOKENS}"
        )
    blocks = tuple(
        PrefixBlock(str(key), min(BLOCK_TOKENS, input_tokens - index * BLOCK_TOKENS))
        for index, key in enumerate(ids)
    )
    return Request(
        seconds(line["timestamp"], "timestamp", place) / 1e3,
        input_tokens,
        tokens(line["output_length"], "output_length", place),
        prefix=blocks,
    )
