"""What developers run by hand; nothing here is installed."""
