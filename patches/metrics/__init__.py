"""TWP's part of SGLang's /metrics: what is told, and how it gets there off the hot path."""
