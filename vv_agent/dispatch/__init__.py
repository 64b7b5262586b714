"""Who calls `advance` next: the caller's thread, a pool of threads, or workers of other processes."""
