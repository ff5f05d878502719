/*
 * The world of one host: what the ranks share before there is a communicator. Opened by the
 * launcher before it starts ranks as processes (fork) or threads; holds the abort word and the
 * status board. Lives in a memfd (processes) or an anonymous shared mapping (threads of one child,
 * whose launcher looks in from outside): nothing is left behind however ranks end.
 */
#ifndef TESSERA_COMM_WORLD_H
#define TESSERA_COMM_WORLD_H

#include "tessera/comm.h"
#include "tessera/strategy.h"

#include <stdatomic.h>

struct tess_world;

/* mode: TESS_RANKS_PROCESSES or TESS_RANKS_THREADS. 1 <= rank_count <= TESS_RANKS_MAX. */
enum tess_status tess_world_open(int32_t rank_count, enum tess_rank_mode mode,
                                 struct tess_world **world_out);
void tess_world_close(struct tess_world *world); /* by its opener, after all ranks ended */
int32_t tess_world_rank_count(const struct tess_world *world);

/* What a rank is doing, for reports after its death and for time-outs. Written by that rank only,
 * by relaxed stores; any process may read it. */
#define TESS_DOING_LIST(X)                                                                         \
    X(STARTING, "starting")                                                                        \
    X(LOADING, "loading a batch")                                                                  \
    X(INPUT, "receiving the input")                                                                \
    X(FORWARD, "in forward")                                                                       \
    X(LOSS, "in the loss")                                                                         \
    X(GRADIENT, "receiving the gradient")                                                          \
    X(BACKWARD, "in backward")                                                                     \
    X(REDUCING, "finishing the gradients")                                                         \
    X(OPTIMIZER, "in the optimizer")                                                               \
    X(EVALUATING, "evaluating")                                                                    \
    X(BETWEEN, "between steps")                                                                    \
    X(ENDED, "ended")

enum tess_doing {
#define TESS_DOING_ENUM(word, text) TESS_DOING_##word,
    TESS_DOING_LIST(TESS_DOING_ENUM)
#undef TESS_DOING_ENUM
        TESS_DOING_COUNT
};

struct tess_board {
    _Alignas(64) _Atomic int32_t doing; /* enum tess_doing */
    _Atomic int32_t unit;               /* -1: none */
    _Atomic int64_t step;               /* from 1; 0 before the first */
    _Atomic int32_t collective;   /* the call it waits for, -1: none; set by the communicator */
    _Atomic uint64_t call_number; /* of that call in its group */
    _Atomic int32_t waits_for;    /* rank of the world that has not come to it, -1: none, or the
                                     wait is a short one; set by the communicator */
    _Atomic int32_t pid;
    /* Steps so far: how long they took, and how much of that the rank did not wait for others. */
    _Atomic int64_t passed_us, busy_us;
};

struct tess_board *tess_world_board(struct tess_world *world, int32_t rank);
/* From here on the rank's board is there: memory that all processes of the world map at this
 * address, until the world is closed. Before the ranks start. */
void tess__world_move_board(struct tess_world *world, int32_t rank, struct tess_board *board);

/* "in backward of unit 2, step 17, waiting in all_reduce 35"; unit_name may be NULL. */
void tess_board_describe(const struct tess_board *board, const char *const *unit_name,
                         int32_t unit_count, char *text, size_t text_bytes);

/*
 * A rank that did not come may itself wait for another one, and that one too: "; rank 1 waits for
 * rank 5 (in forward of unit 3)", as far as it goes. The last one is the one to look at. `rank` -1:
 * nothing is written.
 */
void tess__world_causes(struct tess_world *world, int32_t rank, char *text, size_t text_bytes);

/* Stop all ranks: waits return TESS_ERR_ABORTED. The first call's rank (-1: launcher) and reason
 * are kept. Async-signal-safe: the launcher may call it from a handler. */
void tess_world_abort(struct tess_world *world, int32_t rank, const char *reason);
/* True once aborted; then the first reason and rank. Pointers may be NULL. */
bool tess_world_aborted(const struct tess_world *world, int32_t *rank_out, char *reason,
                        size_t reason_bytes);

/* What the launcher asks of the ranks: they look when they have time, between steps. */
enum tess_world_request { TESS_WORLD_GO_ON, TESS_WORLD_SAVE, TESS_WORLD_SAVE_AND_END };
/* The stronger of two requests counts. Async-signal-safe. */
void tess_world_request(struct tess_world *world, enum tess_world_request request);
enum tess_world_request tess_world_requested(const struct tess_world *world);
/* SAVE has been seen to. */
void tess_world_answer(struct tess_world *world);

/* A communicator of one rank, without a world: every call is a copy. */
enum tess_status tess_comm_self_open(enum tess_order order, struct tess_comm **comm_out);

/*
 * The communicator of all ranks of the world; collective. timeout_s: how long a wait may last
 * before it fails and names the ranks that did not come.
 */
enum tess_status tess_comm_local_open(struct tess_world *world, int32_t rank, enum tess_order order,
                                      double timeout_s, struct tess_comm **comm_out);

#endif
