/*
 * How long a training step will take, without running it: the engine's own step, its strategies,
 * schedule and optimizer, in virtual time. Operations compute nothing and advance a clock by what
 * the profile of a device says (profile.h); calls of communicators move nothing and take as long as
 * links need (network.h). So what overlaps, what is exposed, and how many bytes are sent is what
 * the strategies do, not a formula about them.
 *
 * One rank of each stage of the pipeline runs: the first along the data and the tensor axis, whose
 * other ranks do the same at the same time. It takes no threads: stages run one after the other,
 * and what they do to their clocks then takes turns (virtual.h). Results are the same bits in every
 * call.
 */
#ifndef TESSERA_PREDICT_PREDICT_H
#define TESSERA_PREDICT_PREDICT_H

#include "config/config.h"
#include "core/trace.h"
#include "data/data.h"
#include "predict/profile.h"
#include "tessera/memory.h"

struct tess_network; /* predict/network.h */

/* The groups of ranks that a call may be of: along each axis of the mesh, and all ranks. */
#define TESS_PREDICT_ALL    TESS_AXIS_COUNT
#define TESS_PREDICT_GROUPS (TESS_AXIS_COUNT + 1)

/*
 * Bytes of a rank's arena that are needed at a moment: by kind, of activations those that last from
 * forward to backward, and beside the kinds those of one pass: gradients between units, scratch,
 * and what recompute makes again. Needed is what will be read before it is written anew;
 * parameters, masters, optimizer state, and blocks that no pass or call touches are needed always.
 */
#define TESS_PREDICT_BRIEF  TESS_MEMORY_KIND_COUNT
#define TESS_PREDICT_SERIES (TESS_MEMORY_KIND_COUNT + 1)
struct tess_prediction_live {
    double at_s; /* until the next one; seconds since the first stage began the step */
    uint64_t bytes[TESS_PREDICT_SERIES];
};
const char *tess_prediction_series_name(int series);

/*
 * One stage of the pipeline: its first rank. Seconds are of one step of that rank, and
 *
 *     step_s = product_s + pass_s + all of exposed_s + launch_s
 *
 * but for what the host alone does: where operations are queued and a call is on memory of the
 * host, the device is late too, and the time counts twice.
 */
struct tess_prediction_stage {
    double step_s;
    double data_s, forward_s, backward_s, optim_s; /* operations, and the host's being late */
    double product_s, pass_s;                      /* working: products and attention; the rest */
    double exposed_s[TESS_PREDICT_GROUPS];         /* waiting for calls of a group */
    double hidden_s; /* calls under way behind work, each moment once */
    double
        bubble_s; /* of exposed_s along the stages: waiting for a message that was not sent yet */
    double launch_s;    /* the device waits for the host */
    double processor_s; /* of product_s and pass_s what is the rank's own, where ranks take turns
                           on cores */
    uint64_t sent_bytes[TESS_PREDICT_GROUPS]; /* by this rank in a step */
    uint64_t memory[TESS_MEMORY_KIND_COUNT];  /* bytes by kind, as tess_engine_memory has them */
    uint64_t memory_total;                    /* of the arena: all kinds on the device */
    /* By tess_predict_timeline, else NULL: what the device works at (DOING: operations in a row of
     * one unit), calls while links work for them (CALL), and waiting for them (WAIT), by their
     * beginnings; seconds since the first stage began the step. No phases, sites and numbers. */
    struct tess_trace_event *event; /* [event_count] */
    int32_t event_count;
    /* Likewise: at most TESS_PREDICT_MOMENTS of them, of those that are close together the one with
     * the most bytes; and the most of each series, and of all together, over all moments. */
    struct tess_prediction_live *live; /* [live_count] */
    int32_t live_count;
    uint64_t live_most[TESS_PREDICT_SERIES], live_most_total;
};
#define TESS_PREDICT_MOMENTS 500

/* What the time of a stage's step goes to, in seconds of a step. */
struct tess_prediction_loss {
    double product_s, pass_s, launch_s, bubble_s; /* as of a stage */
    double call_s;  /* exposed calls of the one group and kind that are exposed the most */
    char call[120]; /* "all-gather along the data axis over the network, most of it at unit h5" */
};

struct tess_prediction {
    double step_s;   /* of the slowest stage, and so of all in the long run */
    int32_t slowest; /* stage that takes it and has the least idle time */
    int32_t fullest; /* stage of the rank whose arena is the largest */
    int32_t stage_count;
    struct tess_prediction_stage *stage;      /* [stage_count], in order */
    uint64_t sent_bytes[TESS_PREDICT_GROUPS]; /* of the rank that sends the most along each */
    double flops; /* of a step, all ranks, as tess_flops_causal counts */
    double mfu;   /* of the profile's peak in the run's type; NaN where that is not known */
    struct tess_prediction_loss loss; /* of the slowest stage */
};

/*
 * Predict a step of the configuration in its steady state, on the devices of `profile`, connected
 * by `network`. Everything that a run of it would refuse is refused with the same message. The
 * number of ranks is config->run.ranks; memory of the process grows with the stages, not with the
 * ranks.
 *
 * config->kernel is the backend whose memory is planned; it is asked what it supports and needs,
 * and not opened otherwise. dataset: sizes alone are read. TESS_ERR_UNSUPPORTED where a step does
 * something that is not modelled (audits, --debug, a strategy's groups that are not known).
 */
enum tess_status tess_predict_step(const struct tess_config *config,
                                   const struct tess_dataset *dataset,
                                   const struct tess_profile *profile,
                                   const struct tess_network *network,
                                   struct tess_prediction *prediction_out);
/* The same with time lines, of event_max events of each stage at most: later ones are left out. */
enum tess_status tess_predict_timeline(const struct tess_config *config,
                                       const struct tess_dataset *dataset,
                                       const struct tess_profile *profile,
                                       const struct tess_network *network, int32_t event_max,
                                       struct tess_prediction *prediction_out);
/*
 * What limits a step of step_s seconds, in words: "1441 ms (93 %) of products; then 23.2 ms (1.5 %)
 * of waiting for all-gather along the data axis over the network, most of it at unit h5", or of
 * "memory passes", "launches by the host", "waiting for other stages". Returns text.
 */
#define TESS_PREDICT_LIMIT 240
const char *tess_prediction_limit(const struct tess_prediction_loss *loss, double step_s,
                                  char text[TESS_PREDICT_LIMIT]);
void tess_prediction_fini(struct tess_prediction *prediction); /* accepts a zeroed one */

#endif
