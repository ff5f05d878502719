/* Sizes of the public structs as one language sees them; see test_header.c. */
#ifndef TESSERA_TESTS_HEADER_LAYOUT_H
#define TESSERA_TESTS_HEADER_LAYOUT_H

#include "tessera/tessera.h"

/* Every struct of the public headers that is not opaque. */
#define HEADER_STRUCTS(X)                                                                          \
    X(tess_block)                                                                                  \
    X(tess_comm_call)                                                                              \
    X(tess_comm_ops)                                                                               \
    X(tess_comm_stats)                                                                             \
    X(tess_event)                                                                                  \
    X(tess_ints)                                                                                   \
    X(tess_kernel_ops)                                                                             \
    X(tess_model_ops)                                                                              \
    X(tess_op)                                                                                     \
    X(tess_op_desc)                                                                                \
    X(tess_option)                                                                                 \
    X(tess_pass)                                                                                   \
    X(tess_plan)                                                                                   \
    X(tess_segment)                                                                                \
    X(tess_shape)                                                                                  \
    X(tess_strategy_ops)                                                                           \
    X(tess_sum)                                                                                    \
    X(tess_update)

struct header_size {
    const char *name;
    size_t bytes;
};

#define HEADER_SIZE(name) {#name, sizeof(struct name)},
#define HEADER_SIZES                                                                               \
    {                                                                                              \
        HEADER_STRUCTS(HEADER_SIZE)                                                                \
        {                                                                                          \
            NULL, 0                                                                                \
        }                                                                                          \
    }

#ifdef __cplusplus
extern "C" {
#endif

/* As C++ sees them; NULL where there is no C++ compiler. */
const struct header_size *header_sizes_cxx(void);

/* A call into the library from C++: the headers' names have C linkage there. */
const char *header_status_text_cxx(enum tess_status status);

#ifdef __cplusplus
}
#endif
#endif
