"""What Forebay does to an exchange: filters, dialects and the pipeline, without I/O."""

from typing import Any, Final

from filters.admit import AdmitFilter
from filters.api import Filter
from filters.budget import BudgetFilter
from filters.cache import CacheFilter
from filters.canary import CanaryFilter
from filters.classify import ClassifyFilter
from filters.clean import CleanFilter
from filters.gather import GatherFilter
from filters.pace import PaceFilter
from filters.params import ParamsFilter
from filters.pick import PickFilter
from filters.route import RouteFilter
from filters.shape import ShapeFilter
from filters.stage import StageFilter
from filters.think import ThinkFilter

BUILT_IN: Final[dict[str, type[Filter[Any]]]] = {
    # In the order in which a request passes them; a reply passes them the other way.
    "pace": PaceFilter,
    "clean": CleanFilter,
    "shape": ShapeFilter,
    "params": ParamsFilter,
    "cache": CacheFilter,
    "classify": ClassifyFilter,
    "budget": BudgetFilter,
    "think": ThinkFilter,
    "route": RouteFilter,
    "gather": GatherFilter,
    "admit": AdmitFilter,
    "pick": PickFilter,
}
"""Every filter a profile may name: config key to class."""

UNNAMED: Final[tuple[type[Filter[Any]], ...]] = (CanaryFilter, StageFilter)
"""Filters that stand in no profile: another setting puts them there."""
