/*
 * The clock of the records. On x86 with an invariant time stamp counter it is that counter, scaled
 * to nanoseconds and set to CLOCK_MONOTONIC once: reading it takes a third of clock_gettime's time,
 * and every record takes two readings. Elsewhere it is clock_gettime.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core.h"

struct us_clock us_clock;

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t us_clock_read_ns(void) {
    return monotonic_ns();
}

#ifdef __x86_64__
/* The kernel itself trusts the counter: constant rate, equal on all cores. */
static bool counter_is_trusted(void) {
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file)
        return false;
    bool read = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    return read && !strncmp(name, "tsc", 3);
}

/* A reading of both clocks at the same moment: the tightest of some tries. */
static void read_both(uint64_t *ticks, uint64_t *ns) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 32; i++) {
        uint64_t before = us_ticks(), now = monotonic_ns(), after = us_ticks();
        if (after - before < best) {
            best = after - before;
            *ticks = before + best / 2;
            *ns = now;
        }
    }
}

void us_clock_start(void) {
    /* Over 4 ms an uncertainty of some 20 ns at both ends is 10 parts in a million. */
    enum { SPAN_NS = 4000000 };
    if (us_clock.scale || !counter_is_trusted())
        return;
    uint64_t ticks, ns, end_ticks, end_ns;
    read_both(&ticks, &ns);
    while (monotonic_ns() - ns < SPAN_NS)
        ;
    read_both(&end_ticks, &end_ns);
    if (end_ticks <= ticks)
        return;
    us_clock.start_ticks = ticks;
    us_clock.start_ns = ns;
    us_clock.scale =
        (uint64_t)(((unsigned __int128)(end_ns - ns) << US_CLOCK_SHIFT) / (end_ticks - ticks));
}
#else
void us_clock_start(void) {}
#endif
