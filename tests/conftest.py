"""For all tests: Ctrl-C works in what they start, also where the tests themselves run in the background."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
