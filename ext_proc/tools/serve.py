"""Run the ext_proc server alone, as the sidecar's container does."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay serve`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default="envoy/forebay.yaml",
        help="Envoy's YAML with the forebay block, or the block alone (envoy/forebay.yaml)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay serve` until SIGINT or SIGTERM."""
    import uvloop

    from ext_proc.app import serve

    return uvloop.run(serve(arguments.config))
