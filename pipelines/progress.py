"""What the command line learns from a run in its own process: Dagster's log records.

A run logs to `progress` only where its configuration names it (see `pipelines/running.py`);
runs of the web page keep Dagster's console log.
"""

from __future__ import annotations

import logging

import dagster as dg

LOGGER_NAME = "understudy.run"


def _progress_logger(_context: dg.InitLoggerContext) -> logging.Logger:
    """A logger without output of its own."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


LOGGERS: dict[str, dg.LoggerDefinition] = {
    "console": dg.colored_console_logger,
    "progress": dg.LoggerDefinition(
        _progress_logger, description="Hands the records of a run to the process that started it."
    ),
}
