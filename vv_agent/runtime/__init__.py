"""What happens in one cycle of a run, and what comes next. It imports no dispatch, workers or runner."""
