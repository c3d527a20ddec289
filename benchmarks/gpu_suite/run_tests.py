"""Runs tests so that none harms the next; exit code 0 if all passed, and none was skipped.

    python -m gpu_suite.run_tests ROWS.csv PYTEST_ARGUMENTS...

The ranks of each test are processes of its own. A test that takes too long has the stacks of all
threads written and pytest ended with all its processes; another pytest then goes on with the rest.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from gpu_suite import rows, supervise

SECONDS = 45  # of a test


def run(path: Path, *arguments: str) -> str:
    """What is wrong with the tests; empty if nothing is."""
    command = [sys.executable, "-m", "pytest", "-p", "gpu_suite.rows", "-q"]
    command += [f"--timeout={SECONDS}", "--timeout-method=thread", *arguments]
    environment = {"GPU_SUITE_ROWS": str(path)}
    running = rows.running(path)
    while True:
        code = supervise.run(command, environment=environment)
        if not running.exists():
            break
        test, gpu = running.read_text().splitlines()
        rows.append(path, test, "ended pytest", "", gpu)
        running.unlink()
    outcomes = Counter(row["outcome"] for row in rows.read(path))
    if set(outcomes) == {"passed"}:
        return "" if code in (0, 5) else f"pytest ended with exit code {code}"
    for row in rows.read(path):
        if row["outcome"] != "passed":
            print(f"{row['outcome']}: {row['test']}")
    return ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()) or "no test ran"


def main() -> int:
    problem = run(Path(sys.argv[1]), *sys.argv[2:])
    print(problem or "all passed")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
