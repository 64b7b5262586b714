"""The small model of the demo and its server."""
