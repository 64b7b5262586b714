"""`make demo`: a real small model, two workers, and a kill in the middle of the run."""
