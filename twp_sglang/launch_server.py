"""``python -m twp_sglang.launch_server``: stock SGLang under Token Window Pacing.

Takes every flag of ``python -m sglang.launch_server``, and ``--twp-*`` beside them.
"""

from __future__ import annotations

import sys

from twp_sglang.serving.launch import serve_and_leave

if __name__ == "__main__":
    serve_and_leave(sys.argv[1:])
