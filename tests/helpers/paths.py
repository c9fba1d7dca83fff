"""Where things lie: the checkout, its scripts, the data beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
HELPERS = ROOT / "tests" / "helpers"
SHARED = ROOT.parent / "shared"
