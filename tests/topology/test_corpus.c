/*
 * Texts that fuzzing found to lead the readers everywhere (corpus/READER, made from the project's
 * own fixtures): each is read, or refused with a message, quickly; what NCCL's reader reads and its
 * writer writes is read again as the same text.
 */
#include "look.h"

#include "base/clock.h"
#include "tessera/log.h"
#include "topology/formats/synthetic.h"
#include "topology/formats/xml.h"
#include "topology/hwloc/hwloc_text.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CORPUS_BYTES_MAX 16384

static enum tess_status read_synthetic(const char *name, const char *text, size_t bytes,
                                       const struct tess_topology_options *options,
                                       struct tess_topology *topology)
{
    return tess__synthetic_build(name, 1, text, bytes, options, topology);
}

static enum tess_status read_hwloc_text(const char *name, const char *text, size_t bytes,
                                        const struct tess_topology_options *options,
                                        struct tess_topology *topology)
{
    (void)options;
    (void)topology;
    return tess__hwloc_text_check(name, text, bytes);
}

static enum tess_status read_xml(const char *name, const char *text, size_t bytes,
                                 const struct tess_topology_options *options,
                                 struct tess_topology *topology)
{
    (void)options;
    (void)topology;
    struct tess_xml xml;
    enum tess_xml_event event = TESS_XML_OPEN;
    enum tess_status status = TESS_OK;
    tess__xml_begin(&xml, TESS_XML_NCCL, name, text, bytes);
    while (status == TESS_OK && event != TESS_XML_END)
        status = tess__xml_next(&xml, &event);
    return status;
}

static enum tess_status read_and_write(const char *name, const char *text, size_t bytes,
                                       const struct tess_topology_options *options,
                                       struct tess_topology *topology)
{
    char *once = NULL, *twice = NULL;
    enum tess_status status = tess_topology_read_nccl(name, text, bytes, options, topology);
    if (status == TESS_OK && tess_topology_write_nccl(topology, 0, &once) == TESS_OK) {
        struct tess_topology *again = tess_topology_new();
        assert_int_equal(tess_topology_read_nccl(name, once, strlen(once), NULL, again), TESS_OK);
        assert_int_equal(tess_topology_write_nccl(again, 0, &twice), TESS_OK);
        assert_string_equal(once, twice);
        tess_topology_free(again);
    }
    free(once);
    free(twice);
    return status;
}

/* In memory of just its size. */
static void read_one(tess_topology_reader *read, const char *text, size_t bytes)
{
    char *exact = malloc(bytes > 0 ? bytes : 1);
    struct tess_topology *topology = tess_topology_new();
    assert_true(exact && topology);
    memcpy(exact, text, bytes);
    double from_s = tess_clock_thread_s();
    enum tess_status status = read("corpus.txt", exact, bytes, NULL, topology);
    /* Hundreds of times what the longest takes, for sanitizers. */
    assert_true(tess_clock_thread_s() - from_s < 5);
    if (status != TESS_OK) {
        assert_int_equal(status, TESS_ERR_DATA);
        assert_non_null(strstr(tess_log_last_error(), "corpus.txt"));
    }
    tess_topology_free(topology);
    free(exact);
}

/* Returns how many files there are. */
static int read_all(const char *reader, tess_topology_reader *read)
{
    char path[4096], text[CORPUS_BYTES_MAX];
    int files = 0;
    snprintf(path, sizeof(path), LOOK_FOLDER "/corpus/%s", reader);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), LOOK_FOLDER "/corpus/%s/%.255s", reader, entry->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t bytes = fread(text, 1, sizeof(text), file);
        fclose(file);
        assert_true(bytes < sizeof(text));
        read_one(read, text, bytes);
        files++;
    }
    closedir(folder);
    return files;
}

static void case_corpus(void **state)
{
    (void)state;
    static const struct {
        const char *reader;
        tess_topology_reader *read;
    } row[] = {{"nccl", read_and_write},          {"xml", read_xml},
               {"smi", tess_topology_read_smi},   {"slurm", tess_topology_read_slurm},
               {"yaml", tess_topology_read_yaml}, {"synthetic", read_synthetic},
               {"hwloc", read_hwloc_text}};
    tess_log_set_level(TESS_LOG_ERROR);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        assert_in_range(read_all(row[i].reader, row[i].read), 10, 40);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_corpus)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
