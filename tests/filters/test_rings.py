"""The contracts in `pyproject.toml` that name modules one by one name all of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from filters import BUILT_IN, UNNAMED

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
CONTRACT = "Filters never import each other"


def test_no_built_in_filter_is_missing_from_the_contract_of_independence() -> None:
    """import-linter has no wildcard for them: `filters` holds other modules as well."""
    contracts = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (listed,) = (one["modules"] for one in contracts if one["name"] == CONTRACT)
    modules = {".".join(kind.__module__.split(".")[:2]) for kind in (*BUILT_IN.values(), *UNNAMED)}
    assert sorted(modules) == sorted(listed), (
        f'pyproject.toml: the modules of the contract "{CONTRACT}" must be those of '
        f"filters.BUILT_IN and UNNAMED: add {sorted(modules - set(listed))}, "
        f"take out {sorted(set(listed) - modules)}"
    )
