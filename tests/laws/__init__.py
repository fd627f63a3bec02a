"""Laws of the whole pipeline: what holds whatever the traffic, the prices and the machine."""
