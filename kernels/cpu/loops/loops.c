/* The table of own loops of one instruction set, CPU_LEVEL. */
#include "cpu/loops/loops.h"

#include "tessera/version.h"

#define CPU_TEXT_(level) #level
#define CPU_TEXT(level)  CPU_TEXT_(level)

#define CPU_TABLE_(level) tess__cpu_loops_##level
#define CPU_TABLE(level)  CPU_TABLE_(level)

const struct cpu_loops CPU_TABLE(CPU_LEVEL) = {
    .name = CPU_TEXT(CPU_LEVEL),
    .ops =
        {
            .abi = TESS_ABI,
            .name = CPU_TEXT(CPU_LEVEL),
            .relu_forward = CPU_LOOP(relu_forward),
            .relu_backward = CPU_LOOP(relu_backward),
            .add = CPU_LOOP(add),
            .cast = CPU_LOOP(cast),
            .accumulate = CPU_LOOP(accumulate),
            .square_sum = CPU_LOOP(square_sum),
            .find_nonfinite = CPU_LOOP(find_nonfinite),
            .count_zeros = CPU_LOOP(count_zeros),
            .cast_stochastic = CPU_LOOP(cast_stochastic),
            .update = CPU_LOOP(update),
            .lamb_direction = CPU_LOOP(lamb_direction),
            .max_pool_forward = CPU_LOOP(max_pool_forward),
            .max_pool_backward = CPU_LOOP(max_pool_backward),
            .batch_norm_forward = CPU_LOOP(batch_norm_forward),
            .batch_norm_infer = CPU_LOOP(batch_norm_infer),
            .batch_norm_backward = CPU_LOOP(batch_norm_backward),
            .gelu_forward = CPU_LOOP(gelu_forward),
            .gelu_backward = CPU_LOOP(gelu_backward),
            .swiglu_forward = CPU_LOOP(swiglu_forward),
            .swiglu_backward = CPU_LOOP(swiglu_backward),
            .dropout = CPU_LOOP(dropout),
            .xent_max = CPU_LOOP(xent_max),
            .xent_sum = CPU_LOOP(xent_sum),
            .xent_grad = CPU_LOOP(xent_grad),
            .softmax_xent = CPU_LOOP(softmax_xent),
            .attention_decode = CPU_LOOP(attention_decode),
        },
    .column_sum = CPU_LOOP(column_sum),
    .row_norm_forward = CPU_LOOP(row_norm_forward),
    .row_norm_backward = CPU_LOOP(row_norm_backward),
    .embedding_rows = CPU_LOOP(embedding_rows),
    .rope_positions = CPU_LOOP(rope_positions),
    .plain_add = CPU_LOOP(plain_add),
    .square_softmax = CPU_LOOP(square_softmax),
    .square_softmax_grad = CPU_LOOP(square_softmax_grad),
    .small_forward = CPU_LOOP(small_forward),
    .small_backward_data = CPU_LOOP(small_backward_data),
};
