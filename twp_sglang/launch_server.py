"""``python -m twp_sglang.launch_server``: stock SGLang under Token Window Pacing.

Takes every flag of ``python -m sglang.launch_server``, and ``--twp-*`` beside them.
"""

from __future__ import annotations

import os
import sys

from twp_sglang.serving.launch import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: with its children gone, the interpreter's finalisation can wait for ever
    # for ZeroMQ sockets whose other end no longer reads.
    os._exit(code)
