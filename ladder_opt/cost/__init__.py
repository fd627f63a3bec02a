"""What a step and a compile cost, in seconds."""
