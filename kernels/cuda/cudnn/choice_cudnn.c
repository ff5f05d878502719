/*
 * The choice of an engine for a graph, among those that the library proposes. An engine is skipped
 * where its notes allow different bits in two runs, sums in less than f32, or a computation other
 * than the sum of products (Winograd, FFT: their error is not that of a sum).
 */
#include "cuda/cudnn/cudnn.h"

#define CHOICE_CANDIDATES 64 /* of one sort of advice */

static void choice_log(const struct cudnn_graph *g, cudnnStatus_t error, const char *where)
{
    if (error != CUDNN_STATUS_SUCCESS)
        tess_log(TESS_LOG_DEBUG, "%s: %s", where, g->library->cudnnGetErrorString(error));
}

static bool choice_unsupported(cudnnStatus_t error)
{
    return CUDNN_STATUS_CATEGORY(error) == CUDNN_STATUS_NOT_SUPPORTED;
}

/* The device of an advice or a plan, where it is not the handle's. */
static enum tess_status choice_set_device(struct cudnn_graph *g,
                                          cudnnBackendDescriptor_t descriptor, bool plan)
{
    if (g->place->properties == NULL)
        return TESS_OK;
#if CUDNN_VERSION >= 90800
    return tess__cudnn_link(g, descriptor,
                            plan ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                                 : CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                            g->place->properties);
#else
    (void)descriptor, (void)plan;
    TESS_FAIL(TESS_ERR_UNSUPPORTED, "plans for a device that is described are of cuDNN 9.8");
#endif
}

static uint32_t choice_forbidden(const struct cudnn_graph *g)
{
    const uint32_t always =
        1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC | 1u << CUDNN_NUMERICAL_NOTE_FFT |
        1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION |
        1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD |
        1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
        1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
        1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    return always | (g->exact ? 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE : 0);
}

/* *taken_out: cuDNN supports this pattern of operations and types. */
static enum tess_status choice_finish_graph(struct cudnn_graph *g, bool *taken_out)
{
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->whole));
    TESS_TRY(tess__cudnn_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count, g->operation));
    if (g->place->handle != NULL)
        TESS_TRY(tess__cudnn_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
                                 1, &g->place->handle));
    const cudnnStatus_t error = g->library->cudnnBackendFinalize(g->whole);
    *taken_out = !choice_unsupported(error);
    return *taken_out && error != CUDNN_STATUS_SUCCESS
               ? tess__cudnn_fail(error, "cudnnBackendFinalize")
               : TESS_OK;
}

/* Which engine a piece of advice is about, and what is to be known of it. */
static enum tess_status choice_look(struct cudnn_graph *g, cudnnBackendDescriptor_t config,
                                    struct cudnn_choice *look)
{
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t count = 0;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(
        config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                                   CUDNN_TYPE_INT64, 1, &count, &look->engine));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                   CUDNN_TYPE_NUMERICAL_NOTE,
                                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note));
    look->notes = 0;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        look->notes |= 1u << note[i];
    return TESS_OK;
}

/* Make the plan; look->plan is NULL where this one does not work here or needs too much. */
static enum tess_status choice_try(struct cudnn_graph *g, cudnnBackendDescriptor_t config,
                                   struct cudnn_choice *look)
{
    cudnnBackendDescriptor_t plan;
    int64_t count;
    look->plan = NULL;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
    TESS_TRY(tess__cudnn_link(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    if (g->place->handle != NULL)
        TESS_TRY(tess__cudnn_set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                 &g->place->handle));
    TESS_TRY(choice_set_device(g, plan, true));
    const cudnnStatus_t error = g->library->cudnnBackendFinalize(plan);
    if (error != CUDNN_STATUS_SUCCESS) {
        choice_log(g, error, "a plan that cuDNN advises");
        return TESS_OK;
    }
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                   CUDNN_TYPE_INT64, 1, &count,
                                                   &look->workspace_bytes));
    if (look->workspace_bytes <= g->workspace_bytes)
        look->plan = plan;
    return TESS_OK;
}

/* Query the heuristics of one mode, the best first; *count_out is 0 where there is none. */
static enum tess_status choice_query(struct cudnn_graph *g, cudnnBackendHeurMode_t mode,
                                     cudnnBackendDescriptor_t config[CHOICE_CANDIDATES],
                                     int64_t *count_out)
{
    cudnnBackendDescriptor_t advice;
    *count_out = 0;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &advice));
    TESS_TRY(tess__cudnn_link(g, advice, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->whole));
    TESS_TRY(
        tess__cudnn_set(g, advice, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    TESS_TRY(choice_set_device(g, advice, false));
    const cudnnStatus_t error = g->library->cudnnBackendFinalize(advice);
    if (choice_unsupported(error))
        return TESS_OK;
    if (error != CUDNN_STATUS_SUCCESS)
        return tess__cudnn_fail(error, "cudnnBackendFinalize");
    for (int i = 0; i < CHOICE_CANDIDATES; i++)
        TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(advice, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, CHOICE_CANDIDATES,
                                                   count_out, config));
    return TESS_OK;
}

/* The candidate, where it may be used and works; choice->plan is NULL where not. */
static enum tess_status choice_judge(struct cudnn_graph *g, cudnnBackendDescriptor_t config,
                                     struct cudnn_choice *choice)
{
    struct cudnn_choice look = {0};
    TESS_TRY(choice_look(g, config, &look));
    if ((look.notes & choice_forbidden(g)) == 0)
        TESS_TRY(choice_try(g, config, &look));
    if (look.plan == NULL)
        return TESS_OK;
    look.config = config;
    tess__cudnn_keep(g, look.plan);
    tess__cudnn_keep(g, look.config);
    *choice = look;
    return TESS_OK;
}

enum tess_status tess__cudnn_choose(struct cudnn_graph *g, struct cudnn_choice *choice_out)
{
    static const cudnnBackendHeurMode_t mode[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    bool taken;
    *choice_out = (struct cudnn_choice){0};
    TESS_TRY(choice_finish_graph(g, &taken));
    for (int m = 0; m < 2 && taken; m++) {
        const int kept = g->made_count;
        cudnnBackendDescriptor_t config[CHOICE_CANDIDATES];
        int64_t count;
        TESS_TRY(choice_query(g, mode[m], config, &count));
        for (int64_t i = 0; i < count && i < CHOICE_CANDIDATES; i++) {
            const int before = g->made_count;
            TESS_TRY(choice_judge(g, config[i], choice_out));
            if (choice_out->plan != NULL)
                return TESS_OK;
            tess__cudnn_drop(g, before);
        }
        tess__cudnn_drop(g, kept);
    }
    return TESS_OK;
}

void tess__cudnn_choice_drop(struct cudnn_choice *choice)
{
    struct cudnn_graph g = {.library = tess__cudnn_library(NULL),
                            .made = {choice->plan, choice->config},
                            .made_count = 2};
    tess__cudnn_drop(&g, 0);
    *choice = (struct cudnn_choice){0};
}
