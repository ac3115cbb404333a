/*
 * Replays the programs of all ranks with given durations, as understudy/simulation/engine.py does;
 * that file states the rules, and tests hold the two equal on every start and end.
 *
 * With fixed durations every time is a maximum of sums, so each rank runs as far as it can, in any
 * order, and no queue of events over all ranks is needed. Only joins that occupy network cards are
 * granted in the order of their readiness, once nothing else can move.
 *
 * Memory per op is its start and its end. While an op waits on its stream, its `start` holds the
 * time it was issued; an `end` of PENDING is not known yet. The ops of a stream are those of the
 * program in order, so a stream's queue is a range of ordinals.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HOST, DEVICE, STREAM_WAIT, JOIN, HOST_WAIT };
enum { DONE = 0, DEADLOCK = 1, OUT_OF_MEMORY = 2 };

#define PENDING (-1)
#define NO_DEPENDENCY INT32_MIN
#define HOST_QUEUE (-1)
#define NONE UINT32_MAX

/* What one op of a program does: half a cache line, read once when it is issued and once when it
   runs. */
struct op {
    int64_t gap_ns, duration_ns;
    int32_t cost_ns, latency_ns;
    int32_t depends_on; /* as in world.py */
    int16_t stream;     /* numbered from 0 in the program; -1: none */
    uint8_t kind;
};

struct program {
    int64_t length;
    int32_t stream_count;
    const struct op *ops;        /* [length] */
    const int64_t *stream_start; /* [stream_count + 1] into stream_ops */
    const int32_t *stream_ops;   /* ops of each stream in order */
    const int32_t *part_start;   /* [length + 1] into the parts */
    const int32_t *part_channel; /* [parts] numbered from 0 in the program */
    const int64_t *part_sequence, *part_calls; /* [parts] */
};

struct rank {
    int32_t program;
    int64_t first_op;      /* into start and end */
    int64_t first_stream;  /* into the streams */
    int64_t first_channel; /* into channel_of: the program's channels in the job's numbers */
};

/* The collectives of one communicator, or what one of its ranks sends to another. */
struct channel {
    int32_t members;
    int32_t card_count;
    int64_t first_join;
    int64_t first_card; /* into cards */
};

struct world {
    int64_t ranks, repetitions, queue_depth, joins, card_numbers;
    const struct program *programs;
    const struct rank *rank;
    const int64_t *channel_of;
    const struct channel *channels;
    const int32_t *cards;
    int64_t *start, *end;
};

struct stream {
    int64_t issued, ended; /* ops so far, over all repetitions */
    int64_t tail;          /* end of the last one that ended */
    int64_t waits_for;     /* position, PENDING: for none */
    int64_t part_end;      /* of the join at its head */
    int32_t open_parts;
    bool arrived; /* the join at its head has */
    bool queued;  /* in the work list */
};

struct host {
    int64_t position, time, waits_for;
    int32_t waiting; /* queues of the rank with waits_for set */
    bool queued;
};

struct join {
    int64_t ready, duration;
    int32_t arrived;
    uint32_t first; /* arrival */
};

struct arrival {
    int32_t rank, stream;
    uint32_t next;
};

struct request {
    int64_t ready, join, channel;
};

struct work {
    int32_t rank, queue;
};

struct engine {
    const struct world *world;
    struct host *hosts;
    struct stream *streams;
    struct join *joins;
    struct arrival *arrivals;
    uint32_t arrival_count, arrival_room, free_arrival;
    struct request *requests; /* a heap, earliest first; ties by join */
    int64_t request_count, request_room;
    int64_t *card_free;
    struct work *work;
    int64_t work_count;
    bool out_of_memory;
};

static void add_work(struct engine *engine, int32_t rank, int32_t queue) {
    const struct rank *place = &engine->world->rank[rank];
    bool *queued = queue == HOST_QUEUE ? &engine->hosts[rank].queued
                                       : &engine->streams[place->first_stream + queue].queued;
    if (*queued)
        return;
    *queued = true;
    engine->work[engine->work_count++] = (struct work){rank, queue};
}

/* Network cards --------------------------------------------------------------------------------- */

static bool earlier(const struct request *a, const struct request *b) {
    return a->ready != b->ready ? a->ready < b->ready : a->join < b->join;
}

static void push_request(struct engine *engine, struct request request) {
    if (engine->request_count == engine->request_room) {
        int64_t room = engine->request_room ? 2 * engine->request_room : 64;
        struct request *grown = realloc(engine->requests, (size_t)room * sizeof *grown);
        if (!grown) {
            engine->out_of_memory = true;
            return;
        }
        engine->requests = grown;
        engine->request_room = room;
    }
    int64_t at = engine->request_count++;
    for (; at && earlier(&request, &engine->requests[(at - 1) / 2]); at = (at - 1) / 2)
        engine->requests[at] = engine->requests[(at - 1) / 2];
    engine->requests[at] = request;
}

static struct request pop_request(struct engine *engine) {
    struct request top = engine->requests[0], last = engine->requests[--engine->request_count];
    int64_t at = 0, count = engine->request_count;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && earlier(&engine->requests[child + 1], &engine->requests[child]))
            child++;
        if (!earlier(&engine->requests[child], &last))
            break;
        engine->requests[at] = engine->requests[child];
    }
    engine->requests[at] = last;
    return top;
}

/* Joins ----------------------------------------------------------------------------------------- */

static void complete(struct engine *engine, struct join *join, int64_t end) {
    uint32_t next;
    for (uint32_t at = join->first; at != NONE; at = next) {
        struct arrival *arrival = &engine->arrivals[at];
        next = arrival->next;
        const struct rank *place = &engine->world->rank[arrival->rank];
        struct stream *stream = &engine->streams[place->first_stream + arrival->stream];
        if (end > stream->part_end)
            stream->part_end = end;
        if (--stream->open_parts == 0)
            add_work(engine, arrival->rank, arrival->stream);
        arrival->next = engine->free_arrival;
        engine->free_arrival = at;
    }
}

static uint32_t new_arrival(struct engine *engine) {
    uint32_t at = engine->free_arrival;
    if (at != NONE) {
        engine->free_arrival = engine->arrivals[at].next;
        return at;
    }
    if (engine->arrival_count == engine->arrival_room) {
        uint32_t room = engine->arrival_room ? 2 * engine->arrival_room : 256;
        struct arrival *grown = realloc(engine->arrivals, room * sizeof *grown);
        if (!grown) {
            engine->out_of_memory = true;
            return NONE;
        }
        engine->arrivals = grown;
        engine->arrival_room = room;
    }
    return engine->arrival_count++;
}

/* The join at the head of a stream starts; it may end at once. */
static void arrive(struct engine *engine, int32_t rank, int32_t stream_number, int64_t repetition,
                   int64_t op, int64_t start) {
    const struct world *world = engine->world;
    const struct rank *place = &world->rank[rank];
    const struct program *program = &world->programs[place->program];
    struct stream *stream = &engine->streams[place->first_stream + stream_number];
    int32_t first = program->part_start[op], last = program->part_start[op + 1];
    stream->open_parts = last - first;
    stream->part_end = 0;
    stream->arrived = true;
    for (int32_t part = first; part < last; part++) {
        int64_t number = world->channel_of[place->first_channel + program->part_channel[part]];
        const struct channel *channel = &world->channels[number];
        int64_t id = channel->first_join + program->part_sequence[part] +
                     repetition * program->part_calls[part];
        struct join *join = &engine->joins[id];
        uint32_t at = new_arrival(engine);
        if (at == NONE)
            return;
        engine->arrivals[at] = (struct arrival){rank, stream_number, join->first};
        join->first = at;
        if (start > join->ready)
            join->ready = start;
        if (program->ops[op].duration_ns > join->duration)
            join->duration = program->ops[op].duration_ns;
        if (++join->arrived < channel->members)
            continue;
        if (channel->card_count)
            push_request(engine, (struct request){join->ready, id, number});
        else
            complete(engine, join, join->ready + join->duration);
    }
}

static void grant(struct engine *engine, struct request request) {
    const struct channel *channel = &engine->world->channels[request.channel];
    const int32_t *cards = &engine->world->cards[channel->first_card];
    struct join *join = &engine->joins[request.join];
    int64_t begin = join->ready;
    for (int32_t i = 0; i < channel->card_count; i++)
        if (engine->card_free[cards[i]] > begin)
            begin = engine->card_free[cards[i]];
    /* At least 1 ns: a join must be later than the ones that it follows on a card. */
    int64_t end = begin + (join->duration > 1 ? join->duration : 1);
    for (int32_t i = 0; i < channel->card_count; i++)
        engine->card_free[cards[i]] = end;
    complete(engine, join, end);
}

/* Waiting --------------------------------------------------------------------------------------- */

static void wait_for(struct host *host, int64_t *waits_for, int64_t position) {
    host->waiting += *waits_for == PENDING;
    *waits_for = position;
}

static void stop_waiting(struct host *host, int64_t *waits_for) {
    host->waiting -= *waits_for != PENDING;
    *waits_for = PENDING;
}

/* Who waits for an op that has just ended looks again. */
static void wake(struct engine *engine, int32_t rank, int64_t position) {
    struct host *host = &engine->hosts[rank];
    if (!host->waiting)
        return;
    const struct rank *place = &engine->world->rank[rank];
    if (host->waits_for == position)
        add_work(engine, rank, HOST_QUEUE);
    for (int32_t s = 0; s < engine->world->programs[place->program].stream_count; s++)
        if (engine->streams[place->first_stream + s].waits_for == position)
            add_work(engine, rank, s);
}

/* Position of the op with this ordinal on a stream, over all repetitions. */
static int64_t position_of(const struct program *program, int32_t stream, int64_t ordinal) {
    const int32_t *ops = &program->stream_ops[program->stream_start[stream]];
    int64_t count = program->stream_start[stream + 1] - program->stream_start[stream];
    if (ordinal < count)
        return ops[ordinal];
    return ordinal / count * program->length + ops[ordinal % count];
}

/* Raises *time to the end of the last op issued to the stream; its position when that is pending. */
static int64_t after_stream(const struct program *program, const struct stream *stream,
                            int32_t number, int64_t *time) {
    if (stream->ended < stream->issued)
        return position_of(program, number, stream->issued - 1);
    if (stream->issued && stream->tail > *time)
        *time = stream->tail;
    return PENDING;
}

/* What the wait `op` still waits for; PENDING when that has all ended, not later than *time then. */
static int64_t unresolved(const struct engine *engine, const struct rank *place, int64_t repetition,
                          int64_t op, int64_t *time) {
    const struct program *program = &engine->world->programs[place->program];
    int32_t depends_on = program->ops[op].depends_on;
    if (depends_on != NO_DEPENDENCY) {
        int64_t target = repetition * program->length + depends_on;
        if (target < 0) /* an event of the repetition before the first: never recorded */
            return PENDING;
        int64_t end = engine->world->end[place->first_op + target];
        if (end == PENDING)
            return target;
        if (end > *time)
            *time = end;
        return PENDING;
    }
    if (program->ops[op].kind != HOST_WAIT)
        return PENDING;
    const struct stream *streams = &engine->streams[place->first_stream];
    int32_t only = program->ops[op].stream;
    if (only >= 0)
        return after_stream(program, &streams[only], only, time);
    for (int32_t s = 0; s < program->stream_count; s++) {
        int64_t target = after_stream(program, &streams[s], s, time);
        if (target != PENDING)
            return target;
    }
    return PENDING;
}

/* Advancing ------------------------------------------------------------------------------------- */

static void advance_stream(struct engine *engine, int32_t rank, int32_t number) {
    const struct world *world = engine->world;
    const struct rank *place = &world->rank[rank];
    const struct program *program = &world->programs[place->program];
    struct host *host = &engine->hosts[rank];
    struct stream *stream = &engine->streams[place->first_stream + number];
    int64_t *start = world->start + place->first_op, *end = world->end + place->first_op;
    stop_waiting(host, &stream->waits_for);
    while (stream->ended < stream->issued) {
        int64_t position = position_of(program, number, stream->ended);
        int64_t repetition = position < program->length ? 0 : position / program->length;
        int64_t op = position - repetition * program->length;
        int64_t begin = start[position], ended;
        if (!stream->arrived && stream->tail > begin)
            begin = stream->tail;
        if (program->ops[op].kind == DEVICE) {
            ended = begin + program->ops[op].duration_ns;
        } else if (program->ops[op].kind == STREAM_WAIT) {
            ended = begin;
            int64_t target = unresolved(engine, place, repetition, op, &ended);
            if (target != PENDING) {
                wait_for(host, &stream->waits_for, target);
                return;
            }
        } else {
            if (!stream->arrived) {
                start[position] = begin;
                arrive(engine, rank, number, repetition, op, begin);
            }
            if (stream->open_parts || engine->out_of_memory)
                return;
            ended = stream->part_end;
            stream->arrived = false;
        }
        start[position] = begin;
        end[position] = stream->tail = ended;
        stream->ended++;
        wake(engine, rank, position);
    }
}

/* Issues an op at `at`, the host's time; false when the stream takes no more for now. */
static bool issue(struct engine *engine, int32_t rank, int64_t position, int64_t op, int64_t *at) {
    const struct world *world = engine->world;
    const struct rank *place = &world->rank[rank];
    const struct program *program = &world->programs[place->program];
    int32_t number = program->ops[op].stream;
    struct stream *stream = &engine->streams[place->first_stream + number];
    int64_t *start = world->start + place->first_op, *end = world->end + place->first_op;
    if (stream->issued >= world->queue_depth) {
        int64_t oldest = position_of(program, number, stream->issued - world->queue_depth);
        if (end[oldest] == PENDING) {
            wait_for(&engine->hosts[rank], &engine->hosts[rank].waits_for, oldest);
            return false;
        }
        if (end[oldest] > *at)
            *at = end[oldest];
    }
    int64_t issued = *at + program->ops[op].latency_ns;
    bool idle = stream->ended == stream->issued++;
    if (idle && program->ops[op].kind == DEVICE) { /* the common case */
        int64_t begin = issued > stream->tail ? issued : stream->tail;
        start[position] = begin;
        end[position] = stream->tail = begin + program->ops[op].duration_ns;
        stream->ended++;
        return true;
    }
    start[position] = issued;
    if (idle)
        advance_stream(engine, rank, number);
    return true;
}

static void advance_host(struct engine *engine, int32_t rank) {
    const struct world *world = engine->world;
    const struct rank *place = &world->rank[rank];
    const struct program *program = &world->programs[place->program];
    struct host *host = &engine->hosts[rank];
    int64_t *start = world->start + place->first_op, *end = world->end + place->first_op;
    int64_t total = program->length * world->repetitions;
    int64_t position = host->position, time = host->time;
    stop_waiting(host, &host->waits_for);
    int64_t repetition = program->length ? position / program->length : 0;
    int64_t op = position - repetition * program->length;
    while (position < total) {
        int64_t at = time + program->ops[op].gap_ns;
        uint8_t kind = program->ops[op].kind;
        if (kind == DEVICE || kind == STREAM_WAIT || kind == JOIN) {
            if (!issue(engine, rank, position, op, &at))
                break;
        } else {
            start[position] = at;
            if (kind == HOST_WAIT) {
                int64_t target = unresolved(engine, place, repetition, op, &at);
                if (target != PENDING) {
                    wait_for(host, &host->waits_for, target);
                    break;
                }
            }
            end[position] = at;
        }
        time = at + program->ops[op].cost_ns;
        position++;
        if (++op == program->length) {
            op = 0;
            repetition++;
        }
    }
    host->position = position;
    host->time = time;
}

static bool finished(const struct engine *engine, int32_t rank) {
    const struct rank *place = &engine->world->rank[rank];
    const struct program *program = &engine->world->programs[place->program];
    if (engine->hosts[rank].position < program->length * engine->world->repetitions)
        return false;
    for (int32_t s = 0; s < program->stream_count; s++) {
        const struct stream *stream = &engine->streams[place->first_stream + s];
        if (stream->ended < stream->issued)
            return false;
    }
    return true;
}

static int run(struct engine *engine) {
    const struct world *world = engine->world;
    for (int64_t rank = world->ranks; rank--;)
        add_work(engine, (int32_t)rank, HOST_QUEUE);
    for (;;) {
        while (engine->work_count && !engine->out_of_memory) {
            struct work work = engine->work[--engine->work_count];
            if (work.queue == HOST_QUEUE) {
                engine->hosts[work.rank].queued = false;
                advance_host(engine, work.rank);
            } else {
                const struct rank *place = &world->rank[work.rank];
                engine->streams[place->first_stream + work.queue].queued = false;
                advance_stream(engine, work.rank, work.queue);
            }
        }
        if (engine->out_of_memory)
            return OUT_OF_MEMORY;
        if (!engine->request_count)
            break;
        /* Everything waits, so a request that is still to come depends on one of these and is
           later than the earliest. */
        grant(engine, pop_request(engine));
    }
    for (int64_t rank = 0; rank < world->ranks; rank++)
        if (!finished(engine, (int32_t)rank))
            return DEADLOCK;
    return DONE;
}

static void *zeroed(int64_t count, size_t bytes) {
    return count < INT64_MAX / 256 ? calloc((size_t)(count > 0 ? count : 1), bytes) : NULL;
}

/* Fills start and end; the arrays of `world` are as the comments above say, and nothing is
   checked here. Returns DONE, DEADLOCK or OUT_OF_MEMORY. */
int understudy_replay(const struct world *world) {
    int64_t streams = 0, ops = 0;
    for (int64_t rank = 0; rank < world->ranks; rank++) {
        const struct program *program = &world->programs[world->rank[rank].program];
        streams += program->stream_count;
        ops += program->length * world->repetitions;
    }
    struct engine engine = {
        .world = world,
        .hosts = zeroed(world->ranks, sizeof *engine.hosts),
        .streams = zeroed(streams, sizeof *engine.streams),
        .joins = zeroed(world->joins, sizeof *engine.joins),
        .card_free = zeroed(world->card_numbers, sizeof *engine.card_free),
        .work = zeroed(world->ranks + streams, sizeof *engine.work),
        .free_arrival = NONE,
    };
    int result = OUT_OF_MEMORY;
    if (engine.hosts && engine.streams && engine.joins && engine.card_free && engine.work) {
        for (int64_t rank = 0; rank < world->ranks; rank++)
            engine.hosts[rank].waits_for = PENDING;
        for (int64_t stream = 0; stream < streams; stream++)
            engine.streams[stream].waits_for = PENDING;
        for (int64_t join = 0; join < world->joins; join++)
            engine.joins[join].first = NONE;
        memset(world->end, 0xff, (size_t)ops * sizeof *world->end); /* PENDING */
        result = run(&engine);
    }
    free(engine.hosts);
    free(engine.streams);
    free(engine.joins);
    free(engine.arrivals);
    free(engine.requests);
    free(engine.card_free);
    free(engine.work);
    return result;
}
