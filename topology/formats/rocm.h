/* What rocm-smi says of its GPUs, between the reader of its text, read_rocm.c, and that of its
 * JSON, rocm_json.c. */
#ifndef TOPOLOGY_ROCM_H
#define TOPOLOGY_ROCM_H

#include "topology/formats/smi.h"
#include "topology/machine/pool.h"

enum rocm_section { ROCM_OTHER, ROCM_HOPS, ROCM_TYPE, ROCM_BANDWIDTH, ROCM_ACCESS, ROCM_SECTIONS };

/* Matrices are [count * count]. */
struct rocm_reader {
    struct tess__pool pool;
    struct tess__lines lines;
    struct tess__smi *smi;
    enum rocm_section section;
    bool header;              /* that of the section was read */
    int32_t rows;             /* of the section */
    bool seen[ROCM_SECTIONS]; /* wholly */
    bool *xgmi;
    bool *apart;    /* without peer-to-peer */
    int32_t *hops;  /* 0: not known */
    int32_t *links; /* of a pair; 0: not known */
};

/* One GPU more, the next column. TESS_ERR_DATA above TESS__SMI_MAX. */
enum tess_status tess__rocm_gpu_add(struct rocm_reader *reader, int32_t number, int32_t line);

/* Cell `at` of the section's matrix, in the words of rocm-smi; false: not a word of the section,
 * and what was expected. */
bool tess__rocm_cell(struct rocm_reader *reader, enum rocm_section section, struct tess__word word,
                     int32_t at, const char **expected_out);

/* rocm_json.c: all of the text of `rocm-smi --showtopo --json`, from its first brace on. */
enum tess_status tess__rocm_json(struct rocm_reader *reader, struct tess__word text);

#endif
