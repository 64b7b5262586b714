"""What a cycle costs: `python -m benchmarks.run` for our own limits, `python -m benchmarks.peers` beside others."""
