"""For all tests: no clock of hypothesis decides whether one passes, and Control-C interrupts."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

# a shell's background jobs (``make test &``) ignore it, and so would every process that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)
