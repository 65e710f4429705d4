"""Long mixed load on a running server, with what goes wrong in between, and invariants judged."""
