"""Request traces: reading, checking, summarising, making."""
