"""Programs that show vv-agent at work."""
