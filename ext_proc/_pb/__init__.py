"""Generated messages of the external processing protocol; `make proto` writes them from `proto/`."""
