"""Durations of device operations: trained on measured data, by law where there are none."""

from understudy.forests.prediction import SCHEMA, predict
from understudy.forests.storage import Models, TrainedForests, load
from understudy.forests.training import CODE_VERSION, train

__all__ = ["CODE_VERSION", "SCHEMA", "Models", "TrainedForests", "load", "predict", "train"]
