"""Training loops that are written by hand: their steps, and what tracing them would change."""
