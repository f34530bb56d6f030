"""Forebay's edges: the Envoy external-processing server, what it stands on, and its commands."""
