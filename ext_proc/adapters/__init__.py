"""What the ports are filled with: one file per store, clock, model or upstream."""
