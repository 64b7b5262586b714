"""Scenarios with a real model, if it is asked for; else with the fake provider."""
