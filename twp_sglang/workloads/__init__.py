"""Request workloads: readers for published traces, generators, summaries."""
