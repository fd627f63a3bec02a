"""Plans: the versioned file, and how one is made from traffic."""
