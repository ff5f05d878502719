/*
 * --audit as a user sees it: a bit that flips once in a rank's gradient ends the run with the
 * rank's name, and with --restarts the run continues and ends with the bits of one to which nothing
 * happened. The bit is flipped by a model of our own, "sick", which is mlp; the test registers it
 * and runs the program's main function.
 */
#include "harness/spawn.h"

#include "tessera/kernel.h"
#include "tessera/model.h"
#include "tessera/registry.h"
#include "text/command.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define TRAIN                                                                                      \
    "tessera train --model sick --sick.hidden 12 --data synthetic --synthetic-rows 512 "           \
    "--batch-size 16 --evaluate off --steps 30 --strategy fsdp --ranks 4 --save-every 4 "
#define FLIP_STEP 17 /* from 0 */
#define FLIP_ROW  8  /* of the micro-batch of rank 2; with two data ranks, of rank 1 */

static char folder[] = "/tmp/tessera_audit_XXXXXX";
static struct spawn spawn;
static atomic_int *flips; /* still to come; shared by all processes */
static struct tess_model_ops sick;
static const struct tess_model_ops *mlp;

/* It computes these rows first, a moment before another rank does for the audit. */
static enum tess_status sick_backward(void *state, const struct tess_pass *pass)
{
    const enum tess_status status = mlp->backward(state, pass);
    if (status == TESS_OK && pass->step == FLIP_STEP && pass->row_first == FLIP_ROW &&
        pass->unit == 0 && atomic_exchange(flips, 0) > 0) {
        uint32_t bits;
        memcpy(&bits, &pass->grad[0][5], sizeof(bits));
        bits ^= 1u << 20;
        memcpy(&pass->grad[0][5], &bits, sizeof(bits));
    }
    return status;
}

static int sick_main(int argc, char **argv)
{
    if (tess_registry_get_model("mlp", &mlp) != TESS_OK)
        return 99;
    sick = *mlp;
    sick.name = "sick";
    sick.backward = sick_backward;
    return tess_registry_add_model(&sick) == TESS_OK ? tess__main(argc, argv) : 99;
}

static int train(int flip, const char *more)
{
    char words[512], *argv[64];
    int argc = 0;
    snprintf(words, sizeof(words), "%s%s", TRAIN, more);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    argv[argc] = NULL;
    atomic_store(flips, flip);
    return spawn_run(&spawn, argv, sick_main);
}

/* A field of the last line of a run's metrics; to be released. */
static json_t *final_field(const char *run, const char *name)
{
    char path[128], line[1 << 14], last[1 << 14] = "";
    snprintf(path, sizeof(path), "%s/metrics.jsonl", run);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        memcpy(last, line, sizeof(last));
    fclose(file);
    json_t *root = json_loads(last, 0, NULL);
    json_t *field = json_incref(json_object_get(json_object_get(root, "final"), name));
    json_decref(root);
    assert_non_null(field);
    return field;
}

static void case_restarts(void **state)
{
    (void)state;
    assert_int_equal(train(0, "--run whole"), 0);
    json_t *whole = final_field("whole", "hash"), *audited = final_field("whole", "audited_steps");
    assert_int_equal(json_integer_value(audited), 0);
    json_decref(audited);

    /* Without audits it passes unseen, and the weights are others. */
    assert_int_equal(train(1, "--run unseen"), 0);
    json_t *unseen = final_field("unseen", "hash");
    assert_false(json_equal(unseen, whole));
    json_decref(unseen);

    assert_int_equal(train(1, "--run ends --audit 1"), 1);
    assert_non_null(strstr(spawn.err, "audit of step 18: rank 2 (kernel "));
    assert_non_null(strstr(spawn.err, "gradient of 'fc1.weight'"));
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);

    /* The audit's first gather waits for the rank's own computation. */
    assert_int_equal(train(1, "--run stages --audit 1 --strategy fsdp+pp --mesh data=2,stage=2 "
                              "--fsdp.reshard-after-forward on --accumulate 1"),
                     1);
    assert_non_null(strstr(spawn.err, "audit of step 18: rank 1 (kernel "));
    assert_non_null(strstr(spawn.err, "gradient of 'fc1.weight'"));

    assert_int_equal(train(1, "--run continues --audit 1 --restarts 2"), 0);
    assert_non_null(strstr(spawn.err, "restart 1 of 2: continues after step "));
    json_t *hash = final_field("continues", "hash");
    audited = final_field("continues", "audited_steps");
    assert_true(json_equal(hash, whole));
    json_t *from = final_field("continues", "resumed_from"); /* null: from the beginning */
    assert_int_equal(json_integer_value(audited), 30 - json_integer_value(from));
    json_decref(from);
    json_decref(audited);
    json_decref(hash);
    json_decref(whole);
}

static int set_up(void **state)
{
    (void)state;
    flips = mmap(NULL, sizeof(*flips), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return flips == MAP_FAILED || mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_restarts)};
    return cmocka_run_group_tests_name("audit_run", tests, set_up, tear_down);
}
