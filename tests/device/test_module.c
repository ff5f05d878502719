/*
 * Loadable modules: found where they should be, loaded once, and refused in one clear sentence;
 * with the word `registry`, a kernel in a module, in a process that has not asked for it before,
 * and names that are taken. MODULES is where fake_module.c was compiled to: many/ one/ none/.
 */
#include "config/registry.h"
#include "device/device.h"
#include "tessera/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PATH_BYTES 4096

static void expect_refused(const char *name, const char *const *parts)
{
    char why[1024] = "";
    assert_null(tess_module_find(name, why, sizeof(why)));
    for (; *parts != NULL; parts++)
        if (strstr(why, *parts) == NULL)
            fail_msg("module %s: '%s' does not contain '%s'", name, why, *parts);
    assert_null(strchr(why, '\n'));
    /* And once more, from memory. */
    char again[1024] = "";
    assert_null(tess_module_find(name, again, sizeof(again)));
    assert_string_equal(why, again);
    const struct tess_module *module = NULL;
    assert_int_equal(tess_module_get(name, &module), TESS_ERR_UNSUPPORTED);
    assert_null(module);
    assert_non_null(strstr(tess_log_last_error(), why));
}

#define expect_why(name, ...) expect_refused(name, (const char *const[]){__VA_ARGS__, NULL})

static void case_found(void **state)
{
    (void)state;
    char why[64] = "untouched";
    assert_true(tess__module_is_there("sound"));
    const struct tess_module *module = tess_module_find("sound", why, sizeof(why));
    assert_non_null(module);
    assert_string_equal(why, "untouched");
    assert_string_equal(module->name, "fake");
    const struct tess_module *again = NULL;
    assert_int_equal(tess_module_get("sound", &again), TESS_OK);
    assert_ptr_equal(module, again);
}

static void *find_in_thread(void *argument)
{
    (void)argument;
    return (void *)(uintptr_t)tess_module_find("threads", NULL, 0);
}

static void case_threads(void **state)
{
    (void)state;
    pthread_t thread[4];
    void *found[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, find_in_thread, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(thread[i], &found[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_non_null(found[i]);
        assert_ptr_equal(found[i], found[0]);
    }
}

static void case_absent(void **state)
{
    (void)state;
    assert_false(tess__module_is_there("absent"));
    expect_why("absent", "libtessera_absent.so is not installed", "TESSERA_MODULE_PATH",
               MODULES "/many");
    /* Names are names, not paths. */
    expect_why("../sound", "no such module");
}

/* Without a driver `--device auto` does not open the module; one that is named is opened. */
static void case_driver(void **state)
{
    (void)state;
    char *named = strdup(getenv("TESSERA_MODULE_PATH"));
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    assert_true(tess__driver_is_there());
    unsetenv("TESSERA_MODULE_PATH");
    assert_int_equal(tess__driver_is_there(), driver != NULL);
    setenv("TESSERA_MODULE_PATH", named, 1);
    free(named);
    if (driver != NULL)
        dlclose(driver);
}

static void case_damaged(void **state)
{
    (void)state;
    char path[PATH_BYTES], sound[PATH_BYTES];
    char bytes[3000];
    snprintf(path, sizeof(path), "%s/libtessera_damaged.so", MODULES "/many");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("this is no library", file);
    assert_int_equal(fclose(file), 0);
    expect_why("damaged", path, "the file is damaged", "build or install it again");

    /* The first part of a good one: a copy that was broken off. */
    snprintf(sound, sizeof(sound), "%s/libtessera_sound.so", MODULES "/many");
    snprintf(path, sizeof(path), "%s/libtessera_cut.so", MODULES "/many");
    FILE *source = fopen(sound, "r");
    file = fopen(path, "w");
    assert_non_null(source);
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, sizeof(bytes), source), sizeof(bytes));
    assert_int_equal(fwrite(bytes, 1, sizeof(bytes), file), sizeof(bytes));
    assert_int_equal(fclose(source), 0);
    assert_int_equal(fclose(file), 0);
    expect_why("cut", path, "the file is damaged", "build or install it again");
}

static void case_other(void **state)
{
    (void)state;
    expect_why("abi", "ABI 1,", "build and install both together");
    expect_why("hidden", "exports no tess_module");
}

static void case_libraries(void **state)
{
    (void)state;
    expect_why("cublasLt", "a library that it needs is missing", "install cuBLAS",
               "libcublasLt.so.99: cannot open shared object file");
    expect_why("nccl", "a library that it needs is missing", "install NCCL",
               "libnccl.so.99: cannot open shared object file");
    expect_why("oldnccl", "needs a newer NCCL", "ncclFromTheFuture");
    expect_why("oldtessera", "another version of libtessera", "tess_from_the_future");
}

/* ---- the registry ---------------------------------------------------------------------------- */

static bool registry_lists(const char *wanted)
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_KERNEL, &count);
    int found = 0;
    for (int i = 0; i < count; i++)
        found += strcmp(name[i], wanted) == 0;
    assert_true(found <= 1);
    return found == 1;
}

static void case_registry(void **state)
{
    (void)state;
    const struct tess_kernel_ops *ops = NULL;
    assert_int_equal(setenv("TESSERA_MODULE_PATH", MODULES "/none", 1), 0);
    assert_true(registry_lists("ref"));
    assert_false(registry_lists("cuda"));

    /* What is unknown stays unknown, and does not load anything. */
    assert_int_equal(tess_registry_get_kernel("cudo", &ops), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "unknown kernel 'cudo'"));
    assert_null(strstr(tess_log_last_error(), "cuda"));

    assert_int_equal(setenv("TESSERA_MODULE_PATH", MODULES "/none:" MODULES "/one", 1), 0);
    assert_true(registry_lists("cuda"));
    assert_string_not_equal(tess_registry_summary(TESS_REGISTRY_KERNEL, "cuda"), "");
    assert_int_equal(tess_registry_get_kernel("cuda", &ops), TESS_OK);
    assert_string_equal(ops->summary, "a kernel that can be found");
    assert_true(registry_lists("cuda"));
    assert_string_equal(tess_registry_summary(TESS_REGISTRY_KERNEL, "cuda"), ops->summary);
    const struct tess_kernel_ops *again = NULL;
    assert_int_equal(tess_registry_get_kernel("cuda", &again), TESS_OK);
    assert_ptr_equal(ops, again);
}

/* A name that is taken is refused, and the part that has it stays. */
static void case_taken(void **state)
{
    const struct tess_strategy_ops *strategy, *strategy_after;
    const struct tess_model_ops *model, *model_after;

    (void)state;
    assert_int_equal(tess_registry_get_strategy("ddp", &strategy), TESS_OK);
    struct tess_strategy_ops other_strategy = *strategy;
    assert_int_equal(tess_registry_add_strategy(&other_strategy), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "there is a strategy 'ddp' already"));
    assert_int_equal(tess_registry_get_strategy("ddp", &strategy_after), TESS_OK);
    assert_ptr_equal(strategy_after, strategy);

    assert_int_equal(tess_registry_get_model("mlp", &model), TESS_OK);
    struct tess_model_ops other_model = *model;
    assert_int_equal(tess_registry_add_model(&other_model), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "there is a model 'mlp' already"));
    assert_int_equal(tess_registry_get_model("mlp", &model_after), TESS_OK);
    assert_ptr_equal(model_after, model);
}

static void case_registry_without(void **state)
{
    (void)state;
    const struct tess_kernel_ops *ops = NULL;
    assert_int_equal(setenv("TESSERA_MODULE_PATH", MODULES "/many", 1), 0);
    assert_int_equal(tess_registry_get_kernel("cuda", &ops), TESS_ERR_USAGE);
    assert_null(ops);
    assert_non_null(strstr(tess_log_last_error(), "kernel 'cuda' is known but not built"));
    assert_non_null(strstr(tess_log_last_error(), "libtessera_cuda.so is not installed"));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest modules[] = {
        cmocka_unit_test(case_found),     cmocka_unit_test(case_threads),
        cmocka_unit_test(case_absent),    cmocka_unit_test(case_driver),
        cmocka_unit_test(case_damaged),   cmocka_unit_test(case_other),
        cmocka_unit_test(case_libraries), cmocka_unit_test(case_registry_without),
    };
    static const struct CMUnitTest registry[] = {
        cmocka_unit_test(case_registry),
        cmocka_unit_test(case_taken),
    };

    if (setenv("TESSERA_MODULE_PATH", MODULES "/many", 1) != 0)
        return 2;
    return argc > 1 && strcmp(argv[1], "registry") == 0
               ? cmocka_run_group_tests(registry, NULL, NULL)
               : cmocka_run_group_tests(modules, NULL, NULL);
}
