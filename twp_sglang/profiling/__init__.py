"""Step profiler: decode, mixed and prefill steps of a decoder with random weights, timed.

model_shape.py          sizes of a decoder        step_points.py      which steps, in which order
step_inputs.py          tensors of one step       decoder.py          the forward
elementwise.py          norms, rotation, SiLU     attention.py        what an attention backend is
sdpa_attention.py       torch's own               flashinfer_attention.py  FlashInfer's wrappers
correctness.py          against float64           stopwatch.py        device events, CUDA graphs
measuring.py            one run over the points   roofline.py         bytes and FLOPs over rates
fitting.py              the step model            step_file.py        what is written
machine.py              is this GPU usable        faults.py           errors in one line
arguments.py            the command line          screen.py           what is printed

Needs torch, and FlashInfer for that backend; no SGLang, no weights, nothing to download.
"""
