/* A run's configuration: which parts, with which options. */
#ifndef TESSERA_CONFIG_CONFIG_H
#define TESSERA_CONFIG_CONFIG_H

#include "config/config_device.h"
#include "data/data.h"
#include "optim/optim.h"
#include "tessera/comm.h"
#include "tessera/model.h"
#include "tessera/strategy.h"

struct tess_options;
struct tess_declared;
struct tess_model_folder;

#define TESS_CONFIG_BATCH_MAX (1 << 24)

/* Options of a run, no prefix. */
struct tess_run_options {
    const char *model;          /* its name; a folder with config.json becomes one */
    const char *strategy;       /* one, or several joined by '+' with their extra words */
    const char *mesh;           /* "data=2,tensor=2,stage=2"; "" leaves it to the ranks */
    const char *recompute;      /* none|selective|full|every:K */
    const char *kernel;         /* cpu|ref|guard|cuda */
    const char *data;           /* folder of the data set; "synthetic" for made-up images */
    const char *run;            /* folder of the run's files; "" for none */
    const char *init;           /* file or folder of first values; "": drawn from the seed */
    bool save_weights;          /* into the run's folder, at the end */
    const char *save_every;     /* off, steps, or a time: config_save.c */
    int64_t keep;               /* newest checkpoints that stay; 0: all */
    bool resume;                /* continue from the newest checkpoint of `run` */
    bool overwrite;             /* begin anew in a folder that has a run */
    const char *save_memory;    /* all, 0, or a size */
    const char *save_bandwidth; /* a size per second, of a rank; 0: no limit */
    const char *redundancy;     /* off, memory or memory:STEPS */
    bool save_required;         /* a save that fails ends the run */
    int64_t ranks;
    int32_t precision;           /* index into f32|bf16|f16: tess_run_dtype() */
    const char *f32_ops;         /* kinds of operations that multiply in f32, a comma list */
    int32_t f32_conv;            /* enum tess_conv_f32 */
    int32_t reduce_dtype;        /* f32|bf16|f16: tess_run_reduce_dtype() */
    const char *loss_scale;      /* auto|off|dynamic[:FIRST]|static:K, see optim/scale.h */
    int64_t loss_scale_interval; /* good steps before the scale is doubled */
    bool master;                 /* keep f32 masters beside low-precision parameters */
    int32_t rounding;            /* nearest|stochastic, of low-precision parameters */
    double epochs;               /* may be a fraction */
    int64_t steps;               /* 0: by epochs */
    int64_t batch_size;          /* global */
    int64_t batch_per_rank;      /* 0: not given; else batch_size is this times the ranks */
    int64_t grid;                /* canonical micro-batches; 0: ranks x accumulate */
    int64_t accumulate;
    int64_t seed;
    int32_t reduce;         /* canonical|fast */
    int32_t buffers;        /* combine|broadcast: whose statistics make running averages */
    int64_t threads;        /* of the kernels of each rank; 0: tess_config.threads chooses */
    double timeout;         /* seconds a collective may wait */
    int64_t log_every;      /* steps between log lines and metrics; 0: choose */
    bool evaluate;          /* validate after every epoch and at the end */
    int64_t evaluate_every; /* and after so many steps; 0: not */
    bool bind;              /* bind rank r to core r mod cores when ranks fit the cores */
    int64_t synthetic_rows; /* images of data = synthetic */
    bool find_unused;       /* parameters may be unused in a step */
    bool debug;             /* compare every collective over the ranks before it runs */
    double audit;           /* share of the steps whose gradients are computed twice; 0: none */
    int64_t hash_every;     /* steps between digests of all parameters; 0: none */
    int32_t device;         /* auto|cpu|cuda */
    const char *comm;       /* auto, or the name of a communicator */
    int32_t fp8;            /* off|now|history: enum tess_fp8 */
    double peak_tflops;     /* of a device, as measured; 0: not given */
};
extern const struct tess_option tess_run_option_table[];

/* The default of --strategy, and the strategy of a data axis for which none was named. */
extern const char tess_config_default_strategy[];

/* Options of the tensor axis, prefix "tensor". */
struct tess_tensor_options {
    int64_t ranks;     /* 0: not given */
    bool sequence;     /* sequence parallel */
    int64_t canonical; /* parts; 0: as many as ranks */
    int64_t runs;      /* 2 or more: sums go on beside products */
};
extern const struct tess_option tess_tensor_option_table[];

/* Options of the cross-entropy that is trained on, prefix "loss"; see struct tess_xent. */
struct tess_loss_options {
    double smoothing, z;
};
extern const struct tess_option tess_loss_option_table[];

/* Options of batch norm, prefix "bn". */
struct tess_bn_options {
    int32_t accumulate; /* step|micro */
};
extern const struct tess_option tess_bn_option_table[];

/* Options of adapters, prefix "lora". */
struct tess_lora_options {
    int64_t rank;        /* 0: none */
    double alpha;        /* scale times rank; 0: the rank */
    const char *targets; /* as in struct tess_lora */
    const char *init;    /* folder of adapters to begin with; "": drawn from the seed */
};
extern const struct tess_option tess_lora_option_table[];

/* Options of the CUDA backend, prefix "cuda"; nothing on other devices. */
struct tess_cuda_options {
    bool graph;        /* record a step's work once and play it from then on */
    bool autotune;     /* measure the ways to multiply a shape and keep the fastest */
    bool tf32;         /* f32 products by units that keep 10 bits of the factors */
    bool fp8_fast;     /* 8-bit products add up in the units alone */
    int64_t sm_target; /* multiprocessors that products are chosen for; 0: all */
    int32_t conv;      /* auto|im2col|cudnn: enum tess_conv */
    int32_t attention; /* own|cudnn|auto: enum tess_attention */
    int32_t decode;    /* fast|exact: exact makes products that decoding has as training has them */
};
extern const struct tess_option tess_cuda_option_table[];

/* Which process or device each rank gets, prefix "topology". */
struct tess_placing_options {
    const char
        *file; /* of a machine or a cluster, any format of topology/machine/topology.h; "": none */
    const char *order; /* auto|natural|measure|file:F */
    const char *hosts; /* names of the file's hosts, in its order, as a Slurm host list; "" */
    const char *save;  /* where what was measured is written; "": nowhere */
    bool nccl_graph;   /* give NCCL the rings of this machine */
    bool adapt;        /* number ranks anew where a part of the network stays slow */
};
extern const struct tess_option tess_placing_option_table[];

/* When and how checkpoints are written: config_save.c, from the run's options. */
struct tess_save_plan {
    int64_t every_steps; /* 0: not by steps */
    double every_s;      /* 0: not by time */
    double memory_bytes; /* of a rank's staging at most; HUGE_VAL: all that it needs */
    double bytes_per_s;  /* of a rank; 0: no limit */
    int64_t copy_steps;  /* steps between copies in memory (--redundancy); 0: none */
    const char *copies;  /* folder in memory that has them; "": none yet */
    bool mirrored;       /* another host has them too; the caller's to set, before planning */
};

enum tess_recompute { TESS_RECOMPUTE_NONE, TESS_RECOMPUTE_SELECTIVE, TESS_RECOMPUTE_FULL };

struct tess_config {
    struct tess_options *options; /* for --explain and the hash */
    struct tess_run_options run;
    struct tess_optim_options optim;
    struct tess_loader_options loader;
    const struct tess_optimizer_ops *optimizer;
    void *optimizer_options; /* its own */
    const struct tess_model_ops *model;
    void *model_options;
    struct tess_model_folder *folder;         /* of --model; NULL: a name was given */
    int64_t init_vocabulary;                  /* of config.json beside --init; 0: there is none */
    const struct tess_strategy_ops *strategy; /* of the data axis */
    void *strategy_options;
    /* Of the other axes, NULL where none was chosen; the data axis is there too. */
    const struct tess_strategy_ops *axis[TESS_AXIS_COUNT];
    void *axis_options[TESS_AXIS_COUNT];
    bool data_chosen;                        /* the user named a strategy for the data axis */
    const struct tess_strategy_ops *word_of; /* whose extra word --strategy has; NULL: none */
    struct tess_mesh mesh;                   /* counts; of rank 0 */
    struct tess_tensor_options tensor;
    struct tess_loss_options loss;
    struct tess_bn_options bn;
    struct tess_lora_options lora;
    struct tess_cuda_options cuda;
    struct tess_comm_options comm; /* of every communicator, chosen or not */
    struct tess_placing_options placing;
    struct tess_save_plan save;
    bool saves;                     /* this command writes checkpoints: set before planning */
    char cuda_store[512];           /* file of measured products; "": none */
    char checkpoint[4096];          /* folder to continue from; "": none */
    char resume_options[4096 + 16]; /* its options.yaml */
    struct tess_started started;    /* this rank's among processes that others started */
    struct tess_device_plan device; /* where the ranks compute */
    struct tess_declared
        *declared;                 /* kept for other engines (core/declared.h); borrowed; or NULL */
    enum tess_recompute recompute; /* what a unit does, where it is recomputed at all ... */
    int32_t recompute_every;       /* ... one in so many */
    const struct tess_kernel_ops *kernel;
    int32_t cores;      /* that this process may use, as it was opened */
    int32_t rank_cores; /* whole cores for each rank; 0: not known, or ranks take turns on them */
    int32_t threads;    /* of the kernels of each rank, 1 .. TESS_THREADS_MAX */
};

#define TESS_THREADS_MAX 1024

/* A command's own options. A NULL table: options with this prefix are skipped without an error,
 * as those of a strategy that another run of a series has. */
struct tess_config_table {
    const char *prefix;
    const struct tess_option *table;
    void *target; /* NULL: the command has read its values itself, see tess_config_take */
};

/*
 * Resolve a configuration from the environment, the YAML file named in argv (the one word that is
 * neither option nor value; it may be missing) and the options in argv (without program and
 * command); choose the parts; check everything that can be known without data. Errors are logged:
 * TESS_ERR_USAGE.
 */
enum tess_status tess_config_open(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, struct tess_config **config_out);
/* The same for one rank of a job that another program started: it gives the number of ranks,
 * which --ranks may repeat. place: borrowed during the call; NULL: none. */
enum tess_status tess_config_open_placed(int argc, char **argv,
                                         const struct tess_config_table *extra, int extra_count,
                                         const struct tess_started *place,
                                         struct tess_config **config_out);
void tess_config_close(struct tess_config *config); /* NULL is allowed */

/* rank_cores and, where --threads does not give them, threads. */
void tess_config_set_cores(struct tess_config *config, int32_t cores);

/*
 * Many configurations of the same parts, without reading all sources for each. load: as open, but
 * for the checks; `before`, if any, has read the same file, and stays open. with: what `loaded`
 * becomes by options in argv, which is checked; errors as of open. *config_out shares everything
 * with `loaded`: it ends with the next call and is not closed. It is for planning: where its ranks
 * run is not listed (device.unlisted). Options that a call does not give keep the values of the
 * calls before, also of one that failed.
 */
enum tess_status tess_config_load(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, const struct tess_config *before,
                                  struct tess_config **loaded_out);
enum tess_status tess_config_with(struct tess_config *loaded, int argc, char **argv,
                                  struct tess_config *config_out);

/* The mesh and the micro-batches of that configuration, whether or not its batch fits them. */
enum tess_status tess_config_mesh(int argc, char **argv, const struct tess_config_table *extra,
                                  int extra_count, struct tess_mesh *mesh_out,
                                  int64_t *accumulate_out);

/* Call `show` with the options of a run and of the parts that argv and its YAML file choose, at
 * their defaults. */
enum tess_status tess_config_show(
    int argc, char **argv, const struct tess_config_table *extra, int extra_count,
    enum tess_status (*show)(const struct tess_options *options, void *context), void *context);

/* The value that argv, its YAML file or the environment give to an option, copied to text (cut at
 * text_bytes); false when none does. Before the rest is resolved. */
bool tess_config_peek(int argc, char **argv, const char *name, char *text, size_t text_bytes);

/* The same for a whole number of a run's own options. *value stays when none is given, and when it
 * is not valid: tess_config_open reports that. */
void tess_config_peek_number(int argc, char **argv, const char *name, int64_t *value);

/*
 * Read a command's own options from the environment, the YAML file that argv names and argv, from
 * which they are removed; the rest of argv is a configuration's. Options that a configuration has,
 * too, such as `steps`, are not read from the file, where they are those of a whole training.
 * `options` is empty; `values` as for tess_options_add.
 */
enum tess_status tess_config_take(struct tess_options *options, const struct tess_option *table,
                                  void *values, int *argc, char **argv);

/* What models are given; targets are borrowed from the configuration. Pure. */
struct tess_lora tess_config_lora(const struct tess_config *config);

/* How products and attention are computed, for the kernel's `choose`; its text is the
 * configuration's. */
struct tess_kernel_choices tess_config_choices(const struct tess_config *config);

enum tess_dtype tess_run_dtype(const struct tess_run_options *run);
enum tess_dtype tess_run_reduce_dtype(const struct tess_run_options *run);

/* ---- config_mesh.c --------------------------------------------------------------------------- */

/* Fill config->mesh from --mesh, --ranks and the axes' own options, and with it ranks and
 * accumulate where they were not given. TESS_ERR_USAGE with the sizes that fit. */
enum tess_status tess__config_mesh(struct tess_config *config);
/* Of this, config->recompute and recompute_every from the run's text: "none", "selective", "full"
 * or "every:K". */
enum tess_status tess__config_recompute(struct tess_config *config);

/* ---- mesh.c ---------------------------------------------------------------------------------- */

/* This rank's places on the axes. Pure. */
struct tess_mesh tess_mesh_at(const struct tess_mesh *mesh, int32_t rank);

/* The rank at these places. Pure. */
int32_t tess_mesh_rank(const struct tess_mesh *mesh, const int32_t at[TESS_AXIS_COUNT]);

/* Is the group along the axis that of all ranks? It is where the data or stage axis is alone. The
 * tensor axis has one of its own also then, so that its crossings are counted apart from sums over
 * all ranks. Pure. */
bool tess_mesh_is_whole(const struct tess_mesh *mesh, enum tess_axis axis);

/* ---- config_grid.c --------------------------------------------------------------------------- */

/* Is every rank's share of the leaves, and of each micro-batch, a whole subtree of the sum's tree?
 * Pure. */
bool tess__config_grid_fits(enum tess_leaf_order order, int64_t ranks, int64_t micro, int64_t grid);

/*
 * Do the rank count, accumulation and grid fit each other and the batch? The message lists the rank
 * counts and the accumulations that do. Pure; the leaf order is the strategy's.
 */
enum tess_status tess_config_check_grid(const struct tess_config *config, int64_t batch_size,
                                        enum tess_leaf_order leaf_order);

#endif
