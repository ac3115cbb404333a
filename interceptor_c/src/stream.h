/* Streams and events as stream.c and graph.c have them. Handles are pointers into slabs, so any
   value can be checked. */
#ifndef US_STREAM_H
#define US_STREAM_H

#include "core.h"

struct CUstream_st {
    uint32_t magic;
    uint32_t number;
    struct us_stream properties;
    struct CUgraph_st *capture; /* the graph being captured */
    bool is_origin;             /* its capture began here */
    uint64_t used;              /* value of `synchronizations` at its last use; 0: known idle */
};

struct CUevent_st {
    uint32_t magic;
    uint32_t flags;
    uint64_t number;
    uint64_t recorded; /* order of its last record, 0 = never */
    uint64_t asked;    /* the record that a polling program has asked for before */
    uint32_t device;
    struct CUgraph_st *capture; /* of the stream that it was last recorded on */
};

struct CUstream_st *us_stream_of(cudaStream_t handle); /* NULL for no stream */

/* graph.c: one more node of the capture that the stream is in. */
void us_capture_count_node(struct CUgraph_st *graph);
/* Streams and events leave a capture that has ended. */
void us_streams_leave_capture(const struct CUgraph_st *graph);
bool us_stream_is_legacy(const struct CUstream_st *stream);

#endif
