/*
 * The engine: one rank's training state. Opens the model under a plan, runs steps, evaluates,
 * hashes. Uses strategies only through their ops and their plan.
 */
#ifndef TESSERA_CORE_ENGINE_H
#define TESSERA_CORE_ENGINE_H

#include "config/config.h"
#include "data/data.h"
#include "tessera/comm.h"
#include "tessera/memory.h"

struct tess_board;
struct tess_engine;
struct tess_trace_lane;
struct tess_world;

/* Plan only: everything but memory, communication and data. tess_engine_memory() of it is what an
 * opened engine of that rank allocates. */
enum tess_status tess_engine_plan(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int32_t rank,
                                  struct tess_engine **engine_out);

/* The same for sizes alone, faster: it cannot be opened. */
enum tess_status tess_engine_plan_sizes(const struct tess_config *config,
                                        const struct tess_dataset *dataset, int32_t rank,
                                        struct tess_engine **engine_out);

/* Sizes of an engine that was planned for them once more, after its configuration, which is still
 * at the same place, got another way to recompute: only activations differ. */
enum tess_status tess_engine_replan(struct tess_engine *engine);

/* Open for training; parameters are initialised. `world` may be NULL (no status board). comm and
 * world are borrowed. Collective. */
enum tess_status tess_engine_open(const struct tess_config *config,
                                  const struct tess_dataset *dataset, struct tess_comm *comm,
                                  struct tess_world *world, struct tess_engine **engine_out);
/*
 * Open a planned engine whose kernel computes nothing, for steps in virtual time: parameters get no
 * values, no batches are loaded, and neither host nor device memory is read for what it holds.
 * comm: of that many ranks, borrowed. After an error the engine is to be closed. Collective.
 */
enum tess_status tess_engine_open_hollow(struct tess_engine *engine, struct tess_comm *comm);
void tess_engine_close(struct tess_engine *engine); /* NULL is allowed */

/*
 * Seconds of a step. comm_s is exposed communication, time in which the rank waited for others; it
 * is not part of the others. hidden_s is communication under way behind data, forward, backward and
 * optimizer, and so is part of those. total_s = data + forward + backward + optim + comm and the
 * little that is none of them.
 */
struct tess_times {
    double data_s, forward_s, backward_s, optim_s, comm_s, hidden_s, total_s;
    double comm_forward_s, comm_backward_s, comm_optim_s; /* of comm_s, what each waited for */
};

/* sum += share * one, field by field: all are doubles. */
static inline void tess_times_add(struct tess_times *sum, const struct tess_times *one,
                                  double share)
{
    for (size_t i = 0; i < sizeof(*sum) / sizeof(double); i++)
        ((double *)sum)[i] += share * ((const double *)one)[i];
}

struct tess_step_result {
    int64_t step;          /* from 1 */
    int64_t epoch;         /* from 0 */
    int64_t rows;          /* images of the step: fewer than a batch at the end of an epoch */
    double rate;           /* learning rate used */
    double grad_norm;      /* -1 when not computed */
    double loss;           /* mean over the global batch; NaN unless requested */
    double accuracy;       /* of the training batch; NaN unless requested */
    double loss_scale;     /* of this step; 1 when there is no scaling */
    bool skipped;          /* a gradient was not finite under loss scaling: nothing was updated */
    int64_t skipped_count; /* steps skipped so far, this one included */
    double zero_share; /* of the elements of the step's gradients: zeros; NaN unless requested */
    double loss_zero_share; /* the same of the loss's gradient by the logits, where underflow of a
                               16-bit type begins */
    struct tess_times times;
};

/* One optimizer step. want_loss: also reduce the loss over the ranks (all ranks agree on it).
 * Collective. No allocation. */
enum tess_status tess_engine_step(struct tess_engine *engine, bool want_loss,
                                  struct tess_step_result *result_out);

/* Steps whose gradients were computed by another rank too, and compared, since the engine opened.
 */
int64_t tess_engine_audited(const struct tess_engine *engine);

/*
 * From here on every forward of a model with its own loss (tess_declare_loss) also writes the loss
 * of each label, minus its log-probability: each [2, rows of a micro-batch, labels], device memory,
 * of which the second half is room to work in; NULL: no more. Those of the latest micro-batch that
 * this rank has computed, of whose rows all ranks of the tensor axis have the same.
 */
void tess_engine_each(struct tess_engine *engine, float *each);

/* Mean loss over the samples of the epoch so far, at least one step; the same bits on every layout,
 * whichever steps reduced their loss and wherever the run was resumed. Collective. */
enum tess_status tess_engine_epoch_loss(struct tess_engine *engine, double *loss_out);

/* Mean loss and share of correct answers over the test split, or in a run that is shorter than an
 * epoch over its first tess_engine_test_count samples; the same bits on every layout. Collective.
 */
enum tess_status tess_engine_evaluate(struct tess_engine *engine, double *loss_out,
                                      double *accuracy_out);

/* Hash of all parameters and buffers (f32 masters, or the small values widened where there are
 * none), the same on every rank and layout. Collective. */
enum tess_status tess_engine_hash(struct tess_engine *engine, uint64_t *hash_out);

/*
 * How far two versions of a parameter differ: a hash of its bits, its norm, and its
 * products with TESS_DIGEST_SKETCH vectors of random signs. The mean square of the difference of
 * two sketches estimates the square of the norm of the tensors' difference (Alon, Matias and
 * Szegedy 1996), so that runs can be compared by their files.
 */
#define TESS_DIGEST_SKETCH 8
struct tess_digest {
    uint64_t hash;
    double norm;
    double sketch[TESS_DIGEST_SKETCH];
};

/*
 * Digests of all parameters and buffers, in the order of the model, the same hashes on every rank
 * and layout (norm and sketch may differ in their last digits). Fails with TESS_ERR_INTERNAL, and
 * names the first parameter and the ranks, when replicas differ. Collective.
 */
enum tess_status tess_engine_digest(struct tess_engine *engine, struct tess_digest *digest_out);

/* Write all parameters and buffers to `path`, a safetensors file of f32 (state/weights.h); the same
 * bytes under every layout. The file is there completely or not at all; TESS_ERR_IO on rank 0,
 * after all have taken part. Collective. */
enum tess_status tess_engine_save(struct tess_engine *engine, const char *path);

/* The values of a parameter in f32, as that file has them: values [its shape], NULL on ranks that
 * do not need them. Collective. */
enum tess_status tess_engine_read(struct tess_engine *engine, int32_t index, float *values);

/* Steps done, those before the checkpoint that it continued from included. */
int64_t tess_engine_step_done(const struct tess_engine *engine);
/* Fingerprint of the model: state/checkpoint.h. */
uint64_t tess_engine_model_id(const struct tess_engine *engine);
/* x [count] = the greatest of all ranks. Collective. */
enum tess_status tess_engine_greatest(struct tess_engine *engine, int32_t *x, size_t count);
int64_t tess_engine_steps_per_epoch(const struct tess_engine *engine);
int64_t tess_engine_step_count(const struct tess_engine *engine); /* of the whole run */
int64_t tess_engine_test_count(const struct tess_engine *engine); /* samples of an evaluation */
const struct tess_memory *tess_engine_memory(const struct tess_engine *engine);
const struct tess_plan *tess_engine_plan_of(const struct tess_engine *engine);
/* Bytes sent by this rank over all its groups since open, and seconds of exposed waiting. */
void tess_engine_traffic(const struct tess_engine *engine, uint64_t *sent_bytes_out,
                         double *wait_s_out);
/* The same along one axis of the mesh: the data axis' gradients and parameters, the tensor axis'
 * crossings, the stages' boundaries. Where a run has the data axis alone, sums over all ranks
 * (losses, norms) go over its group too. */
void tess_engine_axis_traffic(const struct tess_engine *engine, enum tess_axis axis,
                              uint64_t *sent_bytes_out, double *wait_s_out);
/* Bytes that this rank sends along one axis in a step, by formula. */
uint64_t tess_engine_axis_formula(const struct tess_engine *engine, enum tess_axis axis);
/*
 * What a chunk of a pipeline's rank costs: processor seconds of its thread in all forwards and all
 * backwards since tess_engine_time_chunks(engine, true), and how many these were. It means
 * something also where ranks take turns on a core; but each reading of that clock is a system call,
 * so nothing is counted unless this is on.
 */
struct tess_chunk_cost {
    double forward_s, backward_s;
    int64_t forwards, backwards;
};
void tess_engine_time_chunks(struct tess_engine *engine, bool on);
int32_t tess_engine_chunk_count(const struct tess_engine *engine);
struct tess_chunk_cost tess_engine_chunk_cost(const struct tess_engine *engine, int32_t chunk);

/* Names of all units of the model, by the numbers on the status board and in time lines; they live
 * as long as the engine. */
const char *const *tess_engine_unit_names(const struct tess_engine *engine, int32_t *count_out);
/* May backward leave parameters of it unused? */
bool tess_engine_is_conditional(const struct tess_engine *engine);
/* Parameters of the whole model, and their names: the numbers that digests are in order of. */
int32_t tess_engine_param_count(const struct tess_engine *engine);
const char *tess_engine_param_name(const struct tess_engine *engine, int32_t index);
const char *tess_engine_param_unit(const struct tess_engine *engine, int32_t index);
/* Of the whole parameter, as files have it: padding left out. */
struct tess_shape tess_engine_param_shape(const struct tess_engine *engine, int32_t index);
/* Elements of all parameters of the model: its size as papers give it. */
int64_t tess_engine_model_size(const struct tess_engine *engine);
/*
 * What a step's passes touch of the arena, as they begin and when they have ended, from which
 * a prediction finds from when to when each byte is needed. begins: what was there is not read
 * any more. brief: gradients between units, and tensors that end with the pass, such as those that
 * recompute makes again. What calls of communicators touch is theirs to say.
 */
struct tess_touch {
    const void *at;
    uint64_t bytes;
    bool begins, brief;
};
typedef void tess_touched(void *context, const struct tess_touch *touch);
/* After it was opened. NULL: no observer. */
void tess_engine_watch(struct tess_engine *engine, tess_touched *touched, void *context);

/* What the engine does, as it shows it. Valid as long as the engine. */
const struct tess_board *tess_engine_board(const struct tess_engine *engine);
/* Record what the engine does from here on; lane is borrowed, NULL records nothing. */
void tess_engine_trace(struct tess_engine *engine, struct tess_trace_lane *lane);
/* Bytes this rank sends in one step by the strategy's formula; 0 when it has none. */
uint64_t tess_engine_sent_formula(const struct tess_engine *engine);

/* Lines about plan, groups, buckets, operations and memory, for --explain. */
void tess_engine_describe(const struct tess_engine *engine,
                          void (*line)(void *context, const char *text), void *context);

#endif
