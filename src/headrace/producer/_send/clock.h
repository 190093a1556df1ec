/* The system's time in milliseconds, as CLOCK_REALTIME has it.

   Reading the clock would take a tenth of send(). The processor's counter takes less than half of that, and says whether the
   time that was read last is still good: for HR_CLOCK_TICKS_MAX ticks, which are at most 0.1 ms from 1 GHz on. A counter that
   was set back, or that of another processor, gives a large difference, and the clock is read. */

#ifndef HEADRACE_SEND_CLOCK_H
#define HEADRACE_SEND_CLOCK_H

#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#define HR_CLOCK_TICKS_MAX 100000
#endif

static inline int64_t hr_read_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int64_t hr_now_ms(void) {
#if defined(__x86_64__)
    static uint64_t read_at;  /* guarded by the GIL, like read_ms */
    static int64_t read_ms;
    uint64_t ticks = __rdtsc();
    if (ticks - read_at >= HR_CLOCK_TICKS_MAX) {
        read_ms = hr_read_clock_ms();
        read_at = ticks;
    }
    return read_ms;
#else
    return hr_read_clock_ms();
#endif
}

#endif
