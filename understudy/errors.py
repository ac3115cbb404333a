"""Errors that a user can act on. Anything else that escapes is a bug."""

from __future__ import annotations


class UnderstudyError(Exception):
    """A run failed. The message names the file, rank, stream or communicator and what to do."""

    exit_code = 1


class UsageError(UnderstudyError):
    """What was asked for makes no sense: unknown device, bad job file, missing script."""

    exit_code = 2
