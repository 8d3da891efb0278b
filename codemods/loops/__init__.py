"""What `mixed-precision` and `xla` do about training steps that a script writes by hand."""
