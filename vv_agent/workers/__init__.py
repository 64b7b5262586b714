"""Workers: processes that advance the runs of their queues."""
