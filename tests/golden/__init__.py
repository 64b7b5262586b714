"""Runs as earlier releases wrote them, and the agents they belong to."""
