/*
 * The stand-in for cuBLASLt: every algorithm of its heuristics against plain sums in double, over
 * all types, transposes and epilogues that the project uses; which of them differ in their last
 * bits, and from themselves never; what it must refuse, and what must end the program.
 */
#include "device/madeup/blas_case.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- all algorithms of a product ------------------------------------------------------------- */

struct counts {
    int ran, refused_state, refused_check, broke, kinds;
};

/* Runs it twice on what it had at first, and compares. D's bytes are the caller's. */
static char *run_twice(const struct open *o, const cublasLtMatmulAlgo_t *algorithm, size_t bytes)
{
    char *d[2], *aux = malloc(o->at[AUX].bytes), *bias = malloc(o->at[BIAS].bytes);
    for (int i = 0; i < 2; i++) {
        d[i] = malloc(o->at[D].bytes);
        put(o->at[D].device, o->at[D].host, o->at[D].bytes);
        put(o->at[AUX].device, o->at[AUX].host, o->at[AUX].bytes);
        BLAS(run(o, algorithm, bytes > 0 ? workspace : NULL, bytes));
        get(d[i], o->at[D].device, o->at[D].bytes);
    }
    assert_memory_equal(d[0], d[1], o->at[D].bytes);
    get(aux, o->at[AUX].device, o->at[AUX].bytes);
    get(bias, o->at[BIAS].device, o->at[BIAS].bytes);
    expect_results(o, d[0], aux);
    expect_gaps(o, d[0]);
    if (o->p.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        expect_bias_gradient(o, bias);
    free(d[1]);
    free(aux);
    free(bias);
    return d[0];
}

static struct counts try_product(const struct product *p)
{
    struct counts counts = {0};
    struct open o = open_product(p);
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    char *seen[CANDIDATES];
    int count;
    BLAS(ask(&o, CUBLASLT_REDUCTION_SCHEME_MASK, WORKSPACE_BYTES, result, &count));
    for (int i = 0; i < count; i++) {
        size_t bytes;
        if (result[i].state != CUBLAS_STATUS_SUCCESS) {
            counts.refused_state++;
            continue;
        }
        if (check(&o, &result[i].algo, &bytes) != CUBLAS_STATUS_SUCCESS) {
            counts.refused_check++;
            assert_int_not_equal(run(&o, &result[i].algo, workspace, WORKSPACE_BYTES),
                                 CUBLAS_STATUS_SUCCESS);
            continue;
        }
        assert_int_equal(bytes, result[i].workspaceSize);
        if (run(&o, &result[i].algo, workspace, bytes) != CUBLAS_STATUS_SUCCESS) {
            counts.broke++;
            continue;
        }
        char *d = run_twice(&o, &result[i].algo, bytes);
        bool other = true;
        for (int other_kind = 0; other_kind < counts.kinds; other_kind++)
            other = other && memcmp(seen[other_kind], d, o.at[D].bytes) != 0;
        if (other)
            seen[counts.kinds++] = d;
        else
            free(d);
        counts.ran++;
    }
    for (int i = 0; i < counts.kinds; i++)
        free(seen[i]);
    close_product(&o);
    return counts;
}

/* ---- cases ----------------------------------------------------------------------------------- */

#define F32  CUDA_R_32F
#define F16  CUDA_R_16F
#define BF16 CUDA_R_16BF
#define E4M3 CUDA_R_8F_E4M3
#define E5M2 CUDA_R_8F_E5M2

static const struct product usual = {
    .compute = CUBLAS_COMPUTE_32F,
    .a = BF16,
    .b = BF16,
    .d = BF16,
    .bias = BF16,
    .m = 24,
    .n = 24,
    .k = 40,
    .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
};

static const struct product narrow = {
    .compute = CUBLAS_COMPUTE_32F,
    .a = E4M3,
    .b = E5M2,
    .d = F32,
    .bias = BF16,
    .turn_a = true,
    .m = 32,
    .n = 16,
    .k = 160,
    .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
};

static void case_types(void **state)
{
    (void)state;
    static const struct {
        cublasComputeType_t compute;
        cudaDataType_t a, b, d, bias;
    } types[] = {
        {CUBLAS_COMPUTE_32F, F32, F32, F32, F32},
        {CUBLAS_COMPUTE_32F_FAST_TF32, F32, F32, F32, F32},
        {CUBLAS_COMPUTE_32F, BF16, BF16, BF16, BF16},
        {CUBLAS_COMPUTE_32F, BF16, BF16, F32, F32},
        {CUBLAS_COMPUTE_32F, F16, F16, F16, F16},
        {CUBLAS_COMPUTE_32F, F16, F16, F32, F32},
        {CUBLAS_COMPUTE_32F, E4M3, E4M3, BF16, BF16},
        {CUBLAS_COMPUTE_32F, E5M2, E4M3, F16, F16},
        {CUBLAS_COMPUTE_32F, E4M3, E5M2, F32, BF16},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        for (int turn = 0; turn < 4; turn++) {
            struct product p = bytes_of(types[i].a) == 1 ? narrow : usual;
            if (bytes_of(types[i].a) == 1 && turn != 1)
                continue;
            p.compute = types[i].compute;
            p.a = types[i].a;
            p.b = types[i].b;
            p.d = types[i].d;
            p.bias = types[i].bias;
            p.turn_a = turn & 1;
            p.turn_b = turn & 2;
            p.gap = turn == 2 ? 8 : 0;
            p.beta = p.d == F32 && turn % 2 ? 1 : 0;
            const struct counts counts = try_product(&p);
            assert_true(counts.ran >= 3);
        }
}

static void case_epilogues(void **state)
{
    (void)state;
    static const uint32_t epilogue[] = {
        CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_BIAS,    CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX,      CUBLASLT_EPILOGUE_DGELU,   CUBLASLT_EPILOGUE_BGRADB,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DEFAULT,
    };
    for (size_t i = 0; i < sizeof(epilogue) / sizeof(epilogue[0]); i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct product p = usual;
            p.epilogue = epilogue[i];
            p.aux_gap = 8;
            if (f32)
                p.d = p.bias = F32;
            assert_true(try_product(&p).ran >= 4);
        }
    struct product p = narrow;
    p.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    assert_true(try_product(&p).ran >= 3);
}

/* Of a sum that is long, several algorithms have other bits; one each refuses in its state, when it
 * is checked, and when it is run. Where nothing is aligned, what loads single elements is left. */
static void case_algorithms(void **state)
{
    (void)state;
    struct product p = usual;
    p.k = 400;
    p.d = p.bias = F32;
    const struct counts counts = try_product(&p);
    assert_true(counts.kinds >= 5);
    assert_int_equal(counts.refused_state, 1);
    assert_int_equal(counts.refused_check, 1);
    assert_int_equal(counts.broke, 1);
    p.m = 23;
    p.k = 41;
    p.align = 4;
    assert_int_equal(try_product(&p).ran, 2);
}

/* The same algorithm made from its attributes has not its bits; its 64 bytes have. */
static void case_serialised(void **state)
{
    (void)state;
    static const cublasLtMatmulAlgoConfigAttributes_t attribute[] = {
        CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
        CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_STAGES_ID};
    struct product p = usual;
    p.k = 400;
    p.d = F32;
    struct open o = open_product(&p);
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int count, other = 0;
    BLAS(ask(&o, CUBLASLT_REDUCTION_SCHEME_MASK, WORKSPACE_BYTES, result, &count));
    for (int i = 0; i < count; i++) {
        size_t bytes;
        int32_t id;
        if (result[i].state != CUBLAS_STATUS_SUCCESS ||
            check(&o, &result[i].algo, &bytes) != CUBLAS_STATUS_SUCCESS ||
            run(&o, &result[i].algo, workspace, bytes) != CUBLAS_STATUS_SUCCESS)
            continue;
        cublasLtMatmulAlgo_t again;
        BLAS(cublasLtMatmulAlgoConfigGetAttribute(&result[i].algo, CUBLASLT_ALGO_CONFIG_ID, &id,
                                                  sizeof(id), &bytes));
        BLAS(cublasLtMatmulAlgoInit(handle, p.compute, F32, p.a, p.b, p.d, p.d, id, &again));
        for (size_t k = 0; k < sizeof(attribute) / sizeof(attribute[0]); k++) {
            uint32_t value;
            BLAS(cublasLtMatmulAlgoConfigGetAttribute(&result[i].algo, attribute[k], &value,
                                                      sizeof(value), &bytes));
            BLAS(cublasLtMatmulAlgoConfigSetAttribute(&again, attribute[k], &value, sizeof(value)));
        }
        BLAS(check(&o, &again, &bytes));
        char *first = run_twice(&o, &result[i].algo, bytes), *second = run_twice(&o, &again, bytes);
        other += memcmp(first, second, o.at[D].bytes) != 0;
        free(first);
        free(second);
    }
    assert_true(other > 0);
    close_product(&o);
}

static cublasStatus_t status_of(const struct product *p)
{
    struct open o = open_product(p);
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int count;
    const cublasStatus_t status = ask(&o, CUBLASLT_REDUCTION_SCHEME_MASK, 0, result, &count);
    assert_true((status == CUBLAS_STATUS_SUCCESS) == (count > 0));
    close_product(&o);
    return status;
}

static void case_refused(void **state)
{
    (void)state;
    static const struct {
        const struct product *from;
        int64_t m, n, k, aux_gap; /* added */
        cudaDataType_t a, b, d, bias;
        uint32_t epilogue;
        bool turn_a;
        cublasStatus_t status;
    } all[] = {
        {&usual, 0, 0, 0, 0, BF16, BF16, BF16, BF16, 1, false, CUBLAS_STATUS_SUCCESS},
        {&usual, 0, 0, 0, 0, BF16, F16, BF16, BF16, 1, false, CUBLAS_STATUS_NOT_SUPPORTED},
        {&usual, 0, 0, 0, 0, BF16, BF16, F16, F16, 1, false, CUBLAS_STATUS_NOT_SUPPORTED},
        {&usual, 0, 0, 0, 0, F32, F32, BF16, BF16, 1, false, CUBLAS_STATUS_NOT_SUPPORTED},
        /* a bias of another type; aux in rows that are no multiple of 8 */
        {&usual, 0, 0, 0, 0, BF16, BF16, BF16, F32, 4, false, CUBLAS_STATUS_NOT_SUPPORTED},
        {&usual, 0, 0, 0, 4, BF16, BF16, BF16, BF16, 160, false, CUBLAS_STATUS_INVALID_VALUE},
        {&usual, 0, 0, 0, -8, BF16, BF16, BF16, BF16, 160, false, CUBLAS_STATUS_INVALID_VALUE},
        {&narrow, 0, 0, 0, 0, E4M3, E5M2, F32, BF16, 1, true, CUBLAS_STATUS_SUCCESS},
        {&narrow, 0, 0, 0, 0, E5M2, E5M2, F32, BF16, 1, true, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 0, 0, 0, 0, E4M3, E5M2, F32, BF16, 1, false, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 8, 0, 0, 0, E4M3, E5M2, F32, BF16, 1, true, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 0, 8, 0, 0, E4M3, E5M2, F32, BF16, 1, true, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 0, 0, 8, 0, E4M3, E5M2, F32, BF16, 1, true, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 0, 0, 0, 0, E4M3, E5M2, F32, F32, 4, true, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 0, 0, 0, 0, E4M3, E5M2, F32, BF16, 512, true, CUBLAS_STATUS_NOT_SUPPORTED},
        {&narrow, 0, 0, 0, 0, E4M3, E5M2, F32, BF16, 160, true, CUBLAS_STATUS_NOT_SUPPORTED},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct product p = *all[i].from;
        p.m += all[i].m;
        p.n += all[i].n;
        p.k += all[i].k;
        p.aux_gap = all[i].aux_gap;
        p.a = all[i].a;
        p.b = all[i].b;
        p.d = all[i].d;
        p.bias = all[i].bias;
        p.epilogue = all[i].epilogue;
        p.turn_a = all[i].turn_a;
        const cublasStatus_t status = status_of(&p);
        if (status != all[i].status)
            fail_msg("row %zu gives %d, not %d", i, (int)status, (int)all[i].status);
    }
}

/* Shapes that contradict each other, attributes of another size, none asked for. */
static void case_invalid(void **state)
{
    (void)state;
    struct open o = open_product(&usual), other = open_product(&narrow);
    cublasLtMatmulAlgo_t algorithm = working(&o);
    const uint64_t wide = 1;
    size_t bytes;
    assert_int_equal(
        cublasLtMatmulDescSetAttribute(o.work, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof(wide)),
        CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(
        cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &wide, 4),
        CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatrixLayout_t kept = o.layout[A];
    o.layout[A] = other.layout[A];
    assert_int_equal(check(&o, &algorithm, &bytes), CUBLAS_STATUS_INVALID_VALUE);
    o.layout[A] = kept;
    assert_int_equal(check(&o, &algorithm, &bytes), CUBLAS_STATUS_SUCCESS);
    /* A scale of what has none; a bias that is not there. */
    set(&o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &workspace, sizeof(workspace));
    assert_int_equal(run(&o, &algorithm, NULL, 0), CUBLAS_STATUS_INVALID_VALUE);
    void *none = NULL;
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    set(&o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &none, sizeof(none));
    set(&o, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    assert_int_equal(run(&o, &algorithm, NULL, 0), CUBLAS_STATUS_INVALID_VALUE);
    algorithm.data[5] ^= 1u;
    assert_int_not_equal(check(&o, &algorithm, &bytes), CUBLAS_STATUS_SUCCESS);
    close_product(&o);
    close_product(&other);
}

/* Too little workspace, and one that is not aligned; operands that are not. */
/* So many multiprocessors as the device has, 4, or fewer; another number, another first choice. */
static void case_multiprocessors(void **state)
{
    (void)state;
    static const int32_t counts[] = {-1, 5, 0, 3, 4};
    struct open o = open_product(&usual);
    cublasLtMatmulHeuristicResult_t result[5][CANDIDATES];
    for (int i = 0; i < 5; i++) {
        int count;
        set(&o, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &counts[i], sizeof(counts[i]));
        assert_int_equal(
            ask(&o, CUBLASLT_REDUCTION_SCHEME_MASK, WORKSPACE_BYTES, result[i], &count),
            i < 2 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS);
    }
    assert_memory_not_equal(&result[2][0].algo, &result[3][0].algo, sizeof(result[2][0].algo));
    close_product(&o);
}

static void case_pointers(void **state)
{
    (void)state;
    struct product p = usual;
    p.d = F32;
    struct open o = open_product(&p);
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int count, with = 0;
    BLAS(ask(&o, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, WORKSPACE_BYTES, result, &count));
    for (int i = 0; i < count; i++) {
        size_t bytes;
        if (result[i].state != CUBLAS_STATUS_SUCCESS || result[i].workspaceSize == 0)
            continue;
        BLAS(check(&o, &result[i].algo, &bytes));
        assert_int_equal(run(&o, &result[i].algo, workspace, bytes - 1),
                         CUBLAS_STATUS_INVALID_VALUE);
        assert_int_equal(run(&o, &result[i].algo, (char *)workspace + 128, bytes),
                         CUBLAS_STATUS_INVALID_VALUE);
        assert_int_equal(run(&o, &result[i].algo, NULL, bytes), CUBLAS_STATUS_INVALID_VALUE);
        o.at[B].device = (char *)o.at[B].device + 8;
        assert_int_equal(run(&o, &result[i].algo, workspace, bytes), CUBLAS_STATUS_INVALID_VALUE);
        o.at[B].device = (char *)o.at[B].device - 8;
        BLAS(run(&o, &result[i].algo, workspace, bytes));
        with++;
    }
    assert_true(with > 0);
    CUDA(cudaStreamSynchronize(stream));
    BLAS(ask(&o, CUBLASLT_REDUCTION_SCHEME_MASK, 0, result, &count));
    for (int i = 0; i < count; i++)
        assert_true(result[i].state != CUBLAS_STATUS_SUCCESS || result[i].workspaceSize == 0);
    close_product(&o);
}

/* ---- what ends the program ------------------------------------------------------------------- */

static void end_host_operand(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    o->at[A].device = aligned_alloc(256, (o->at[A].bytes + 255) / 256 * 256);
    (void)run(o, algorithm, NULL, 0);
}

static void end_beyond(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    o->at[B].device = (char *)o->at[B].device + 16;
    (void)run(o, algorithm, NULL, 0);
}

static void end_overlap(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    o->at[D].device = o->at[A].device;
    (void)run(o, algorithm, NULL, 0);
}

static void end_attribute(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    const int32_t mode = CUBLASLT_POINTER_MODE_DEVICE;
    (void)algorithm;
    set(o, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof(mode));
}

static void end_epilogue(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BGRADA;
    set(o, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    (void)run(o, algorithm, NULL, 0);
}

static void end_destroyed(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulDesc_t work = o->work;
    o->work = (cublasLtMatmulDesc_t)o->layout[A]; /* which is no description */
    (void)run(o, algorithm, NULL, 0);
    o->work = work;
}

static void end_device(struct open *o, const cublasLtMatmulAlgo_t *algorithm)
{
    CUDA(cudaSetDevice(1));
    (void)run(o, algorithm, NULL, 0);
}

static const struct end {
    const char *name, *message;
    void (*run)(struct open *o, const cublasLtMatmulAlgo_t *algorithm);
} ends[] = {
    {"host", "cublasLtMatmul", end_host_operand},
    {"beyond", "cublasLtMatmul", end_beyond},
    {"overlap", "overlaps the result", end_overlap},
    {"attribute", "attribute 2 of a product", end_attribute},
    {"epilogue", "epilogue 256", end_epilogue},
    {"destroyed", "a description of a product", end_destroyed},
    {"device", "the handle is of device 0", end_device},
};

static void start(void)
{
    CUDA(cudaSetDevice(0));
    BLAS(cublasLtCreate(&handle));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));
}

/* In a program of its own. */
static int end_by(const char *name)
{
    start();
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (strcmp(ends[i].name, name) == 0) {
            struct open o = open_product(&usual);
            const cublasLtMatmulAlgo_t algorithm = working(&o);
            ends[i].run(&o, &algorithm);
            CUDA(cudaStreamSynchronize(stream));
        }
    return 0;
}

static void case_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        int pipes[2], status;
        char text[4096] = "";
        assert_int_equal(pipe(pipes), 0);
        const pid_t child = fork();
        if (child == 0) {
            dup2(pipes[1], STDERR_FILENO);
            close(pipes[0]);
            close(pipes[1]);
            execl("/proc/self/exe", "test_madeup_blas", "end", ends[i].name, (char *)NULL);
            _exit(3);
        }
        close(pipes[1]);
        size_t used = 0;
        for (ssize_t got; used < sizeof(text) - 1 &&
                          (got = read(pipes[0], text + used, sizeof(text) - 1 - used)) > 0;)
            used += (size_t)got;
        close(pipes[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT ||
            strstr(text, ends[i].message) == NULL)
            fail_msg("'%s' ended with %d: %s", ends[i].name, status, text);
    }
}

/* ---- the library ----------------------------------------------------------------------------- */

/* Work is done in the stream's order, and not before. */
static void case_late(void **state)
{
    (void)state;
    struct open o = open_product(&usual);
    const cublasLtMatmulAlgo_t algorithm = working(&o);
    CUDA(cudaMemsetAsync(o.at[A].device, 0, o.at[A].bytes, stream));
    BLAS(run(&o, &algorithm, NULL, 0));
    char *d = malloc(o.at[D].bytes);
    get(d, o.at[D].device, o.at[D].bytes);
    for (size_t i = 0; i < o.at[D].bytes; i++)
        assert_int_equal(d[i] & 0x7f, 0);
    free(d);
    close_product(&o);
}

static void case_library(void **state)
{
    (void)state;
    assert_int_equal(cublasLtGetVersion(), CUBLAS_VERSION);
    assert_string_not_equal(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED),
                            cublasLtGetStatusString(CUBLAS_STATUS_INVALID_VALUE));
    BLAS(cublasLtDestroy(handle));
    BLAS(cublasLtCreate(&handle));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_types),
        cmocka_unit_test(case_epilogues),
        cmocka_unit_test(case_algorithms),
        cmocka_unit_test(case_serialised),
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_invalid),
        cmocka_unit_test(case_multiprocessors),
        cmocka_unit_test(case_pointers),
        cmocka_unit_test(case_late),
        cmocka_unit_test(case_ends),
        cmocka_unit_test(case_library),
    };
    setenv("MADEUP_DEVICES", "2", 1);
    if (argc > 2)
        return end_by(argv[2]);
    start();
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    CUDA(cudaFree(workspace));
    CUDA(cudaStreamDestroy(stream));
    BLAS(cublasLtDestroy(handle));
    return failed;
}
