"""Files that were valid once, mutated: what every loader says of them, for as long as asked."""
