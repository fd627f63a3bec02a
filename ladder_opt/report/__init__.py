"""What people look at: results as text."""
