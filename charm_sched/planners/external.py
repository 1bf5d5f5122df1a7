"""Strategies from outside: ``path/to/file.py:function``."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.errors import CharmSchedError, StrategyError

if TYPE_CHECKING:
    from charm_sched.plans.builder import Builder

Planner = Callable[..., None]


def is_external(name: str) -> bool:
    """Say whether a strategy's name is ``file.py:function``."""
    return ".py:" in name


def short_name(strategy: str) -> str:
    """Leave the folders out of ``path/to/file.py:function``.

    >>> short_name("path/to/file.py:function"), short_name("ring")
    ('file.py:function', 'ring')
    """
    return strategy.rpartition("/")[2]


def load_external(name: str) -> Planner:
    """Load a strategy from a file; the file's code is run.

    Args:
        name: ``path/to/file.py:function``; the function takes a `Builder` and writes to it.

    Returns:
        A planner whose errors name the file and line.

    Raises:
        StrategyError: No such file or function, or the file cannot be run.
    """
    path, _, function = name.rpartition(":")
    if not Path(path).is_file():
        raise StrategyError(f"strategy {name}: expected a Python file, found none at {path}")
    spec = importlib.util.spec_from_file_location(f"charm_strategy_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise StrategyError(f"strategy {name}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise StrategyError(_story(name, path, error)) from error
    found = getattr(module, function, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise StrategyError(
            f"strategy {name}: expected a function {function!r} in {path}, found {known}"
        )

    @functools.wraps(found)
    def planner(b: Builder, **params: object) -> None:
        try:
            result = found(b, **params)
        except (StrategyError, MemoryError):  # what it says of itself, and what is nobody's mistake
            raise
        except CharmSchedError as error:
            raise type(error)(f"{_place(path, error)}{error}") from error
        except (Exception, SystemExit) as error:
            place = _place(path, error)
            raise StrategyError(f"{place}{type(error).__name__}: {error}") from error
        if inspect.isgenerator(result) or inspect.iscoroutine(result):
            what = "generator" if inspect.isgenerator(result) else "coroutine"
            result.close()
            raise StrategyError(
                f"expected a function that writes the plan when it is called, "
                f"but {function} is a {what}"
            )

    return planner


def _story(name: str, path: str, error: BaseException) -> str:
    """Tell what went wrong, and at which line of the user's file."""
    if isinstance(error, SyntaxError):
        return f"strategy {name}: line {error.lineno}: {error.msg}"
    return f"strategy {name}: {_place(path, error)}{type(error).__name__}: {error}"


def _place(path: str, error: BaseException) -> str:
    """Give the last line of a file that an error came through, as ``file.py, line 3: ``."""
    here = Path(path).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    return f"{here.name}, line {lines[-1]}: " if lines else ""
