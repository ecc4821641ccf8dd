"""The last lines of `scripts/test.sh`: each failed test and why, each other part that failed, then how many tests
passed, failed and were skipped, over all of its pytest processes. A failed part counts as a failed test.

    python -m tests.closing RESULTS.xml:EXIT_CODE… [FAILED_PART…]

Reads what pytest wrote by `--junitxml`. Knows nothing of how the tests are grouped.
"""

import contextlib
import sys
from collections import Counter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

EXITS: Final = {2: "interrupted", 3: "internal error", 4: "usage error", 5: "no tests were collected"}
WHY_CHARACTERS: Final = 300


def counted(results: Path, code: int) -> Counter[str]:
    """The counts of one process. A process that did not end as its results say counts as a failure, and is named on
    stderr."""
    found = Counter[str]()
    suites: list[ElementTree.Element] = []
    with contextlib.suppress(OSError, ElementTree.ParseError):
        suites = list(ElementTree.parse(results).getroot().iter("testsuite"))
    for suite in suites:
        tests, failures, errors, skipped = (
            int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")
        )
        found += Counter(passed=tests - failures - errors - skipped, failed=failures + errors, skipped=skipped)
    if code not in {0, 1} or (code == 1) != (found["failed"] > 0) or found.total() == 0:
        print(f"pytest of {results.stem} ended with {code}: {EXITS.get(code, 'crashed')}", file=sys.stderr)
        found["failed"] += 1
    return found


def failures(results: Path) -> list[str]:
    """A line for each failed test: its name and the first line of its message."""
    found: list[str] = []
    with contextlib.suppress(OSError, ElementTree.ParseError):
        for case in ElementTree.parse(results).getroot().iter("testcase"):
            for fault in (*case.iter("failure"), *case.iter("error")):
                why = (fault.get("message") or fault.text or "").strip().partition("\n")[0]
                found.append(f"{case.get('classname')}::{case.get('name')}: {why[:WHY_CHARACTERS]}")
    return found


def main(words: list[str]) -> int:
    """Print the lines. Returns 1 if anything failed or nothing ran."""
    total = Counter[str]()
    for word in words:
        results, colon, code = word.rpartition(":")
        if not colon:
            print(f"FAILED {word}: see what it printed above")
            total["failed"] += 1
            continue
        total += counted(Path(results), int(code))
        for failure in failures(Path(results)):
            print(f"FAILED {failure}")
    line = f"{total['passed']} passed, {total['failed']} failed"
    print(line + (f", {total['skipped']} skipped" if total["skipped"] else ""))
    return 0 if total["passed"] and not total["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
