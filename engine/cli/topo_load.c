/* The machine of tessera topo: a file, a line of words or this one, and which of its devices. */
#include "topology/draw/topo.h"

#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static enum tess_status load_no_memory(void)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the machine's devices");
}

/* ---- which devices -------------------------------------------------------------------------- */

struct load_choice {
    const char *option; /* by which they were chosen, for messages */
    int32_t *device;    /* [of] */
    int32_t count;
    bool *chosen; /* [of] */
    int32_t of;
};

static enum tess_status load_choose(struct load_choice *choice, long number)
{
    if (number < 0 || number >= choice->of)
        TESS_FAIL(TESS_ERR_USAGE, "%s: there is no device %ld; this machine's are 0 to %d",
                  choice->option, number, (int)choice->of - 1);
    if (choice->chosen[number])
        TESS_FAIL(TESS_ERR_USAGE, "%s: device %ld is named twice; name each once", choice->option,
                  number);
    choice->chosen[number] = true;
    choice->device[choice->count++] = (int32_t)number;
    return TESS_OK;
}

/* Digits alone; behind them is *end_out. */
static bool load_number(const char *text, long *number_out, const char **end_out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *number_out = strtol(text, &end, 10);
    *end_out = end;
    return errno == 0 && *number_out <= TESS_TOPO_NODES_MAX;
}

/* "0,2,4-7"; as CUDA reads it, without ranges, up to the first number that is none of a device. */
static enum tess_status load_list(struct load_choice *choice, const char *text, bool as_cuda)
{
    const char *at = text;
    while (true) {
        long first, last;
        bool good = load_number(at, &first, &at);
        last = first;
        if (as_cuda && (!good || first >= choice->of))
            return TESS_OK;
        if (good && *at == '-' && !as_cuda)
            good = load_number(at + 1, &last, &at) && last >= first;
        if (!good || (*at != ',' && *at && !as_cuda))
            TESS_FAIL(TESS_ERR_USAGE, "%s '%.60s': numbers like 0,1,4-7 were expected",
                      choice->option, text);
        for (long number = first; number <= last; number++)
            TESS_TRY(load_choose(choice, number));
        if (*at++ != ',')
            return TESS_OK;
    }
}

/* Names follow their devices; each is read before it could be written over. */
static void load_models(struct tess__topo *topo, const struct load_choice *choice)
{
    char(*model)[96] = calloc((size_t)choice->of, sizeof(*model));
    for (int32_t i = 0; model && i < choice->count; i++)
        memcpy(model[i], topo->model[choice->device[i]], sizeof(model[i]));
    free(topo->model);
    topo->model = model;
}

static enum tess_status load_select(struct tess__topo *topo, const char *option, const char *text)
{
    const bool as_cuda = text == topo->visible;
    int32_t of = topo->topology->device_count;
    struct load_choice choice = {.option = option, .of = of};
    choice.device = malloc((size_t)of * sizeof(*choice.device));
    choice.chosen = calloc((size_t)of, sizeof(*choice.chosen));
    enum tess_status status = TESS_OK;
    if (!choice.device || !choice.chosen) {
        status = load_no_memory();
        goto done;
    }
    TESS_TRY_GOTO(status, done, load_list(&choice, text, as_cuda));
    if (choice.count == 0) {
        status = tess_fail(TESS_ERR_USAGE,
                           "CUDA_VISIBLE_DEVICES '%.40s' leaves no device: unset it, or name some "
                           "with --devices",
                           text);
        goto done;
    }
    TESS_TRY_GOTO(status, done, tess_topology_select(topo->topology, choice.device, choice.count));
    memcpy(topo->number, choice.device, (size_t)choice.count * sizeof(*choice.device));
    if (topo->model)
        load_models(topo, &choice);
    topo->subset = true;
done:
    free(choice.device);
    free(choice.chosen);
    return status;
}

static enum tess_status load_visible(struct tess__topo *topo)
{
    if (strncmp(topo->visible, "GPU-", 4) == 0 || strncmp(topo->visible, "MIG-", 4) == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "CUDA_VISIBLE_DEVICES names devices by UUID, which is not read here: name them "
                  "by number with --devices 0,1, or unset it");
    return load_select(topo, "CUDA_VISIBLE_DEVICES", topo->visible);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum tess_status load_machine(struct tess__topo *topo)
{
    const struct tess__topo_options *given = topo->options;
    const struct tess_topology_options options = {.sm = (int32_t)given->sm,
                                                  .pci_gen = (int32_t)given->pci_gen,
                                                  .per_host = (int32_t)given->per_host,
                                                  .edge_gbs = given->edge_gbs,
                                                  .uplink_gbs = given->uplink_gbs};
    if (given->file[0] && given->machine[0])
        TESS_FAIL(TESS_ERR_USAGE, "--file and --machine both name a machine: leave one out");
    if (given->machine[0]) {
        snprintf(topo->source, sizeof(topo->source), "%s", given->machine);
        return tess_topology_synthetic(given->machine, &options, &topo->topology);
    }
    if (given->file[0]) {
        bool piped = strcmp(given->file, "-") == 0;
        const char *base = strrchr(given->file, '/');
        snprintf(topo->source, sizeof(topo->source), "%s",
                 piped  ? "standard input"
                 : base ? base + 1
                        : given->file);
        return tess_topology_read(piped ? "/dev/stdin" : given->file,
                                  (enum tess_topology_format)given->format, &options,
                                  &topo->topology);
    }
    topo->visible = !given->devices[0] ? getenv("CUDA_VISIBLE_DEVICES") : NULL;
    return tess__topo_live(topo);
}

/* Names come from files: what a terminal would obey is taken out of them. */
static void load_clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

enum tess_status tess__topo_load(struct tess__topo *topo)
{
    TESS_TRY(load_machine(topo));
    int32_t count = topo->topology->device_count;
    topo->number = malloc((size_t)count * sizeof(*topo->number));
    if (!topo->number)
        return load_no_memory();
    for (int32_t i = 0; i < count; i++)
        topo->number[i] = i;
    if (topo->options->devices[0])
        TESS_TRY(load_select(topo, "--devices", topo->options->devices));
    else if (topo->visible)
        TESS_TRY(load_visible(topo));
    load_clean(topo->source);
    for (int32_t i = 0; i < topo->topology->node_count; i++)
        load_clean(topo->topology->node[i].name);
    return TESS_OK;
}
