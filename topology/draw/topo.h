/*
 * What the files of `tessera topo` share: a machine that has been read, its rings, and small
 * questions about both. The devices of an order are positions in topology->device here, and the
 * user's numbers (tess__topo.number) wherever they are shown.
 */
#ifndef TESSERA_TOPOLOGY_DRAW_TOPO_H
#define TESSERA_TOPOLOGY_DRAW_TOPO_H

#include "topology/machine/rates.h"
#include "topology/machine/remark.h"
#include "topology/machine/tree.h"
#include "topology/rings/nccl_choice.h"
#include "topology/rings/ring.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Routes between all pairs are held up to so many devices; more are searched host by host. */
#define TESS__TOPO_ROUTED_MAX 128
/* Devices of a machine that is shown one by one. */
#define TESS__TOPO_SHOWN_MAX TESS__NCCL_DEVICES

struct tess__topo_options {
    const char *file, *machine, *devices; /* "" where not given */
    int32_t format;                       /* enum tess_topology_format */
    int64_t ranks, rings, sm, pci_gen, per_host;
    double edge_gbs, uplink_gbs, time_limit_s;
    const char *json, *svg, *mesh;
    bool measure;
    const char *comm;   /* of --measure: auto, or the name of a communicator */
    const char *export; /* "nccl", "yaml" or "" */
    const char *export_path;
};

/* The link that holds a ring back. */
struct tess__topo_narrow {
    int32_t link;  /* -1: none is known */
    int32_t uses;  /* by hops of the ring */
    int32_t alike; /* links just as loaded, this one among them */
};

/* All orders of a few devices, compared one by one. */
struct tess__topo_orders {
    int64_t count; /* 0: too many to compare */
    int64_t best;  /* as fast as the best */
    double worst_gbs;
    int32_t worst[TESS__TOPO_SHOWN_MAX];
};

struct tess__topo {
    const struct tess__topo_options *options;
    char source[160]; /* for people: a file's name, "this machine" */
    struct tess_topology *topology;
    int32_t *number;     /* [device_count] as the user counts devices */
    bool subset;         /* some devices are left out */
    const char *visible; /* CUDA_VISIBLE_DEVICES, of this machine's GPUs; NULL */
    char (*model)[96];   /* [device_count] "NVIDIA H100 80GB HBM3", of this machine's GPUs; NULL */
    char why[400];       /* why devices are none of this machine's GPUs; "" */
    bool routed;         /* `routes` is there */
    struct tess_routes routes;
    struct tess_rings rings;
    struct tess__topo_narrow best_narrow, natural_narrow;
    struct tess__topo_orders orders;
    struct tess__nvlinks *nvlinks; /* [node_count] */
    /* Rates of the best ring, the natural order and all rings at once, whose links carry what their
     * standards say and not what NCCL counts; 0: not known. */
    double wire_best, wire_natural, wire_total;
};

/* ---- topo_load.c ---- */

/* The machine that the options name, with the chosen devices. */
enum tess_status tess__topo_load(struct tess__topo *topo);

/* ---- topo_live.c ---- */

/* The machine that the program runs on; fills model and why. */
enum tess_status tess__topo_live(struct tess__topo *topo);

/* ---- topo_find.c ---- */

/* Its rings and what limits them. */
enum tess_status tess__topo_find(struct tess__topo *topo);
void tess__topo_close(struct tess__topo *topo); /* a zeroed one is allowed */
/* Adds the hops of a ring over all devices to uses [link_count]. */
void tess__topo_uses(const struct tess__topo *topo, const int32_t *order, int32_t *uses);

/* ---- topo_words.c ---- */

#define TESS__TOPO_TEXT 128

/* What a link's wire carries, by its standard; its own figure where that is not known. */
double tess__topo_wire(const struct tess_topo_link *link);
/* Of a link in a picture: "370.8", in GB/s; below 1 GB/s with its unit, "12.5 MB/s". */
const char *tess__topo_label(double gbs, char text[TESS__RATE_TEXT]);
/* Of rings: a number in the unit of the best one; "memory" where no link holds it back. */
const char *tess__topo_rate(const struct tess__topo *topo, double gbs, char text[TESS__RATE_TEXT]);
/* "NVLink", "xGMI", "PCIe", "SYS" ... */
const char *tess__topo_link_word(const struct tess_topology *topology,
                                 const struct tess_topo_link *link);
/* "Hopper" of 90; "" where it is not known. */
const char *tess__topo_sm_word(int32_t sm);
const char *tess__topo_maker_word(enum tess_cpu_maker maker); /* "" */
/* The host's own name, "n3"; "" of a machine that is one host without a name. */
const char *tess__topo_host_name(const struct tess_topology *topology, int32_t host,
                                 char text[TESS__TOPO_TEXT]);
/* "NV2" of two NVLinks directly, "NV18" by way of switches, "XGMI2", "PIX" ... */
const char *tess__topo_cell(const struct tess__topo *topo, int32_t from, int32_t to, char text[8]);
/* "gpu0 -> numa0 (PCIe, 12 GB/s, used 2x)" */
const char *tess__topo_narrow_text(const struct tess__topo *topo,
                                   const struct tess__topo_narrow *narrow,
                                   char text[2 * TESS__TOPO_TEXT]);
#define TESS__TOPO_ORDER 512
/* "0-3-2-1"; long ones as runs, "0..15, 32..47, ... (1024 devices)". */
const char *tess__topo_order_text(const struct tess__topo *topo, const int32_t *order,
                                  char text[TESS__TOPO_ORDER]);

/* ---- topo_tree.c, topo_text.c, topo_json.c, topo_svg.c ---- */

/* The machine: hosts and what is in them, or a summary of a large cluster. */
enum tess_status tess__topo_print_tree(const struct tess__topo *topo, FILE *out);
/* All of the text. */
enum tess_status tess__topo_print(const struct tess__topo *topo, FILE *out);
/* The fixed interface; path "-" is stdout. */
enum tess_status tess__topo_write_json(const struct tess__topo *topo, const char *path);
enum tess_status tess__topo_write_svg(const struct tess__topo *topo, const char *path);
/* topo_mesh.c: where the ranks of options->mesh go. */
enum tess_status tess__topo_print_mesh(const struct tess__topo *topo, FILE *out);
/* Is it well-formed? Before anything is printed. */
enum tess_status tess__topo_check_mesh(const struct tess__topo_options *options);
/* topo_measure.c: measure as many ranks of this machine as there are devices, and print. */
enum tess_status tess__topo_measure(const struct tess__topo *topo);
/* The same where others have started the ranks; *elsewhere_out: they have, and all is done. */
enum tess_status tess__topo_measure_placed(struct tess__topo *topo, bool *elsewhere_out);
/* To a file, or to stdout where the path is "-". */
enum tess_status tess__topo_write(const char *path, const char *text, size_t bytes);

#endif
