/*
 * Processes around a rank. CUDA does not survive a fork: a process forked after its parent has
 * initialised CUDA gets cudaErrorInitializationError from every call. Any other process that a rank
 * starts may use the GPU; the launcher's variables give it a trace of its own.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

bool us_forked;
static bool initialized;

static void in_child(void) {
    us_forked = true;
}

cudaError_t us_initialize(void) {
    if (us_forked)
        return cudaErrorInitializationError;
    if (!__atomic_exchange_n(&initialized, true, __ATOMIC_ACQ_REL))
        pthread_atfork(NULL, NULL, in_child);
    return cudaSuccess;
}

void us_trace_open_for_child(void) {
    const char *rank_pid = getenv("UNDERSTUDY_RANK_PID"), *folder = getenv("UNDERSTUDY_TRACES");
    const char *rank = getenv("RANK");
    char stem[4096];
    if (us_tracing() || !rank_pid || !folder || !rank || atol(rank_pid) == (long)getpid())
        return;
    int bytes = snprintf(stem, sizeof stem, "%s/rank-%d-%ld", folder, atoi(rank), (long)getpid());
    int error = bytes < (int)sizeof stem ? us_trace_open(stem, false) : 0;
    if (error)
        fprintf(stderr, "understudy: cannot write trace %s: %s\n", stem, strerror(error));
}
