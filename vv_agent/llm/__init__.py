"""Model clients: one streaming protocol inside, providers and settings around it."""
