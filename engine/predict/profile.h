/*
 * What a device can do: the figures from which a step's time is predicted, and how long one
 * operation takes by them. Pure arithmetic, no measurement.
 *
 * Products. An output of m x n elements is computed in tiles, as many at once as the device has
 * units; each tile takes k + half_k steps:
 *
 *     seconds = waves * tile_m tile_n (k + half_k) 2 / (peak efficiency / units)
 *               / (m / (m + half_m)) / (n / (n + half_n))
 *
 * waves is the number of tiles by that of units, rounded up; a quarter of the tile at a lower
 * efficiency is tried too, and the better of both counts. A product takes at least as long as
 * reading its operands and writing its result, and start_s more. On a processor one unit and a tile
 * of one element leave the three saturating factors.
 */
#ifndef TESSERA_PREDICT_PROFILE_H
#define TESSERA_PREDICT_PROFILE_H

#include "core/flops.h"
#include "tessera/status.h"

#include <stdint.h>

#define TESS_PROFILE_TEXT 256

struct tess_profile {
    char name[64];                  /* "h100-80" */
    char kernel[16];                /* backend whose memory is planned: "cuda", "cpu", "ref" */
    char source[TESS_PROFILE_TEXT]; /* where the figures come from, for people */
    bool measured;                  /* here, by --calibrate; else published */

    double memory_bytes; /* of a device; 0: not bounded by the profile */
    double beside_bytes; /* of it, what driver and libraries take */

    /* Time of the host. launch_s > 0: operations are queued and run later; 0: done on return. */
    double launch_s; /* of the host for each queued operation */
    double start_s;  /* of the device for the smallest operation */

    /* Passes over memory, bytes read and written counted together. */
    double bytes_per_s;       /* of one rank alone */
    double host_bytes_per_s;  /* of all ranks of a host together; 0: as many times one's */
    double cache_bytes;       /* passes over less than this ... */
    double cache_bytes_per_s; /* ... run at this rate; 0: at bytes_per_s */
    double link_bytes_per_s;  /* between host and device; 0: the same memory */
    double element_s; /* least time for an element of what needs exp, tanh or random numbers */

    /* Calls between ranks that share this processor; 0: not measured. */
    double copy_bytes_per_s; /* what a rank takes from others, as in network.h */
    double call_s;           /* of the smallest call */
    double cores;            /* that ranks of a host share; 0: every rank has a device */

    /* Products, by type. A peak of 0: the device has no such units. */
    double flops_per_s[TESS_PEAK_TYPES];
    double efficiency[TESS_PEAK_TYPES]; /* of large products, 0 < e <= 1 */
    double units, tile_m, tile_n;       /* whole numbers >= 1 */
    double half_m, half_n, half_k;      /* >= 0 */

    /* Causal attention, by what is computed: the lower half of the square. */
    double attention_forward, attention_backward; /* share of the peak, T large */
    double attention_half;                        /* positions at which it is half of that */
};

/* A built-in profile by its name; NULL where there is none. Borrowed, never freed. */
const struct tess_profile *tess_profile_find(const char *name);
/* The name of built-in profile number `index`, NULL beyond the last one. */
const char *tess_profile_name(int32_t index);

/*
 * Profiles in files: YAML, one key for each number. Whatever lies in the file, an error names file,
 * line and key (TESS_ERR_USAGE), and what is read has numbers that the functions below can use.
 * write puts the file there completely or not at all (TESS_ERR_IO).
 */
enum tess_status tess_profile_read(const char *path, struct tess_profile *profile_out);
enum tess_status tess_profile_write(const struct tess_profile *profile, const char *path);

/*
 * What is left for each of `ranks` ranks of a host with `threads` threads each, where the profile
 * is of cores that ranks share: all cores are busy at once, and so is the memory. Pure.
 */
struct tess_profile tess_profile_share(const struct tess_profile *profile, int32_t ranks,
                                       int32_t threads);

/* Do the figures make sense? TESS_ERR_USAGE names the key that does not. Pure. */
enum tess_status tess_profile_check(const struct tess_profile *profile);

/*
 * Seconds of the device for one operation of a rank that has the device or its core for itself.
 * Pure, > 0.
 *
 *   pass       over `bytes` of memory, read and written together
 *   math       the same, with a function such as exp for each of so many elements
 *   product    [m, n] = [m, k] [k, n], operands and result of `bytes` in all
 *   attention  causal: `flops` are those of the lower half, `length` the positions, `bytes` the
 *              operands and results
 */
double tess_profile_pass_s(const struct tess_profile *profile, double bytes);
double tess_profile_math_s(const struct tess_profile *profile, double elements, double bytes);
double tess_profile_product_s(const struct tess_profile *profile, enum tess_peak_type type,
                              double m, double n, double k, double bytes);
double tess_profile_attention_s(const struct tess_profile *profile, enum tess_peak_type type,
                                bool forward, double flops, double length, double bytes);

#endif
