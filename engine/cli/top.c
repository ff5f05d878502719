/* tessera top: the table of devices and ranks, and its refreshing. */
#include "cli/top.h"

#include "base/clock.h"
#include "base/options.h"
#include "device/nvml.h"
#include "run/record.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/json.h"
#include "text/table.h"
#include "text/text.h"

#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define TOP_ROOT        "/proc"
#define TOP_FIRST_S     0.25 /* rates need two samples: the first table waits that long */
#define TOP_CORES_LINE  12
#define TOP_RANKS_SHOWN 16 /* of a run; more share a row */
#define GIB             (1024.0 * 1024 * 1024)

struct top_options {
    double interval;
    int64_t count;
    bool json;
};

#define TOP_FIELD(member) offsetof(struct top_options, member)

static const struct tess_option top_option_table[] = {
    {"interval", TESS_OPTION_REAL, TOP_FIELD(interval), "1", 0.1, 3600, NULL,
     "seconds from one table to the next"},
    {"count", TESS_OPTION_INT, TOP_FIELD(count), "0", 0, 1e12, NULL,
     "tables to print; 0: until q or Ctrl-C"},
    {"json", TESS_OPTION_BOOL, TOP_FIELD(json), "off", 0, 0, NULL,
     "print one JSON object per sample, each on a line, in place of tables"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct top {
    struct top_options options;
    struct tess_watch *watch; /* NULL: no device, and `why` says why */
    char why[256];
    struct tess__top_host host;
    int32_t device_count;
    struct tess_watch_sample device[TESS_WATCH_DEVICES_MAX];
    char machine[128], name[65];
    int columns; /* of the terminal; 0: no limit */
};

static volatile sig_atomic_t top_stopped;

static void top_stop(int number)
{
    (void)number;
    top_stopped = 1;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void top_sample(struct top *top)
{
    tess__top_sample(&top->host, TOP_ROOT);
    for (int32_t d = 0; d < top->device_count; d++)
        tess_watch_sample(top->watch, d, &top->device[d]);
}

/* What the driver reports about this process on a device; NULL: nothing. */
static const struct tess_watch_process *top_find(const struct tess_watch_sample *device,
                                                 int32_t pid)
{
    for (int32_t p = 0; p < device->process_count; p++)
        if (device->process[p].pid == pid)
            return &device->process[p];
    return NULL;
}

/* Do the driver's processes have numbers that mean nothing here? In a container they are those of
 * the host. */
static bool top_foreign(const struct top *top)
{
    int32_t found = 0;
    for (int32_t d = 0; d < top->device_count; d++)
        for (int32_t p = 0; p < top->device[d].process_count; p++) {
            if (tess__top_has_process(TOP_ROOT, top->device[d].process[p].pid))
                return false;
            found++;
        }
    return found > 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A number, or '-' where it is unknown. */
static void top_cell(FILE *out, int width, int decimals, double value)
{
    if (isfinite(value))
        fprintf(out, " %*.*f", width, decimals, value);
    else
        fprintf(out, " %*s", width, "-");
}

static void top_add(struct tess__table *table, int decimals, double value)
{
    if (isfinite(value))
        tess__table_add(table, "%.*f", decimals, value);
    else
        tess__table_add(table, "-");
}

static double top_gib(int64_t bytes)
{
    return bytes >= 0 ? (double)bytes / GIB : NAN;
}

static void top_print_host(const struct top *top, FILE *out)
{
    const struct tess__top_host *host = &top->host;
    char stamp[40];
    time_t now = time(NULL);
    struct tm local;
    double sum = 0;
    localtime_r(&now, &local);
    strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &local);
    for (int32_t c = 0; c < host->core_count; c++)
        sum += host->core_percent[c];
    fprintf(out, "%s  %s, %s\nmemory", stamp, top->name, top->machine);
    top_cell(out, 1, 1, top_gib(host->memory_used_bytes));
    fprintf(out, " of");
    top_cell(out, 1, 1, top_gib(host->memory_total_bytes));
    fprintf(out, " GiB in use, %d cores", host->core_count);
    top_cell(out, 1, 0, host->core_count > 0 ? sum / host->core_count : NAN);
    fprintf(out, " %% busy, core by core in %%:");
    for (int32_t c = 0; c < host->core_count; c++) {
        if (c % TOP_CORES_LINE == 0)
            fprintf(out, "\n  %4d:", c);
        top_cell(out, 4, 0, host->core_percent[c]);
    }
    fputs("\n\n", out);
}

static void top_print_devices(const struct top *top, FILE *out)
{
    char held[TESS_WATCH_THROTTLE_BYTES];
    if (top->device_count == 0) {
        fprintf(out, "%s\n", top->why);
        return;
    }
    static const struct tess__column column[] = {
        {.title = "dev", .key = true},
        {.title = "name", .width = 20, .left = true},
        {.title = "busy%", .width = 5},
        {.title = "mem%", .width = 4},
        {.title = "used GiB", .brief = "used", .width = 8},
        {.title = "of GiB", .brief = "of", .width = 6},
        {.title = "SM MHz", .brief = "SM", .width = 6},
        {.title = "mem MHz", .brief = "mem", .width = 7},
        {.title = "W", .width = 4},
        {.title = "of W", .width = 4},
        {.title = "C", .width = 3},
        {.title = "out GB/s", .brief = "out", .width = 8},
        {.title = "in GB/s", .brief = "in", .width = 7},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    for (int32_t d = 0; d < top->device_count; d++) {
        const struct tess_watch_sample *s = &top->device[d];
        tess__table_add(&table, "%d", s->index);
        tess__table_add(&table, "%.20s", s->name[0] ? s->name : "-");
        top_add(&table, 0, s->gpu_percent);
        top_add(&table, 0, s->memory_percent);
        top_add(&table, 2, top_gib(s->memory_used_bytes));
        top_add(&table, 1, top_gib(s->memory_total_bytes));
        top_add(&table, 0, s->sm_mhz);
        top_add(&table, 0, s->memory_mhz);
        top_add(&table, 0, s->power_w);
        top_add(&table, 0, s->power_limit_w);
        top_add(&table, 0, s->temperature_c);
        top_add(&table, 2, s->link_tx_bytes_per_s / 1e9);
        top_add(&table, 2, s->link_rx_bytes_per_s / 1e9);
    }
    tess__table_print_in(&table, top->columns, out);
    for (int32_t d = 0; d < top->device_count; d++)
        if (tess_watch_throttle_text(top->device[d].throttle, held)[0])
            fprintf(out, "device %d: clocks limited by: %s\n", top->device[d].index, held);
}

/* "0", or "0,1" of a process whose rank threads have a device each, and all its memory there. */
static double top_rank_devices(const struct top *top, int32_t pid, char *text, size_t bytes)
{
    double memory = NAN;
    size_t used = 0;
    snprintf(text, bytes, "-");
    for (int32_t d = 0; d < top->device_count; d++) {
        const struct tess_watch_process *process = top_find(&top->device[d], pid);
        if (!process)
            continue;
        if (used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used > 0 ? "," : "", d);
        if (process->memory_bytes >= 0)
            memory = (isnan(memory) ? 0 : memory) + top_gib(process->memory_bytes);
    }
    return memory;
}

/* "run 1234: step 120 of 4690, loss 0.3124, in /home/me/out", once for each launcher. */
static void top_print_runs(const struct top *top, FILE *out)
{
    struct tess__top_run run;
    int32_t before = -1;
    for (int32_t i = 0; i < top->host.rank_count; i++) {
        const int32_t launcher = top->host.rank[i].launcher;
        if (launcher != before && tess__top_find_run(TOP_ROOT, launcher, &run))
            fprintf(out, "run %d: step %lld of %lld, loss %.4f, in %s\n", launcher,
                    (long long)run.step, (long long)run.steps, run.loss, run.folder);
        before = launcher;
    }
}

/* Ranks of the run that begins with rank i. */
static int32_t top_count(const struct tess__top_host *host, int32_t i)
{
    int32_t end = i + 1;
    while (end < host->rank_count && host->rank[end].launcher == host->rank[i].launcher)
        end++;
    return end - i;
}

/* Many ranks of one run, in a row. */
static void top_print_many(const struct tess__top_rank *rank, int32_t count, FILE *out)
{
    double least = NAN, most = NAN, bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        least = fmin(least, rank[i].cpu_percent);
        most = fmax(most, rank[i].cpu_percent);
        bytes += (double)rank[i].resident_bytes;
    }
    fprintf(out, "ranks %d-%d of run %d, pids from %d: %d ranks; cpu", rank[0].rank,
            rank[count - 1].rank, rank[0].launcher, rank[0].pid, count);
    top_cell(out, 1, 0, least);
    fputs(" to", out);
    top_cell(out, 1, 0, most);
    fprintf(out, " %%, RSS %.2f GiB each, shared memory included\n",
            top_gib((int64_t)(bytes / count)));
}

static void top_print_ranks(const struct top *top, FILE *out)
{
    const struct tess__top_host *host = &top->host;
    if (host->rank_count == 0) {
        fputs("\nno run of tessera has ranks on this machine now\n", out);
        return;
    }
    static const struct tess__column column[] = {
        {.title = "rank", .width = 4, .key = true}, {.title = "pid", .width = 9},
        {.title = "run's pid", .width = 9},         {.title = "device", .width = 8},
        {.title = "device GiB", .width = 11},       {.title = "cpu %", .width = 7},
        {.title = "RSS GiB", .width = 9},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    fputc('\n', out);
    for (int32_t i = 0; i < host->rank_count; i++) {
        const struct tess__top_rank *rank = &host->rank[i];
        const int32_t count = top_count(host, i);
        char devices[64];
        if ((i == 0 || rank->launcher != rank[-1].launcher) && count > TOP_RANKS_SHOWN) {
            i += count - 1; /* they follow below the table */
            continue;
        }
        const double memory = top_rank_devices(top, rank->pid, devices, sizeof(devices));
        tess__table_add(&table, "%d", rank->rank);
        tess__table_add(&table, "%d", rank->pid);
        tess__table_add(&table, "%d", rank->launcher);
        tess__table_add(&table, "%s", devices);
        top_add(&table, 2, memory);
        top_add(&table, 0, rank->cpu_percent);
        top_add(&table, 2, top_gib(rank->resident_bytes));
    }
    if (table.cell_count > 0)
        tess__table_print_in(&table, top->columns, out);
    for (int32_t i = 0, count; i < host->rank_count; i += count) {
        count = top_count(host, i);
        if (count > TOP_RANKS_SHOWN)
            top_print_many(&host->rank[i], count, out);
    }
}

/* Processes on the devices that are not ranks. */
static void top_print_others(const struct top *top, FILE *out)
{
    for (int32_t d = 0; d < top->device_count; d++)
        for (int32_t p = 0; p < top->device[d].process_count; p++) {
            const struct tess_watch_process *process = &top->device[d].process[p];
            bool rank = false;
            for (int32_t i = 0; i < top->host.rank_count; i++)
                rank = rank || top->host.rank[i].pid == process->pid;
            if (rank)
                continue;
            fprintf(out, "device %d: process %d, no rank, memory in GiB:", d, process->pid);
            top_cell(out, 1, 2, top_gib(process->memory_bytes));
            fputc('\n', out);
        }
    if (top_foreign(top))
        fputs("the driver uses the host's process numbers, so the devices of ranks in this "
              "container are unknown\n",
              out);
}

static void top_print(const struct top *top, FILE *out)
{
    top_print_host(top, out);
    top_print_devices(top, out);
    top_print_ranks(top, out);
    top_print_runs(top, out);
    top_print_others(top, out);
}

/* Over what stood there before, line by line, each cut to the window: a line that wraps would push
 * the rest down. */
static void top_refresh(const char *text, int columns)
{
    struct winsize window = {.ws_row = 0};
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &window); /* zeros where it fails */
    const int rows = window.ws_row;
    fputs("\033[H", stdout);
    for (int row = 1; *text && (rows == 0 || row < rows); row++) {
        const int length = (int)strcspn(text, "\n");
        printf("%.*s\033[K\n", length < columns ? length : columns - 1, text);
        text += length + (text[length] == '\n');
    }
    fputs("\033[J", stdout);
}

/* The table as this terminal shows it; to be freed, NULL without memory. */
static char *top_text(struct top *top)
{
    char *text = NULL, *shown = NULL;
    size_t bytes = 0;
    top->columns = tess__screen_columns(stdout);
    FILE *out = open_memstream(&text, &bytes);
    if (out != NULL) {
        top_print(top, out);
        fclose(out);
    }
    out = text != NULL ? open_memstream(&shown, &bytes) : NULL;
    if (out != NULL) {
        tess__screen_write(out, top->columns, text);
        fclose(out);
    }
    free(text);
    return shown;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *top_bytes(int64_t bytes)
{
    return bytes >= 0 ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *top_record_ranks(const struct top *top)
{
    json_t *ranks = json_array();
    for (int32_t i = 0; i < top->host.rank_count; i++) {
        const struct tess__top_rank *rank = &top->host.rank[i];
        json_t *devices = json_array();
        for (int32_t d = 0; d < top->device_count; d++)
            if (top_find(&top->device[d], rank->pid))
                json_array_append_new(devices, json_integer(d));
        json_array_append_new(ranks,
                              json_pack("{s:i, s:i, s:i, s:o, s:o, s:o}", "rank", rank->rank, "pid",
                                        rank->pid, "run_pid", rank->launcher, "devices", devices,
                                        "cpu_percent", tess__json_number(rank->cpu_percent),
                                        "resident_bytes", top_bytes(rank->resident_bytes)));
    }
    return ranks;
}

static json_t *top_record_runs(const struct top *top)
{
    struct tess__top_run run;
    int32_t before = -1;
    json_t *runs = json_array();
    for (int32_t i = 0; i < top->host.rank_count; i++) {
        const int32_t launcher = top->host.rank[i].launcher;
        if (launcher != before && tess__top_find_run(TOP_ROOT, launcher, &run)) {
            json_t *folder = json_string(run.folder); /* NULL: not UTF-8 */
            json_array_append_new(runs, json_pack("{s:i, s:I, s:I, s:o, s:o}", "run_pid", launcher,
                                                  "step", (json_int_t)run.step, "steps",
                                                  (json_int_t)run.steps, "loss",
                                                  tess__json_number(run.loss), "folder",
                                                  folder ? folder : json_null()));
        }
        before = launcher;
    }
    return runs;
}

static json_t *top_record(const struct top *top)
{
    const struct tess__top_host *host = &top->host;
    json_t *cores = json_array(), *devices = json_array(), *object;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int32_t c = 0; c < host->core_count; c++)
        json_array_append_new(cores, tess__json_number(host->core_percent[c]));
    for (int32_t d = 0; d < top->device_count; d++)
        json_array_append_new(devices, tess__record_device(&top->device[d]));
    object =
        json_pack("{s:f, s:s, s:s, s:{s:o, s:o}, s:o, s:o, s:o, s:o}", "time_s",
                  (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, "host", top->name, "processor",
                  top->machine, "memory", "used_bytes", top_bytes(host->memory_used_bytes),
                  "total_bytes", top_bytes(host->memory_total_bytes), "core_percent", cores,
                  "devices", devices, "ranks", top_record_ranks(top), "runs", top_record_runs(top));
    if (object && top->device_count == 0)
        json_object_set_new(object, "no_device", json_string(top->why));
    return object;
}

/* ---- the command ----------------------------------------------------------------------------- */

static enum tess_status top_show(struct top *top, bool terminal)
{
    char *text = NULL;
    bool good;
    if (top->options.json) {
        json_t *object = top_record(top);
        text = object ? json_dumps(object, JSON_COMPACT) : NULL;
        json_decref(object);
        good = text && puts(text) >= 0;
    } else {
        text = top_text(top);
        good = text != NULL;
        if (good && terminal)
            top_refresh(text, top->columns);
        else if (good)
            printf("%s\n", text);
    }
    free(text);
    if (!good || fflush(stdout) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write the table of devices");
    return TESS_OK;
}

/* Cut short by Ctrl-C, and by the key q where keys are read. */
static void top_sleep(double seconds, bool keys)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    const double end_s = tess_clock_s() + seconds;
    for (double left_s = seconds; left_s > 0 && !top_stopped; left_s = end_s - tess_clock_s()) {
        char key = '\0';
        if (poll(&input, keys, (int)(left_s * 1e3) + 1) <= 0)
            continue;
        if (read(STDIN_FILENO, &key, 1) != 1) /* the terminal is gone */
            keys = false;
        top_stopped = top_stopped || key == 'q' || key == 'Q';
    }
}

/* Keys arrive one by one, unseen, from here on; false where there is no terminal to read from. */
static bool top_read_keys(struct termios *before)
{
    if (isatty(STDIN_FILENO) != 1 || tcgetattr(STDIN_FILENO, before) != 0)
        return false;
    struct termios single = *before;
    single.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    single.c_cc[VMIN] = 1;
    single.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSANOW, &single) == 0;
}

static enum tess_status top_loop(struct top *top, bool terminal, bool keys)
{
    top_sample(top);
    top_sleep(top->options.interval < TOP_FIRST_S ? top->options.interval : TOP_FIRST_S, keys);
    if (terminal)
        fputs("\033[2J", stdout);
    for (int64_t shown = 0; !top_stopped;) {
        top_sample(top);
        TESS_TRY(top_show(top, terminal));
        if (++shown == top->options.count)
            break;
        top_sleep(top->options.interval, keys);
    }
    return TESS_OK;
}

static enum tess_status top_run(struct top *top)
{
    const bool terminal = !top->options.json && isatty(STDOUT_FILENO) == 1;
    const struct sigaction stop = {.sa_handler = top_stop};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    top->watch = tess_watch_open(top->why, sizeof(top->why));
    top->device_count = top->watch ? tess_watch_device_count(top->watch) : 0;
    tess__text_machine(top->machine);
    if (gethostname(top->name, sizeof(top->name) - 1) != 0)
        snprintf(top->name, sizeof(top->name), "this machine");
    struct termios before;
    const bool keys = terminal && top_read_keys(&before);
    const enum tess_status status = top_loop(top, terminal, keys);
    if (keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return status;
}

static const char top_usage[] =
    "usage: tessera top [--interval S] [--count N] [--json]\n"
    "\n"
    "Watch this machine's NVIDIA GPUs, and the ranks of tessera that run here, as nvidia-smi\n"
    "and top would side by side. In a terminal the table is refreshed in place; elsewhere one\n"
    "table follows the other. q or Ctrl-C ends it. Where there is no GPU the processor is shown.\n"
    "Of runs that write metrics (train --run FOLDER) the latest step and its loss are shown.\n"
    "\n"
    "how to read it\n"
    "  busy%         share of the time in which any kernel ran, however little of the device it\n"
    "                filled: 100 % is not full speed. The MFU of a run measures that\n"
    "  mem%          share of the time in which device memory was read or written\n"
    "  used GiB      memory in use by all processes and by the driver itself\n"
    "  W, of W       power and its limit; at the limit clocks go down (clocks limited by: power "
    "cap)\n"
    "  NVLink        data sent and received over all links of the device\n"
    "  cpu %         of one core; a rank that computes on a GPU should leave its core mostly idle\n"
    "  rank          ranks that are threads of one process (--strategy dp, several ranks on\n"
    "                one device) have one pid and its memory in common\n"
    "In a narrow terminal used and of are in GiB, SM and mem in MHz, out and in in GB/s.\n"
    "A '-' is a value that the driver, the device or the kernel does not report.\n"
    "\n"
    "examples\n"
    "  tessera top\n"
    "  tessera top --interval 5 --count 12\n"
    "  tessera top --json --count 1 | python3 -m json.tool\n"
    "\n"
    "A run on GPUs writes the same once a second to its metrics (train --run FOLDER), and\n"
    "tessera report draws it.\n";

static int top_command(struct tess__call *call)
{
    struct top *top = calloc(1, sizeof(*top));
    if (!top)
        return tess_status_exit_code(tess_fail(TESS_ERR_MEMORY, "no memory to watch devices"));
    top->options = *(const struct top_options *)call->values;
    enum tess_status status = top_run(top);
    tess_watch_close(top->watch);
    tess__top_close(&top->host);
    free(top);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_top = {
    .name = "top",
    .summary = "watch this machine's devices and the ranks that use them",
    .usage = top_usage,
    .table = top_option_table,
    .options_size = sizeof(struct top_options),
    .run = top_command,
};
