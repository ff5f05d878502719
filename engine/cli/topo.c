/* tessera topo: the options, their help, and the order of the outputs. */
#include "topology/draw/topo.h"

#include "base/file.h"
#include "base/options.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/screen.h"
#include "topology/map/map.h"

#include <stdlib.h>
#include <string.h>

#define TOPO_FIELD(member) offsetof(struct tess__topo_options, member)

static const struct tess_option topo_option_table[] = {
    {"file", TESS_OPTION_STRING, TOPO_FIELD(file), "", 0, 0, NULL,
     "a machine's description: NCCL's topology XML, hwloc's XML (lstopo --of xml), the text of "
     "nvidia-smi topo -m (and -p2p r) or rocm-smi --showtopo, Slurm's topology.conf, topology.yaml "
     "or "
     "scontrol show topology, kubectl get nodes -o json, or Tessera's YAML; -: stdin"},
    {"format", TESS_OPTION_CHOICE, TOPO_FIELD(format), "auto", 0, 0,
     "auto|nccl|hwloc|smi|slurm|yaml|rocm|labels", "format of the file; auto: by its content"},
    {"machine", TESS_OPTION_STRING, TOPO_FIELD(machine), "", 0, 0, NULL,
     "a regular machine as a line of words, outermost first: 'node:2 numa:2 gpu:4 nvlink:switch "
     "sm:90'"},
    {"devices", TESS_OPTION_STRING, TOPO_FIELD(devices), "", 0, 0, NULL,
     "use these devices only, 0,1,4-7, in that order; results use the same numbers"},
    {"ranks", TESS_OPTION_INT, TOPO_FIELD(ranks), "0", 0, 1024, NULL,
     "places of ranks on this machine's processors, where there is no GPU; 0: its cores, up to 16"},
    {"rings", TESS_OPTION_INT, TOPO_FIELD(rings), "32", 1, TESS_RINGS_MAX, NULL,
     "greatest number of rings that are used at once"},
    {"sm", TESS_OPTION_INT, TOPO_FIELD(sm), "0", 0, 999, NULL,
     "compute capability * 10 of devices whose file does not give it: 90; 0: guessed; of Slurm's "
     "blocks: that they are NVLink domains of such GPUs"},
    {"pci-gen", TESS_OPTION_INT, TOPO_FIELD(pci_gen), "0", 0, 6, NULL,
     "generation of PCIe links whose file does not give it; 0: guessed"},
    {"per-host", TESS_OPTION_INT, TOPO_FIELD(per_host), "0", 0, 1024, NULL,
     "devices of each host of a Slurm file, or of labels; 0: 1, or what the labels say"},
    {"edge-gbs", TESS_OPTION_REAL, TOPO_FIELD(edge_gbs), "0", 0, 1e6, NULL,
     "GB/s from a host to its switch, of a Slurm file or labels; 0: 12.5"},
    {"uplink-gbs", TESS_OPTION_REAL, TOPO_FIELD(uplink_gbs), "0", 0, 1e6, NULL,
     "GB/s from switch to switch, of a Slurm file or labels; 0: 12.5"},
    {"time-limit", TESS_OPTION_REAL, TOPO_FIELD(time_limit_s), "0", 0, 1e6, NULL,
     "seconds after which the search stops with the best rings so far; 0: no limit, always the "
     "same result"},
    {"mesh", TESS_OPTION_STRING, TOPO_FIELD(mesh), "", 0, 0, NULL,
     "where the ranks of a mesh go, 'tensor:4 data:2': as many as devices, neighbours first; "
     "tensor:4:0.8 where a rank sends 0.8 GB along that axis in a step, else 1"},
    {"measure", TESS_OPTION_BOOL, TOPO_FIELD(measure), "off", 0, 0, NULL,
     "measure the rates between ranks, alone and all at once, beside the model: one rank for each "
     "device that is shown, on this machine's processors; under mpirun, srun or torchrun all "
     "ranks, "
     "and a --file of as many devices is the model"},
    {"comm", TESS_OPTION_STRING, TOPO_FIELD(comm), "auto", 0, 0, NULL,
     "communicator that --measure uses, one of the list of tessera help; auto: local, and between "
     "ranks that another program started mpi where it is installed, else tcp"},
    {"json", TESS_OPTION_STRING, TOPO_FIELD(json), "", 0, 0, NULL,
     "file for the rings as JSON; -: to stdout, without the text"},
    {"svg", TESS_OPTION_STRING, TOPO_FIELD(svg), "", 0, 0, NULL,
     "file for a picture of the machine and its rings, as SVG; -: to stdout, without the text"},
    {"export", TESS_OPTION_STRING, TOPO_FIELD(export), "", 0, 0, NULL,
     "FORMAT OUT: write the machine as nccl (for NCCL_TOPO_FILE) or yaml, or its rings as graph "
     "(for NCCL_GRAPH_FILE); OUT - is stdout"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const char topo_usage[] =
    "usage: tessera topo [--devices 0,1,4-7] [--json OUT] [--svg OUT]   this machine\n"
    "       tessera topo --file FILE ...                           a file of another machine\n"
    "       tessera topo --machine 'gpu:8 nvlink:cube sm:70' ...   a line of words\n"
    "\n"
    "Show a machine and the fastest rings over its devices. Large collectives send around a\n"
    "ring and are as fast as its slowest link; a link that the ring uses several times is\n"
    "shared by these uses. Capacities are those of NCCL's model. An order lists devices by\n"
    "their numbers: from 0 on, in the order of the file, host by host; [3] in the tree is\n"
    "device 3. With --devices, and on this machine with CUDA_VISIBLE_DEVICES, the numbers\n"
    "stay the same. natural is the order as given.\n"
    "\n"
    "NCCL's default is modelled: its search for rings on one host of up to 16 GPUs, with the\n"
    "same constants. It is left out where NVLinks join NUMA nodes that rings also cross by\n"
    "other links: NCCL's own figure is wrong there. NCCL prints its own choice with\n"
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH.\n"
    "\n"
    "examples\n"
    "  nvidia-smi topo -m | tessera topo --file -\n"
    "      the rings of a GPU machine; the text may come from another machine\n"
    "  tessera topo --file box.txt --devices 1,2,4,5 --json -\n"
    "      the best order for a job on four of its GPUs, as JSON\n"
    "  tessera topo --machine 'rack:2 node:4 rank:2 edge:1.25 uplink:0.125' --svg out.svg\n"
    "      a picture of a planned cluster\n";

/* "--export FORMAT OUT": two words follow, so the second is taken out before the options are. */
static enum tess_status topo_take_export(struct tess__args *args, void *values)
{
    struct tess__topo_options *options = values;
    options->export_path = "-";
    for (int i = 0; i < args->count; i++) {
        bool joined = strncmp(args->word[i], "--export=", 9) == 0;
        if (!joined && strcmp(args->word[i], "--export") != 0)
            continue;
        int at = i + (joined ? 1 : 2);
        if (at >= args->count || strncmp(args->word[at], "--", 2) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "--export needs a format and a file: --export yaml OUT, or "
                                      "--export yaml - for stdout");
        options->export_path = args->word[at];
        memmove(args->word + at, args->word + at + 1,
                (size_t)(args->count - at - 1) * sizeof(args->word[0]));
        args->count--;
        return TESS_OK;
    }
    return TESS_OK;
}

/* At most one of the outputs goes to stdout, and then the text does not. */
static enum tess_status topo_check_outputs(const struct tess__topo_options *options,
                                           bool *quiet_out)
{
    bool json = strcmp(options->json, "-") == 0, svg = strcmp(options->svg, "-") == 0;
    bool export = options->export[0] && strcmp(options->export_path, "-") == 0;
    if (json + svg + export > 1)
        TESS_FAIL(TESS_ERR_USAGE, "two outputs go to stdout: give one of them a file");
    if (options->export[0] && strcmp(options->export, "nccl") != 0 &&
        strcmp(options->export, "yaml") != 0 && strcmp(options->export, "graph") != 0)
        TESS_FAIL(TESS_ERR_USAGE, "--export '%.40s': nccl, yaml or graph was expected",
                  options->export);
    *quiet_out = json || svg || export;
    if (options->measure && *quiet_out)
        TESS_FAIL(TESS_ERR_USAGE, "--measure prints text: give the other output a file, not -");
    if (options->json[0] && !json)
        TESS_TRY(tess_file_check(options->json, TESS_FILE_TEXT, "--json"));
    if (options->svg[0] && !svg)
        TESS_TRY(tess_file_check(options->svg, TESS_FILE_TEXT, "--svg"));
    return options->export[0] && !export
               ? tess_file_check(options->export_path, TESS_FILE_TEXT, "--export")
               : TESS_OK;
}

static enum tess_status topo_export(const struct tess__topo *topo)
{
    const char *format = topo->options->export;
    char *text = NULL;
    if (strcmp(format, "yaml") != 0 && topo->topology->host_count > 1)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "NCCL's files describe one host and this machine has %d: --export yaml takes "
                  "them all",
                  (int)topo->topology->host_count);
    if (strcmp(format, "graph") == 0)
        TESS_TRY(tess_rings_write_nccl_graph(topo->topology, &topo->routes, &topo->rings, &text));
    else if (strcmp(format, "nccl") == 0)
        TESS_TRY(tess_topology_write_nccl(topo->topology, 0, &text));
    else
        TESS_TRY(tess_topology_write_yaml(topo->topology, &text));
    enum tess_status status = tess__topo_write(topo->options->export_path, text, strlen(text));
    free(text);
    return status;
}

static enum tess_status topo_show(struct tess__topo *topo)
{
    FILE *former = tess__screen_begin();
    enum tess_status status = tess__topo_print(topo, stdout);
    if (status == TESS_OK && topo->options->mesh[0])
        status = tess__topo_print_mesh(topo, stdout);
    tess__screen_end(former);
    return status;
}

static enum tess_status topo_run(struct tess__topo *topo)
{
    const struct tess__topo_options *options = topo->options;
    bool quiet = false;
    TESS_TRY(topo_check_outputs(options, &quiet));
    TESS_TRY(tess__topo_check_mesh(options));
    TESS_TRY(tess__topo_load(topo));
    TESS_TRY(tess__topo_find(topo));
    if (options->export[0])
        TESS_TRY(topo_export(topo));
    if (options->json[0])
        TESS_TRY(tess__topo_write_json(topo, options->json));
    if (options->svg[0])
        TESS_TRY(tess__topo_write_svg(topo, options->svg));
    if (!quiet)
        TESS_TRY(topo_show(topo));
    return options->measure ? tess__topo_measure(topo) : TESS_OK;
}

static int topo_command(struct tess__call *call)
{
    struct tess__topo_options *options = call->values;
    struct tess__topo topo = {.options = options};
    bool elsewhere = false;
    enum tess_status status = TESS_OK;
    if (call->word_count == 1 && options->file[0])
        status = tess_fail(TESS_ERR_USAGE, "two files are named, '%s' and '%s': leave one out",
                           options->file, call->word[0]);
    else if (call->word_count == 1)
        options->file = call->word[0];
    if (status == TESS_OK && options->measure)
        status = tess__topo_measure_placed(&topo, &elsewhere);
    if (status == TESS_OK && !elsewhere)
        status = topo_run(&topo);
    tess__topo_close(&topo);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_topo = {
    .name = "topo",
    .summary = "the links of a machine, this one or a described one, and its fastest rings",
    .usage = topo_usage,
    .table = topo_option_table,
    .options_size = sizeof(struct tess__topo_options),
    .words_max = 1,
    .prepare = topo_take_export,
    .run = topo_command,
};
