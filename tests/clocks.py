"""The wall clock of programs that tests run, stepped while they run.

A small library before libc's own answers for the time: the real time and as many seconds as a file says. Monotonic
clocks are left alone.
"""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("MUSTERTEST_AHEAD");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    ahead = found == MAP_FAILED ? 0 : found;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int said = syscall(SYS_clock_gettime, which, now);
    if (said == 0 && ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return said;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &fine);
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (into) *into = fine.tv_sec;
    return fine.tv_sec;
}
"""


class Clock:
    """One clock for all programs that are started with its `environment`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler")
        source, self._library, self._file = folder / "clock.c", folder / "clock.so", folder / "ahead"
        source.write_text(SOURCE)
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", self._library, source], check=True)
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        """What a program is started with."""
        return {"LD_PRELOAD": str(self._library), "MUSTERTEST_AHEAD": str(self._file)}

    def step(self, seconds: int) -> None:
        """The clock is ahead of the real one by this much from now on."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("=q", seconds))
