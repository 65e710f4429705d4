"""The report: one HTML page and a set of pictures, with the verdict in plain words on top.

build.py          from a trace or a model    page.py            the HTML
verdict.py        findings in words          style.py           look of the figures
trace_figures.py  fit, recorded/predicted    loop_figures.py    Bode, Nyquist, map, burst
replay.py         the law over a recording
"""

from controllers.report.build import report_from_model, report_from_trace, write_report
from controllers.report.page import Report, render

__all__ = ["Report", "render", "report_from_model", "report_from_trace", "write_report"]
