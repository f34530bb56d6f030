"""Which provider's endpoint a request speaks to."""
