"""What ladder_opt is measured by; `README.md` says how to run and read each."""
