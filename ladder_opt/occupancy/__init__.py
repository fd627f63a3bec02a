"""From a request trace to a histogram of decode steps."""
