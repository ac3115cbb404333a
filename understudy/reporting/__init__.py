"""Reports of a prediction: as a dict (the JSON of `predict` and `show`), as text and as HTML."""

from understudy.reporting.page import html
from understudy.reporting.record import report
from understudy.reporting.terminal import text

__all__ = ["html", "report", "text"]
