"""TWP's routes on SGLang's own HTTP server: configuration, state, explanations, live page."""
