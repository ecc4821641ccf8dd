"""The cost of idle sessions for the gateway (PF-12): memory as the slope over their number, and CPU.

Each number of clients gets an instance of its own. The clients join one room, receive a little, and then only keep
their sessions alive. They do so every second: 15 times as often as by default. At the 400 ms of `muster up` the gateway
also keeps the expanded key of each, 576 bytes.

Resident memory is stated beside allocated bytes, counted by the C library in the same process: what is resident and not
allocated are pages that it keeps. By the parts of a session: `cargo test -p muster-rooms --test memory`.
"""

from bench import asked, cpu
from bench.muster import GATEWAY, LIVE, PATIENCE_SECONDS, Instance
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave

BASE = 1_000
COUNTS = (5_000, 10_000, 18_000)
COUNTS_QUICK = (10_000,)
JUDGED = 10_000
MESSAGES_A_SECOND, TRAFFIC_SECONDS = 10.0, 1.0
CLIENT_BUFFER_BYTES = 1 << 17
SETTLED_SECONDS = 12.0
"""Unused keys are released by the second sweep, after 6 s at most, and free pages are given back within 5 s of that."""
BYTES_MAX = 1024.0
SETTINGS = {"gateway.keepalive_ms": 1_000}

RSS, CPU = "gateway RSS", "gateway CPU ns per s and session"
ALLOCATED, KEPT = "gateway allocated", "gateway freed and kept"
DATAGRAMS = "datagrams of all sessions a second while idle"
RECEIVED = "muster_datagrams_received_total"


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """`rounds` instances for each number of sessions."""
    counts = COUNTS_QUICK if quick else COUNTS
    idle_seconds = 1.5 if quick else 5.0

    def entry(members: int) -> Entry:
        return Entry(f"{members:,} sessions", lambda: _once(members, payload_bytes, idle_seconds))

    results = interleave([entry(members) for members in (BASE, *counts)], rounds, progress)
    cases = []
    base = results.series(f"{BASE:,} sessions", RSS)
    for members in counts:
        name = f"{members:,} sessions"
        slope = results.series(name, RSS).slope(base, members - BASE)
        title = f"{name}: bytes each at the gateway"
        if members == JUDGED:
            cases.append(Case.limit(title, slope, Goal("PF-12", "<=", BYTES_MAX), quick=quick))
        else:
            cases.append(Case.plain(title, slope))
        for figure, words in ((ALLOCATED, "allocated"), (KEPT, "freed and kept")):
            grown = results.series(name, figure).slope(results.series(f"{BASE:,} sessions", figure), members - BASE)
            cases.append(Case.plain(f"{name}: {words}, bytes each", grown))
        datagrams = results.series(name, DATAGRAMS).scaled(1 / members)
        cases.append(Case.plain(f"{name}: datagrams a second of each while idle", datagrams))
    for members in (BASE, *counts):
        name = f"{members:,} sessions"
        cases.append(Case.plain(f"{name}: {RSS} MiB", results.series(name, RSS).scaled(1 / (1 << 20))))
        cases.append(Case.plain(f"{name}: gateway CPU while idle, %", results.series(name, CPU).scaled(100)))
    return tuple(cases)


def _once(members: int, payload_bytes: int, idle_seconds: float) -> Sample:
    instance = Instance("--heap", settings=SETTINGS)
    try:
        instance.start()
        pid = instance.pids[GATEWAY]
        gateway = next(process for process in instance.record.processes if process.role == GATEWAY)
        with instance.clients(members, rooms=[instance.room(LIVE)], buffer_bytes=CLIENT_BUFFER_BYTES) as engine:
            done = engine.pace(payload_bytes, MESSAGES_A_SECOND, TRAFFIC_SECONDS, PATIENCE_SECONDS)
            engine.idle(SETTLED_SECONDS)
            received = asked.metrics(gateway)[RECEIVED]
            before = cpu.process_ns(pid)
            engine.idle(idle_seconds)
            used = (cpu.process_ns(pid) - before) / 1e9 / idle_seconds
            allocated, kept = instance.heap_bytes(GATEWAY)
            figures = {RSS: float(cpu.rss_bytes(pid)), CPU: used, ALLOCATED: float(allocated), KEPT: float(kept)}
            figures[DATAGRAMS] = (asked.metrics(gateway)[RECEIVED] - received) / idle_seconds
            lost = engine.sessions_lost()
        void = "" if done["complete"] and not lost else f"{lost} sessions lost, traffic complete: {done['complete']}"
        return Sample(figures, void)
    finally:
        instance.stop()
