"""Plans in service: what they cost on traffic and under prices that they were not made for."""
