"""What the tools outside Ansible share: the checkout's paths, and the core made importable."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "module_utils"))

CACHE = Path(os.environ.get("HOSTKIT_CACHE") or ROOT / ".cache").absolute()
"""What is fetched and made once: wheels, models, keys. Outlives a checkout where it is set."""

CPU_LOCK = "locks/vllm-0.32.0-cpu-cp311-x86_64.txt"
"""The engine of the demo and of the tests."""
