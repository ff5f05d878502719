/*
 * The file of a flight record, RUN/flight/rank-00007: what one rank does now, and its last calls. A
 * mapping of that rank's process, so it stays as it was when the process is killed. All numbers are
 * in the byte order of the machine; a reader elsewhere sees another magic.
 *
 *     head | now | call 0 | ... | call 255        a page, a page, 8 pages
 *
 * Only the rank writes, from one thread, and nothing waits for a reader. A reader may see a call
 * that is half written: its sequence number is odd, or is another one when it is read again.
 */
#ifndef TESSERA_COMM_FLIGHT_FILE_H
#define TESSERA_COMM_FLIGHT_FILE_H

#include "comm/world.h"

#define TESS_FLIGHT_MAGIC   UINT64_C(0x31544c4653534554) /* "TESSFLT1" where bytes begin low */
#define TESS_FLIGHT_VERSION 1u
#define TESS_FLIGHT_CALLS   256
#define TESS_FLIGHT_GROUPS  64
#define TESS_FLIGHT_UNITS   128
#define TESS_FLIGHT_NAME    24
#define TESS_FLIGHT_HOST    64
#define TESS_FLIGHT_SITE    64
#define TESS_FLIGHT_PAGE    4096

/* Written once, before the rank starts. Texts end with a 0. */
struct tess_flight_head {
    uint64_t magic;
    uint32_t version, file_bytes;
    int32_t rank, rank_count;
    int32_t launcher; /* pid of the process that started it */
    int32_t unit_count;
    double clock_offset_s; /* CLOCK_REALTIME less CLOCK_MONOTONIC, whose seconds are below */
    char host[TESS_FLIGHT_HOST];
    char unit_name[TESS_FLIGHT_UNITS][TESS_FLIGHT_NAME]; /* of the first units; cut to fit */
};

/* A group of ranks, by the order in which this rank has joined them. */
struct tess_flight_group {
    uint32_t id;             /* the same on all ranks of the group; 0: no group */
    int32_t axis;            /* enum tess_axis; -1: over several axes */
    int32_t rank;            /* in the group */
    int32_t rank_count;      /* of the group */
    _Atomic uint64_t called; /* collectives so far */
};

struct tess_flight_now {
    struct tess_board board;
    _Atomic uint64_t waiting; /* which of its calls the rank waits for, from 1; 0: none */
    _Atomic double since_s;   /* when that wait began */
    _Atomic int32_t ended;    /* 1 - enum tess_status; 0: it has not ended by itself */
    struct tess_flight_group group[TESS_FLIGHT_GROUPS];
};

struct tess_flight_call {
    _Atomic uint64_t sequence; /* 2 n for call n of the rank, from 1; odd while it is written */
    uint64_t number; /* of the collective in its group, from 1, the same on all its ranks; else 0 */
    uint64_t bytes;  /* count x size of an element, as documented at the call */
    int64_t step;
    double begin_s;
    _Atomic double end_s; /* 0: not complete */
    int32_t unit;         /* -1: none */
    int32_t peer;         /* rank of the group: root, or who sends or receives; -1: none */
    uint8_t collective, dtype, doing;
    uint8_t group; /* index in now.group; TESS_FLIGHT_GROUPS: there was no place for it */
    char site[TESS_FLIGHT_SITE + 4]; /* "file.c:12", cut at its begin; "": not known */
};

struct tess_flight_file {
    union {
        struct tess_flight_head head;
        char head_page[TESS_FLIGHT_PAGE];
    };
    union {
        struct tess_flight_now now;
        char now_page[TESS_FLIGHT_PAGE];
    };
    struct tess_flight_call call[TESS_FLIGHT_CALLS]; /* call n is at (n - 1) % TESS_FLIGHT_CALLS */
};

_Static_assert(sizeof(struct tess_flight_call) == 128, "a call has no holes");
_Static_assert(sizeof(struct tess_flight_file) == 10 * TESS_FLIGHT_PAGE, "the pages have no holes");

#endif
