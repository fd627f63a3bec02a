"""What breaks around a run: disks, processes, caches."""
