"""One thread for torch, and the cases that these tests share with the processes they spawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))  # for attention_cases, which ranks.py imports too
