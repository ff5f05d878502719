/*
 * What a training step costs on more ranks than this machine has: times of collectives over a link
 * by formula, the step that follows, and Amdahl's law. Pure: arithmetic, and words read into links.
 * Measures nothing.
 *
 * A link is the model of Hockney (1994): a message of m bytes takes latency + m / bandwidth.
 */
#ifndef TESSERA_STUDY_LINK_H
#define TESSERA_STUDY_LINK_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TESS_LINK_NAME_MAX 17
#define TESS_LINK_MAX      16

struct tess_link {
    char name[TESS_LINK_NAME_MAX];
    double latency_s; /* >= 0 */
    double bandwidth; /* bytes/s that a rank sends to its neighbour, > 0 */
};

/* Links known by name; static. */
const struct tess_link *tess_link_presets(int *count_out);

/*
 * Read links separated by commas or ends of lines: a preset's name, or NAME:LATENCY:BANDWIDTH such
 * as "mylink:5us:25GB/s". Latency in s, ms, us or ns; bandwidth in TB/s, GB/s, MB/s (bytes) or
 * Tb/s, Gb/s, Mb/s (bits), powers of 1000. '#' begins a comment up to the end of the line. `what`
 * names the text in messages ("--links"), which quote the item and, where the text has several
 * lines, give its line. TESS_ERR_USAGE when an item cannot
 * be read, a name comes twice, or there is none at all or more than TESS_LINK_MAX.
 */
enum tess_status tess_link_parse(const char *what, const char *text,
                                 struct tess_link link[TESS_LINK_MAX], int *count_out);

/*
 * Seconds of an all-reduce: two passes around a ring, a reduce-scatter and an all-gather, each of
 *
 *     (N-1) latency + (N-1)/N bytes/bandwidth
 *
 * for N - 1 steps of bytes/N (Thakur, Rabenseifner and Gropp 2005, sections 4.1, 4.2 and 4.4,
 * without the cost of adding). Its volume is the least possible (Patarasu and Yuan 2009).
 */
double tess_link_all_reduce_s(const struct tess_link *link, int64_t ranks, double bytes);

/*
 * A step as measured on one rank, and what a strategy sends. On N ranks it takes
 *
 *     rows_s / N (rows_s in weak scaling, where the batch grows with N) + shard_s / N + fixed_s
 *     + exposed communication
 *
 * Communication is pass_count passes over bytes / pass_count each. It hides behind window_s, which
 * is a part of rows_s, but for edge_count passes over edge_bytes in all that have nothing beside
 * them: what is gathered before the first unit computes, what is reduced after the last one has.
 */
struct tess_step_model {
    bool weak;
    double rows_s;  /* grows with a rank's images: data, forward, backward */
    double shard_s; /* grows with the parameters that a rank updates, one in N of them */
    double fixed_s; /* the same on every number of ranks */
    double window_s;
    double bytes; /* of all passes; a rank sends (N-1)/N of it */
    double pass_count;
    double edge_bytes; /* part of `bytes` */
    double edge_count; /* part of pass_count */
};

/* Seconds of a step on `ranks` ranks. exposed_out may be NULL. */
double tess_step_model_s(const struct tess_step_model *model, const struct tess_link *link,
                         int64_t ranks, double *exposed_out);

/*
 * Amdahl (1967): when a share p of the work can be divided, T(N)/T(1) = (1-p) + p/N.
 *
 * The fit is the p with the least sum of squares of the residuals of that line:
 *
 *     p = sum x (1 - y) / sum x^2,  x = 1 - 1/N, y = T(N)/T(1)
 *
 * and is not forced into 0..1: below 0 more ranks are slower than one, above 1 they are faster than
 * the law allows. False when no point has more than one rank.
 */
bool tess_amdahl_fit(double one_rank_s, const int64_t *ranks, const double *time_s, int count,
                     double *p_out);
double tess_amdahl_speedup(double p, int64_t ranks);

#endif
