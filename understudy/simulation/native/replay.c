/*
 * Replays the programs of all ranks with given durations, as understudy/simulation/engine.py asks;
 * world.py states the rules, and tests hold this equal to the Python engine on every start and end.
 *
 * With fixed durations every time is a maximum of sums, so each rank runs as far as it can, in any
 * order, and no queue of events over all ranks is needed. Only joins that occupy network cards are
 * granted in the order of their readiness, once nothing else can move.
 *
 * What ends tells those that wait for it, so nothing is looked up later and memory does not grow
 * with the length of the job: a stream keeps the times of its last ops in a ring, an event has a
 * slot from its record to its last wait, a communicator keeps the joins that are not complete.
 * Starts and ends of single ops are written when they are asked for and never read.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HOST, DEVICE, STREAM_WAIT, JOIN, HOST_WAIT };
enum { DONE = 0, DEADLOCK = 1, OUT_OF_MEMORY = 2 };

#define PENDING (-1)
#define NEVER INT64_MAX
#define NO_DEPENDENCY INT32_MIN
#define NONE (-1)
#define INLINE static inline __attribute__((always_inline))

/* What Python hands over ------------------------------------------------------------------------ */

/* What a join does on one communicator. */
struct part {
    int32_t channel; /* numbered from 0 in the program */
    int32_t sequence, calls;
    bool last; /* of its op */
    bool host; /* hosts meet in it: no network */
};

/* A program as world.py has it: arrays [length], but streams are numbered from 0. */
struct columns {
    int64_t length, stream_count, first_duration;
    const int64_t *kind, *stream, *depends_on, *gap_ns, *cost_ns, *latency_ns;
    const int32_t *duration; /* index into the durations; NULL: first_duration + op */
    const int32_t *first_part; /* [joins] into parts, in the order of the joins */
    const struct part *parts;
};

struct rank {
    int32_t program;
    int64_t first_op;      /* into start and end */
    int64_t first_stream;  /* into the streams of all ranks */
    int64_t first_channel; /* into channel_of: the program's channels in the job's numbers */
};

/* The collectives of one communicator, or what one of its ranks sends to another. */
struct channel {
    int32_t members;
    int32_t card_count;
    int64_t first_card; /* into cards */
};

struct world {
    int64_t programs, ranks, streams, channels, card_numbers, repetitions, queue_depth;
    const struct columns *columns; /* [programs] */
    const struct rank *rank;
    const int64_t *channel_of;
    const struct channel *channel;
    const int32_t *cards;
};

struct delay {
    int64_t rank, repetition, op, delay_ns;
};

/* One replay. Index 0 of the durations is 0 ns. */
struct run {
    const int64_t *durations;
    const double *host_scale, *compute_scale; /* [ranks] */
    const struct delay *delays;               /* by rank, repetition, op; the last has rank -1 */
    int64_t *start, *end;                     /* of every op, or NULL */
    int64_t *repetition_end;                  /* [ranks, repetitions], zero before */
    int64_t *host_position;                   /* [ranks] ops that the host has called */
    int64_t *stream_ended;                    /* [streams] ops that have ended */
};

/* Programs, made ready once ---------------------------------------------------------------------- */

/* Half a cache line, read once when the op is issued and once more when it had to queue. */
struct op {
    int64_t gap_ns;
    int32_t cost_ns, latency_ns;
    int32_t duration; /* index */
    int32_t argument; /* JOIN: first part; a wait: slot of the event; HOST_WAIT, NONE: streams */
    int32_t event;    /* slot that takes its end; NONE: no op waits for it */
    int16_t stream;   /* NONE: no stream, or all */
    uint8_t kind;
    bool previous; /* waits for an event of the repetition before */
};

struct program {
    int64_t length;
    int32_t stream_count;
    int32_t slots;          /* of one generation */
    int32_t generations;    /* 2: an event is recorded again before its wait in the repetition after */
    struct op *ops;         /* [length] */
    int64_t *stream_start;  /* [stream_count + 1] into stream_ops */
    int32_t *stream_ops;    /* ops of each stream in order */
    const struct part *parts;
};

struct job {
    const struct world *world;
    struct program *programs;
    int64_t *first_slot; /* [ranks + 1] */
};

static void *zeroed(int64_t count, size_t bytes) {
    return count < INT64_MAX / 256 ? calloc((size_t)(count > 0 ? count : 1), bytes) : NULL;
}

static bool on_stream(int64_t kind) {
    return kind == DEVICE || kind == STREAM_WAIT || kind == JOIN;
}

/* The op whose end `op` waits for; NONE when that has ended before in any case: an op of the host,
   or of the same stream. */
static int64_t target_of(const struct columns *columns, int64_t op) {
    int64_t depends_on = columns->depends_on[op];
    if (depends_on == NO_DEPENDENCY)
        return NONE;
    int64_t target = depends_on < 0 ? columns->length + depends_on : depends_on;
    bool own = columns->kind[op] == STREAM_WAIT && columns->stream[op] == columns->stream[target];
    return on_stream(columns->kind[target]) && !own ? target : NONE;
}

/* Gives each event a slot, which the next event may have once all waits for it are issued. An event
   that is waited for in the next repetition keeps its slot; when it is recorded again before that
   wait, slots alternate between two generations. `last_wait` and `free_slots` are scratch [length]. */
static void assign_slots(struct program *program, const struct columns *columns,
                         int32_t *last_wait, int32_t *free_slots) {
    enum { NO_WAIT = -1, NEXT_REPETITION = INT32_MAX };
    struct op *ops = program->ops;
    int32_t free_count = 0;
    for (int64_t op = 0; op < program->length; op++)
        last_wait[op] = NO_WAIT;
    program->generations = 1;
    for (int64_t op = 0; op < program->length; op++) {
        int64_t target = target_of(columns, op);
        if (target == NONE)
            continue;
        if (columns->depends_on[op] < 0) {
            ops[op].previous = true;
            last_wait[target] = NEXT_REPETITION;
            if (target <= op)
                program->generations = 2;
        } else if (last_wait[target] < op) {
            last_wait[target] = (int32_t)op;
        }
    }
    for (int64_t op = 0; op < program->length; op++)
        ops[op].event = last_wait[op] == NEXT_REPETITION ? program->slots++ : NONE;
    for (int64_t op = 0; op < program->length; op++) {
        int64_t target = target_of(columns, op);
        if (target != NONE) {
            ops[op].argument = ops[target].event;
            if (last_wait[target] == op)
                free_slots[free_count++] = ops[target].event;
        }
        if (last_wait[op] != NO_WAIT && ops[op].event == NONE)
            ops[op].event = free_count ? free_slots[--free_count] : program->slots++;
    }
}

static bool load_program(struct program *program, const struct columns *columns) {
    int64_t length = columns->length, stream_count = columns->stream_count;
    program->length = length;
    program->stream_count = (int32_t)stream_count;
    program->parts = columns->parts;
    program->ops = zeroed(length, sizeof *program->ops);
    program->stream_start = zeroed(stream_count + 2, sizeof *program->stream_start);
    program->stream_ops = zeroed(length, sizeof *program->stream_ops);
    int32_t *scratch = zeroed(2 * length, sizeof *scratch);
    if (!program->ops || !program->stream_start || !program->stream_ops || !scratch) {
        free(scratch);
        return false;
    }
    /* Two ahead, so that filling the streams leaves the starts where they belong. */
    int64_t *next = program->stream_start + 1;
    const int32_t *first_part = columns->first_part;
    for (int64_t i = 0; i < length; i++) {
        bool waits = target_of(columns, i) != NONE;
        struct op *op = &program->ops[i];
        op->gap_ns = columns->gap_ns[i];
        op->cost_ns = (int32_t)columns->cost_ns[i];
        op->latency_ns = (int32_t)columns->latency_ns[i];
        op->stream = (int16_t)columns->stream[i];
        op->kind = (uint8_t)columns->kind[i];
        op->argument = NONE;
        if (op->kind == JOIN)
            op->argument = *first_part++;
        if (op->kind == DEVICE || op->kind == JOIN)
            op->duration = columns->duration ? columns->duration[i]
                                             : (int32_t)(columns->first_duration + i);
        if (op->kind == STREAM_WAIT && !waits)
            op->kind = DEVICE; /* of duration 0 */
        if (op->kind == HOST_WAIT && !waits && columns->depends_on[i] != NO_DEPENDENCY)
            op->kind = HOST;
        if (on_stream(op->kind))
            next[op->stream + 1]++;
    }
    for (int64_t stream = 0; stream < stream_count; stream++)
        next[stream + 1] += next[stream];
    for (int64_t i = 0; i < length; i++)
        if (on_stream(program->ops[i].kind))
            program->stream_ops[next[program->ops[i].stream]++] = (int32_t)i;
    assign_slots(program, columns, scratch, scratch + length);
    free(scratch);
    return true;
}

void understudy_unload(struct job *job) {
    for (int64_t i = 0; job->programs && i < job->world->programs; i++) {
        free(job->programs[i].ops);
        free(job->programs[i].stream_start);
        free(job->programs[i].stream_ops);
    }
    free(job->programs);
    free(job->first_slot);
    free(job);
}

/* A job to be replayed any number of times; the arrays of `world`, which are as the comments say and
   not checked here, must outlive it. NULL: out of memory. */
struct job *understudy_load(const struct world *world) {
    struct job *job = zeroed(1, sizeof *job);
    if (!job)
        return NULL;
    job->world = world;
    job->programs = zeroed(world->programs, sizeof *job->programs);
    job->first_slot = zeroed(world->ranks + 1, sizeof *job->first_slot);
    bool loaded = job->programs && job->first_slot;
    for (int64_t i = 0; loaded && i < world->programs; i++)
        loaded = load_program(&job->programs[i], &world->columns[i]);
    if (!loaded) {
        understudy_unload(job);
        return NULL;
    }
    for (int64_t rank = 0; rank < world->ranks; rank++) {
        const struct program *program = &job->programs[world->rank[rank].program];
        job->first_slot[rank + 1] =
            job->first_slot[rank] + (int64_t)program->slots * program->generations;
    }
    return job;
}
/* The state of one replay ------------------------------------------------------------------------ */

struct stream {
    int64_t issued, ended; /* ops so far, over all repetitions */
    int64_t tail;          /* end of the last one that ended */
    int64_t *times;        /* ring: end, or what a pending op waits for: its issue, its event; ~ of
                              it while the event has not ended */
    int32_t *waiters;      /* ring: who waits for a pending op that is an event; into `waiters` */
    int64_t mask;          /* of the rings */
    int64_t ring_full;     /* the op before whose issue the rings have to be looked after */
    int64_t wakes_host_at; /* when so many have ended */
    int64_t first;         /* op of the repetition, counted over all; of the next to end */
    int32_t repetition;    /* the same */
    int32_t next;          /* the same, among the program's ops of the stream */
    int64_t part_end;      /* of the join at its head */
    int32_t open_parts;    /* the same */
    int32_t rank;
    int16_t number;
    bool arrived; /* the join at its head has */
    bool queued;  /* in the work list */
    bool looked_up; /* it can be full, so ends of its ops that are queue_depth back are asked for */
};

struct host {
    int64_t time;
    int64_t first; /* op of the repetition, counted over all */
    int64_t op, repetition;
    int64_t last_end; /* of its own ops */
    const struct delay *delay; /* next */
    bool queued;
};

/* The end of an event's last record; PENDING while not known. */
struct slot {
    int64_t end;
    int64_t owner; /* who records: see owner() */
};

/* A stream_wait in its stream's queue. */
struct waiter {
    int64_t ordinal;
    int32_t stream;
    int32_t next;
};

struct join {
    int64_t ready, duration;
    int32_t arrived;
    bool host, complete;
};

/* The joins of a channel from the first that is not complete: a ring, and who arrived in each. */
struct joins {
    int64_t first, mask;
    struct join *ring;
    int32_t *arrived; /* [mask + 1, members] streams */
};

struct request {
    int64_t ready, channel, sequence;
};

struct engine {
    const struct world *world;
    const struct program *programs;
    const struct run *run;
    const int64_t *first_slot;
    struct host *hosts;
    struct stream *streams;
    struct slot *slots;
    struct joins *joins;
    struct waiter *waiters;
    int32_t waiter_count, waiter_room, free_waiter;
    struct request *requests; /* a heap, earliest first; ties by channel and sequence */
    int64_t request_count, request_room;
    int64_t *card_free;
    int32_t *work; /* streams, or ~rank for a host */
    int64_t work_count;
    bool out_of_memory;
};

/* x * scale to the nearest integer, halves to even, as numpy.rint: products are below 2^51, where
   adding this number leaves no fraction. */
INLINE int64_t scaled(int64_t time, double scale) {
    if (scale == 1.0)
        return time;
    const double magic = 6755399441055744.0;
    double product = (double)time * scale;
    return (int64_t)((product + magic) - magic);
}

INLINE void add_host(struct engine *engine, int32_t rank) {
    if (!engine->hosts[rank].queued) {
        engine->hosts[rank].queued = true;
        engine->work[engine->work_count++] = ~rank;
    }
}

INLINE void add_stream(struct engine *engine, int32_t number) {
    if (!engine->streams[number].queued) {
        engine->streams[number].queued = true;
        engine->work[engine->work_count++] = number;
    }
}

/* Grows an array of `bytes` each for one more; false when memory is short. */
static bool grow(void **array, int64_t *room, size_t bytes) {
    int64_t wanted = *room ? 2 * *room : 64;
    void *grown = realloc(*array, (size_t)wanted * bytes);
    if (!grown)
        return false;
    *array = grown;
    *room = wanted;
    return true;
}

INLINE void note_repetition_end(struct engine *engine, int32_t rank, int64_t repetition,
                                int64_t end) {
    int64_t *noted = &engine->run->repetition_end[rank * engine->world->repetitions + repetition];
    if (end > *noted)
        *noted = end;
}

/* Makes the rings of a stream fit for its next op, and says when to look again. Ends are kept for
   queue_depth ops if they are asked for. */
static bool tend_rings(struct engine *engine, struct stream *stream) {
    int64_t depth = engine->world->queue_depth, room = stream->times ? stream->mask + 1 : 0;
    int64_t oldest = stream->ended;
    if (stream->looked_up)
        oldest = stream->issued > depth ? stream->issued - depth : 0;
    if (stream->issued - oldest > room / 2 || !room) {
        int64_t wanted = room ? 2 * room : 16;
        int64_t *times = malloc((size_t)wanted * sizeof *times);
        int32_t *waiters = malloc((size_t)wanted * sizeof *waiters);
        if (!times || !waiters) {
            free(times);
            free(waiters);
            engine->out_of_memory = true;
            return false;
        }
        for (int64_t i = oldest; i < stream->issued; i++) {
            times[i & (wanted - 1)] = stream->times[i & stream->mask];
            waiters[i & (wanted - 1)] = stream->waiters[i & stream->mask];
        }
        free(stream->times);
        free(stream->waiters);
        stream->times = times;
        stream->waiters = waiters;
        stream->mask = room = wanted - 1;
        room = wanted;
    }
    stream->ring_full = stream->looked_up && room >= depth ? NEVER : oldest + room;
    return true;
}

/* Network cards ---------------------------------------------------------------------------------- */

static bool earlier(const struct request *a, const struct request *b) {
    if (a->ready != b->ready)
        return a->ready < b->ready;
    return a->channel != b->channel ? a->channel < b->channel : a->sequence < b->sequence;
}

static void push_request(struct engine *engine, struct request request) {
    if (engine->request_count == engine->request_room &&
        !grow((void **)&engine->requests, &engine->request_room, sizeof request)) {
        engine->out_of_memory = true;
        return;
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

/* Joins ------------------------------------------------------------------------------------------ */

/* Room for the join of this sequence. */
static bool widen_joins(struct joins *joins, int32_t members, int64_t sequence) {
    int64_t room = joins->ring ? joins->mask + 1 : 0, wanted = 1;
    while (wanted <= sequence - joins->first)
        wanted *= 2;
    struct join *ring = zeroed(wanted, sizeof *ring);
    int32_t *arrived = zeroed(wanted * members, sizeof *arrived);
    if (!ring || !arrived) {
        free(ring);
        free(arrived);
        return false;
    }
    for (int64_t i = joins->first; i < joins->first + room; i++) {
        ring[i & (wanted - 1)] = joins->ring[i & joins->mask];
        memcpy(&arrived[(i & (wanted - 1)) * members], &joins->arrived[(i & joins->mask) * members],
               (size_t)members * sizeof *arrived);
    }
    free(joins->ring);
    free(joins->arrived);
    *joins = (struct joins){joins->first, wanted - 1, ring, arrived};
    return true;
}

/* A join ends; the streams in it but `current`, which runs already, go on. */
static void complete(struct engine *engine, int64_t channel, int64_t sequence, int64_t end,
                     const struct stream *current) {
    struct joins *joins = &engine->joins[channel];
    int32_t members = engine->world->channel[channel].members;
    const int32_t *arrived = &joins->arrived[(sequence & joins->mask) * members];
    for (int32_t i = 0; i < members; i++) {
        struct stream *stream = &engine->streams[arrived[i]];
        if (end > stream->part_end)
            stream->part_end = end;
        if (--stream->open_parts == 0 && stream != current)
            add_stream(engine, arrived[i]);
    }
    joins->ring[sequence & joins->mask].complete = true;
    struct join *first;
    while ((first = &joins->ring[joins->first & joins->mask])->complete) {
        *first = (struct join){0};
        joins->first++;
    }
}

/* The join at the head of a stream starts; it may end at once. */
static void arrive(struct engine *engine, struct stream *stream, const struct op *op,
                   int64_t start) {
    const struct rank *place = &engine->world->rank[stream->rank];
    const struct part *parts = &engine->programs[place->program].parts[op->argument];
    int64_t duration = engine->run->durations[op->duration];
    stream->open_parts = 1;
    for (const struct part *part = parts; !part->last; part++)
        stream->open_parts++;
    stream->part_end = 0;
    stream->arrived = true;
    for (const struct part *part = parts;; part++) {
        int64_t number = engine->world->channel_of[place->first_channel + part->channel];
        const struct channel *channel = &engine->world->channel[number];
        struct joins *joins = &engine->joins[number];
        int64_t sequence = part->sequence + (int64_t)stream->repetition * part->calls;
        if ((sequence - joins->first > joins->mask || !joins->ring) &&
            !widen_joins(joins, channel->members, sequence)) {
            engine->out_of_memory = true;
            return;
        }
        int64_t at = sequence & joins->mask;
        struct join *join = &joins->ring[at];
        joins->arrived[at * channel->members + join->arrived++] = (int32_t)(stream - engine->streams);
        if (start > join->ready)
            join->ready = start;
        if (duration > join->duration)
            join->duration = duration;
        join->host |= part->host;
        if (join->arrived == channel->members) {
            if (channel->card_count && !join->host)
                push_request(engine, (struct request){join->ready, number, sequence});
            else
                complete(engine, number, sequence, join->ready + join->duration, stream);
        }
        if (part->last)
            return;
    }
}

static void grant(struct engine *engine, struct request request) {
    const struct channel *channel = &engine->world->channel[request.channel];
    const int32_t *cards = &engine->world->cards[channel->first_card];
    struct joins *joins = &engine->joins[request.channel];
    int64_t begin = request.ready;
    int64_t duration = joins->ring[request.sequence & joins->mask].duration;
    for (int32_t i = 0; i < channel->card_count; i++)
        if (engine->card_free[cards[i]] > begin)
            begin = engine->card_free[cards[i]];
    /* At least 1 ns: a join must be later than the ones that it follows on a card. */
    int64_t end = begin + (duration > 1 ? duration : 1);
    for (int32_t i = 0; i < channel->card_count; i++)
        engine->card_free[cards[i]] = end;
    complete(engine, request.channel, request.sequence, end, NULL);
}

/* Events ----------------------------------------------------------------------------------------- */

INLINE int64_t owner(int64_t ordinal, int16_t stream) {
    return ordinal * 32768 + stream;
}

/* The slots of a rank in a repetition. */
INLINE struct slot *slots_in(const struct engine *engine, int32_t rank,
                             const struct program *program, int64_t repetition) {
    struct slot *slots = &engine->slots[engine->first_slot[rank]];
    return program->generations == 2 && repetition & 1 ? slots + program->slots : slots;
}

/* Puts the wait at `ordinal` of `stream` into the list of the pending op `owner` of its rank. */
static void wait_for(struct engine *engine, struct stream *streams, int64_t owner, int32_t stream,
                     int64_t ordinal) {
    struct stream *of = &streams[owner % 32768];
    int32_t at = engine->free_waiter;
    if (at != NONE) {
        engine->free_waiter = engine->waiters[at].next;
    } else {
        int64_t room = engine->waiter_room;
        if (engine->waiter_count == room &&
            !grow((void **)&engine->waiters, &room, sizeof *engine->waiters)) {
            engine->out_of_memory = true;
            return;
        }
        engine->waiter_room = (int32_t)room;
        at = engine->waiter_count++;
    }
    int32_t *first = &of->waiters[owner / 32768 & of->mask];
    engine->waiters[at] = (struct waiter){ordinal, stream, *first};
    *first = at;
}

/* An op that is an event and was pending has ended. */
static void tell_waiters(struct engine *engine, const struct stream *stream, struct slot *slot,
                         int64_t ordinal, int64_t end) {
    if (slot->owner == owner(ordinal, stream->number)) /* not recorded again meanwhile */
        slot->end = end;
    int32_t next;
    for (int32_t at = stream->waiters[ordinal & stream->mask]; at != NONE; at = next) {
        struct waiter *waiter = &engine->waiters[at];
        struct stream *waiting = &engine->streams[waiter->stream];
        int64_t *time = &waiting->times[waiter->ordinal & waiting->mask];
        *time = ~*time > end ? ~*time : end;
        if (waiter->ordinal == waiting->ended)
            add_stream(engine, waiter->stream);
        next = waiter->next;
        waiter->next = engine->free_waiter;
        engine->free_waiter = at;
    }
}

/* Advancing; `all` is whether the start and end of every op are wanted --------------------------- */

/* The next op of a stream has ended. */
INLINE void end_op(struct engine *engine, const struct program *program, struct stream *stream,
                   int64_t end) {
    stream->times[stream->ended & stream->mask] = end;
    stream->tail = end;
    stream->ended++;
    const int64_t *start = &program->stream_start[stream->number];
    if (++stream->next == start[1] - start[0]) {
        note_repetition_end(engine, stream->rank, stream->repetition, end);
        stream->next = 0;
        stream->repetition++;
        stream->first += program->length;
    }
}

/* Runs the pending ops of a stream until one has to wait. */
INLINE void advance_stream(struct engine *engine, struct stream *stream, bool all) {
    const struct run *run = engine->run;
    const struct rank *place = &engine->world->rank[stream->rank];
    const struct program *program = &engine->programs[place->program];
    const int32_t *ops = &program->stream_ops[program->stream_start[stream->number]];
    double scale = run->compute_scale[stream->rank];
    int64_t *start_of = all ? run->start + place->first_op : NULL;
    int64_t *end_of = all ? run->end + place->first_op : NULL;
    while (stream->ended < stream->issued) {
        int64_t ordinal = stream->ended;
        int64_t time = stream->times[ordinal & stream->mask];
        if (time < 0)
            return;
        const struct op *op = &program->ops[ops[stream->next]];
        int64_t position = stream->first + ops[stream->next];
        int64_t begin = time > stream->tail ? time : stream->tail, end;
        if (op->kind == JOIN) {
            if (!stream->arrived) {
                if (all)
                    start_of[position] = begin;
                arrive(engine, stream, op, begin);
            }
            if (stream->open_parts || engine->out_of_memory)
                return;
            end = stream->part_end;
            stream->arrived = false;
        } else {
            end = begin + scaled(run->durations[op->duration], scale);
            if (all && op->kind == DEVICE)
                start_of[position] = begin;
            else if (all && start_of[position] < stream->tail) /* it was issued at its start */
                start_of[position] = stream->tail;
        }
        if (all)
            end_of[position] = end;
        if (op->event != NONE)
            tell_waiters(engine, stream,
                         slots_in(engine, stream->rank, program, stream->repetition) + op->event,
                         ordinal, end);
        end_op(engine, program, stream, end);
        if (stream->ended == stream->wakes_host_at) {
            stream->wakes_host_at = NEVER;
            add_host(engine, stream->rank);
        }
    }
}

static __attribute__((noinline)) void advance_stream_only_ends(struct engine *engine,
                                                               struct stream *stream) {
    advance_stream(engine, stream, false);
}

static __attribute__((noinline)) void advance_stream_all(struct engine *engine,
                                                         struct stream *stream) {
    advance_stream(engine, stream, true);
}

/* Raises *time to the end of the last op issued to a stream; false when that is pending, and then
   the host will be woken. */
INLINE bool after_stream(struct stream *stream, int64_t *time) {
    if (stream->ended < stream->issued) {
        stream->wakes_host_at = stream->issued;
        return false;
    }
    if (stream->tail > *time)
        *time = stream->tail;
    return true;
}

/* Runs the host until it waits for an op that has not ended, or to its end. */
INLINE void advance_host(struct engine *engine, int32_t rank, bool all) {
    const struct world *world = engine->world;
    const struct run *run = engine->run;
    const struct rank *place = &world->rank[rank];
    const struct program *program = &engine->programs[place->program];
    struct host *host = &engine->hosts[rank];
    struct stream *streams = &engine->streams[place->first_stream];
    const int64_t *durations = run->durations;
    double host_scale = run->host_scale[rank], compute_scale = run->compute_scale[rank];
    int64_t depth = world->queue_depth, op_number = host->op, time = host->time;
    while (host->repetition < world->repetitions) {
        const struct delay *delay = host->delay;
        bool delayed = delay->rank == rank && delay->repetition == host->repetition;
        int64_t stop = delayed ? delay->op : program->length;
        struct slot *slots = slots_in(engine, rank, program, host->repetition);
        struct slot *slots_before = slots_in(engine, rank, program, host->repetition + 1);
        int64_t *start_of = all ? run->start + place->first_op + host->first : NULL;
        int64_t *end_of = all ? run->end + place->first_op + host->first : NULL;
        for (; op_number < stop; op_number++) {
            const struct op *op = &program->ops[op_number];
            int64_t at = time + scaled(op->gap_ns, host_scale);
            if (op->kind == HOST || op->kind == HOST_WAIT) {
                if (all)
                    start_of[op_number] = at;
                if (op->kind == HOST) {
                } else if (op->argument != NONE) {
                    const struct slot *slot =
                        (op->previous ? slots_before : slots) + op->argument;
                    if (slot->end == PENDING) {
                        streams[slot->owner % 32768].wakes_host_at = slot->owner / 32768 + 1;
                        goto waits;
                    }
                    if (slot->end > at)
                        at = slot->end;
                } else if (op->stream != NONE) {
                    if (!after_stream(&streams[op->stream], &at))
                        goto waits;
                } else {
                    for (int32_t s = 0; s < program->stream_count; s++)
                        if (!after_stream(&streams[s], &at))
                            goto waits;
                }
                host->last_end = at;
                if (all)
                    end_of[op_number] = at;
                time = at + op->cost_ns;
                continue;
            }
            struct stream *stream = &streams[op->stream];
            int64_t ordinal = stream->issued, pending = ordinal - stream->ended;
            if (pending >= depth) {
                stream->wakes_host_at = ordinal - depth + 1;
                goto waits;
            }
            if (ordinal >= depth && at < stream->tail) {
                int64_t oldest = stream->times[(ordinal - depth) & stream->mask];
                if (oldest > at)
                    at = oldest;
            }
            if (ordinal == stream->ring_full && !tend_rings(engine, stream))
                goto waits;
            time = at + op->cost_ns;
            int64_t issue = at + op->latency_ns, after = issue;
            stream->issued++;
            const struct slot *event = NULL;
            if (op->kind == STREAM_WAIT) {
                event = (op->previous ? slots_before : slots) + op->argument;
                if (event->end > after)
                    after = event->end;
            }
            if (!pending && op->kind != JOIN && !(event && event->end == PENDING)) {
                /* The common case: it ends now. */
                int64_t end = (after > stream->tail ? after : stream->tail) +
                              scaled(durations[op->duration], compute_scale);
                if (all) {
                    start_of[op_number] = issue > stream->tail ? issue : stream->tail;
                    end_of[op_number] = end;
                }
                if (op->event != NONE)
                    slots[op->event] = (struct slot){end, owner(ordinal, op->stream)};
                end_op(engine, program, stream, end);
                continue;
            }
            if (event && event->end == PENDING) {
                after = ~after;
                wait_for(engine, streams, event->owner, (int32_t)(stream - engine->streams),
                         ordinal);
            }
            if (all)
                start_of[op_number] = issue;
            stream->times[ordinal & stream->mask] = after;
            if (op->event != NONE) {
                stream->waiters[ordinal & stream->mask] = NONE;
                slots[op->event] = (struct slot){PENDING, owner(ordinal, op->stream)};
            }
            if (!pending) {
                if (all)
                    advance_stream_all(engine, stream);
                else
                    advance_stream_only_ends(engine, stream);
            }
        }
        if (delayed) {
            time += delay->delay_ns;
            host->delay++;
            continue;
        }
        note_repetition_end(engine, rank, host->repetition, host->last_end);
        host->repetition++;
        host->first += program->length;
        op_number = 0;
    }
waits:
    host->op = op_number;
    host->time = time;
}

static bool finished(const struct engine *engine, int32_t rank) {
    const struct rank *place = &engine->world->rank[rank];
    if (engine->hosts[rank].repetition < engine->world->repetitions)
        return false;
    for (int32_t s = 0; s < engine->programs[place->program].stream_count; s++) {
        const struct stream *stream = &engine->streams[place->first_stream + s];
        if (stream->ended < stream->issued)
            return false;
    }
    return true;
}

INLINE int run_all(struct engine *engine, bool all) {
    const struct world *world = engine->world;
    for (int64_t rank = world->ranks; rank--;)
        add_host(engine, (int32_t)rank);
    for (;;) {
        while (engine->work_count && !engine->out_of_memory) {
            int32_t work = engine->work[--engine->work_count];
            if (work < 0) {
                engine->hosts[~work].queued = false;
                advance_host(engine, ~work, all);
            } else {
                engine->streams[work].queued = false;
                if (all)
                    advance_stream_all(engine, &engine->streams[work]);
                else
                    advance_stream_only_ends(engine, &engine->streams[work]);
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

static void prepare(struct engine *engine) {
    const struct world *world = engine->world;
    const struct delay *delay = engine->run->delays;
    for (int32_t rank = 0; rank < world->ranks; rank++) {
        const struct rank *place = &world->rank[rank];
        const struct program *program = &engine->programs[place->program];
        while (delay->rank >= 0 && delay->rank < rank)
            delay++;
        engine->hosts[rank].delay = delay;
        for (int32_t s = 0; s < program->stream_count; s++) {
            int64_t ops = program->stream_start[s + 1] - program->stream_start[s];
            struct stream *stream = &engine->streams[place->first_stream + s];
            stream->rank = rank;
            stream->number = (int16_t)s;
            stream->wakes_host_at = NEVER;
            stream->looked_up = world->queue_depth < ops * world->repetitions;
        }
    }
}

static void report(const struct engine *engine) {
    const struct world *world = engine->world;
    for (int64_t rank = 0; rank < world->ranks; rank++) {
        const struct host *host = &engine->hosts[rank];
        engine->run->host_position[rank] = host->first + host->op;
    }
    for (int64_t stream = 0; stream < world->streams; stream++)
        engine->run->stream_ended[stream] = engine->streams[stream].ended;
}

static void release(struct engine *engine) {
    for (int64_t i = 0; engine->streams && i < engine->world->streams; i++) {
        free(engine->streams[i].times);
        free(engine->streams[i].waiters);
    }
    for (int64_t i = 0; engine->joins && i < engine->world->channels; i++) {
        free(engine->joins[i].ring);
        free(engine->joins[i].arrived);
    }
    free(engine->hosts);
    free(engine->streams);
    free(engine->slots);
    free(engine->joins);
    free(engine->waiters);
    free(engine->requests);
    free(engine->card_free);
    free(engine->work);
}

static int replay(const struct job *job, const struct run *run, bool all) {
    const struct world *world = job->world;
    struct engine engine = {
        .world = world,
        .programs = job->programs,
        .run = run,
        .first_slot = job->first_slot,
        .hosts = zeroed(world->ranks, sizeof *engine.hosts),
        .streams = zeroed(world->streams, sizeof *engine.streams),
        .slots = zeroed(job->first_slot[world->ranks], sizeof *engine.slots),
        .joins = zeroed(world->channels, sizeof *engine.joins),
        .card_free = zeroed(world->card_numbers, sizeof *engine.card_free),
        .work = zeroed(world->ranks + world->streams, sizeof *engine.work),
        .free_waiter = NONE,
    };
    int result = OUT_OF_MEMORY;
    if (engine.hosts && engine.streams && engine.slots && engine.joins && engine.card_free &&
        engine.work) {
        prepare(&engine);
        result = all ? run_all(&engine, true) : run_all(&engine, false);
        report(&engine);
    }
    release(&engine);
    return result;
}

/* Start and end of every op: DONE, DEADLOCK or OUT_OF_MEMORY. */
int understudy_replay(const struct job *job, const struct run *run) {
    return replay(job, run, true);
}

/* Only the end of every repetition of every rank. */
int understudy_sweep(const struct job *job, const struct run *run) {
    return replay(job, run, false);
}
