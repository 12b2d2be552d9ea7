"""``python -m moeplan``."""

from moeplan.cli import entry

entry()
