/*
 * What people see in a terminal: every command's lines within 80 columns, colours where a terminal
 * is, and never a colour that says what no word says. The program runs behind a pseudo-terminal.
 */
#include "harness/work_folder.h"
#include "text/table.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COLUMNS 80

static char shown[1 << 18]; /* what the terminal got */

/* Run `tessera WORDS` in a terminal of so many columns; returns its exit status. */
static int terminal(int columns, const char *words)
{
    static char text[1024];
    char *argv[64] = {"tessera"}, *rest = text;
    const struct winsize size = {.ws_row = 40, .ws_col = (unsigned short)columns};
    size_t argc = 1, used = 0;
    int wait_status = -1, name;
    snprintf(text, sizeof(text), "%s", words);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    const int own = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(own >= 0);
    assert_int_equal(grantpt(own), 0);
    assert_int_equal(unlockpt(own), 0);
    assert_true((name = open(ptsname(own), O_RDWR | O_NOCTTY | O_CLOEXEC)) >= 0);
    assert_int_equal(ioctl(name, TIOCSWINSZ, &size), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(name, STDOUT_FILENO);
        dup2(name, STDERR_FILENO);
        execv(TESSERA_PROGRAM, argv);
        _exit(127);
    }
    assert_true(pid > 0);
    close(name);
    for (ssize_t count; used < sizeof(shown) - 1; used += (size_t)count)
        if ((count = read(own, shown + used, sizeof(shown) - 1 - used)) <= 0)
            break; /* the last process has closed its end */
    shown[used] = '\0';
    close(own);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

/* What stands on the screen in the end: a line that is drawn again replaces the one before. */
static void check_lines(const char *words, int columns)
{
    static char copy[sizeof(shown)];
    memcpy(copy, shown, sizeof(copy));
    for (char *rest = copy, *line; (line = strsep(&rest, "\n\r")) != NULL;)
        if (tess__screen_width(line) > columns)
            fail_msg("%s: %d columns: %s", words, tess__screen_width(line), line);
}

static void fits(const char *words)
{
    const int code = terminal(COLUMNS, words);
    if (code != 0)
        fail_msg("%s: exit status %d: %s", words, code, shown);
    check_lines(words, COLUMNS);
}

static void has(const char *text)
{
    if (strstr(shown, text) == NULL)
        fail_msg("no '%s' in: %s", text, shown);
}

#define MODEL                                                                                      \
    " --data synthetic --synthetic-rows 512 --batch-size 32 --grid 4 --mlp.hidden 16 --steps 6 "

static void case_train(void **state)
{
    (void)state;
    fits("train" MODEL "--strategy fsdp --ranks 4 --run out --log-every 1");
    has("RSS");
    has("\033[32mpredicted by the memory plan = allocated");
    fits("train" MODEL "--strategy zero1 --ranks 2 --explain");
    fits("status out --calls 3");
    fits("help");
    fits("help train");
    fits("help train all");
    fits("help compare");
    fits("help plan");
    fits("help topo");
}

static void case_compare(void **state)
{
    (void)state;
    fits("compare" MODEL "--ranks 4 --strategies single,dp,ddp,fsdp,tp --json compare.json");
    has("\033[1msplit\033[0m");
    has("\033[32mall 4 equal\033[0m: ");
    fits("compare" MODEL "--ranks 2 --strategies ddp,pp --variants "
         "baseline:;accumulate[in_micro-batches]:accumulate=2");
    fits("plan --accuracy out compare.json");
    fits("scaling" MODEL "--max-ranks 2 --repeats 1 --to 64");
    fits("tune batch" MODEL "--from 16 --to 32");
    fits("diff out out");
}

static void case_plan(void **state)
{
    (void)state;
    fits("plan --data synthetic --batch-size 32 --mlp.hidden 16 --ranks 4 --top 5");
    fits("plan " CONFIGS "/models/tiny-gpt.yaml --ranks 8 --device h100-80 --top 3 --tokens 1e9");
}

static void case_machines(void **state)
{
    static const char *const file[] = {"bridged-pairs-8", "cloud-vm",         "dgx-1v",
                                       "dgx-a100",        "dgx-h100-16",      "laptop",
                                       "pcie-8",          "two-rack-ethernet"};
    char words[512];
    (void)state;
    for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++) {
        snprintf(words, sizeof(words), "topo --file " CONFIGS "/clusters/%s.yaml", file[i]);
        fits(words);
    }
    fits("topo --file " CONFIGS "/clusters/dgx-1v.yaml --mesh tensor:2,data:4");
    fits("topo");
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    fits("top --count 1 --interval 0.1");
    has("NVIDIA H200");
    unsetenv("TESSERA_NVML");
}

/* Colours are for terminals, and for who asks for them. */
static void case_colours(void **state)
{
    static const char words[] = "train" MODEL "--steps 2";
    static struct spawn spawn;
    (void)state;
    assert_int_equal(terminal(COLUMNS, words), 0);
    has("\033[1m");
    assert_int_equal(terminal(0, words), 0); /* mpirun of Open MPI gives ranks such ones */
    assert_null(strchr(shown, '\033'));
    setenv("NO_COLOR", "1", 1);
    assert_int_equal(terminal(COLUMNS, words), 0);
    assert_null(strstr(shown, "\033[1m"));
    assert_null(strstr(shown, "\033[32m"));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    assert_int_equal(terminal(COLUMNS, words), 0);
    assert_null(strstr(shown, "\033[1m"));
    setenv("TERM", "xterm", 1);
    assert_int_equal(spawn_words(&spawn, words), 0);
    assert_null(strchr(spawn.out, '\033'));
    setenv("CLICOLOR_FORCE", "1", 1);
    assert_int_equal(spawn_words(&spawn, words), 0);
    assert_non_null(strstr(spawn.out, "\033[1m"));
    assert_int_equal(spawn_words(&spawn, "train --no-such-option"), 2);
    assert_non_null(strstr(spawn.err, "tessera: \033[31merror:\033[0m "));
    unsetenv("CLICOLOR_FORCE");
    assert_int_equal(spawn_words(&spawn, "train --no-such-option"), 2);
    assert_non_null(strstr(spawn.err, "tessera: error: "));
    /* Files have all columns; with COLUMNS as many as there is room for. */
    setenv("COLUMNS", "60", 1);
    assert_int_equal(spawn_words(&spawn, words), 0);
    snprintf(shown, sizeof(shown), "%s", spawn.out);
    check_lines(words, 60);
    unsetenv("COLUMNS");
}

/* ---- tables and lines ------------------------------------------------------------------------ */

static const struct tess__column column[] = {
    {.title = "run", .left = true, .key = true},
    {.title = "parameter", .brief = "param", .width = 10},
    {.title = "master", .zero = true},
    {.title = "hash", .left = true},
};

static char *table_text(int columns)
{
    struct tess__table table = {.column = column, .count = 4, .span = 2};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    static const char *const cell[][4] = {{"a", "1.00", "0", "0123456789abcdef"},
                                          {"long", "22.50", "-", "fedcba9876543210"}};
    for (int r = 0; r < 2; r++) {
        if (r == 1)
            tess__table_beside(&table, "beside it");
        for (int c = 0; c < 4; c++)
            tess__table_add(&table, "%s", r == 1 && c < 2 ? "" : cell[r][c]);
    }
    tess__table_print_in(&table, columns, out);
    fclose(out);
    return text;
}

static void case_table(void **state)
{
    static const struct {
        int columns;
        const char *text;
    } expected[] = {
        {0, "run  parameter master hash\n"
            "a         1.00      0 0123456789abcdef\n"
            "  beside it         - fedcba9876543210\n"},
        {30, "run param hash\n"
             "a    1.00 0123456789abcdef\n"
             "  beside  fedcba9876543210\n"
             "  it\n"},
        {20, "run param\n"
             "a    1.00\n"
             "  beside \n"
             "  it\n"
             "run hash\n"
             "a   0123456789abcdef\n"
             "    fedcba9876543210\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        char *text = table_text(expected[i].columns);
        assert_string_equal(text, expected[i].text);
        free(text);
    }
}

static void case_lines(void **state)
{
    static const struct {
        const char *text, *shown;
    } table[] = {
        {"one two three\n", "one two\n  three\n"},
        {"  one two three\n", "  one two\n    three\n"},
        {"a  one two three\n", "a  one two\n   three\n"},
        {"a-long-path/stays-whole x\n", "a-long-path/stays-whole\n  x\n"},
        {"\033[1mone\033[0m two three", "\033[1mone\033[0m two\n  three"},
        {"\xc3\xa4\xc3\xa4\xc3\xa4 \xc3\xa4\xc3\xa4\xc3\xa4 x\n",
         "\xc3\xa4\xc3\xa4\xc3\xa4 \xc3\xa4\xc3\xa4\xc3\xa4 x\n"},
        {"step 1\rstep 2\rdone now\n", "step 1\rstep 2\rdone now\n"},
        {"", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        tess__screen_write(out, 10, table[i].text);
        fclose(out);
        assert_string_equal(text, table[i].shown);
        free(text);
    }
    assert_int_equal(tess__screen_width("\033[1m\xc3\xa4x\033[0m"), 2);
}

static int make_folder(void **state)
{
    unsetenv("COLUMNS");
    unsetenv("NO_COLOR");
    unsetenv("CLICOLOR_FORCE");
    setenv("TERM", "xterm", 1);
    return work_folder_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_table),   cmocka_unit_test(case_lines),
        cmocka_unit_test(case_train),   cmocka_unit_test(case_compare),
        cmocka_unit_test(case_plan),    cmocka_unit_test(case_machines),
        cmocka_unit_test(case_colours),
    };
    return cmocka_run_group_tests_name("terminal", tests, make_folder, work_folder_remove);
}
