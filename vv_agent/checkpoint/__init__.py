"""The checkpointed run: its configuration, its journal, its record and the stores that keep it."""
