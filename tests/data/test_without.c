/*
 * Built without libpng, libjpeg and SentencePiece: the files that stand in their places are linked
 * into this test and taken by the library. Each message names the file and the package.
 */
#include "data/data.h"
#include "data/token_files.h"
#include "tessera/log.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static void check_message(const char *name, const char *package)
{
    if (strstr(tess_log_last_error(), name) == NULL ||
        strstr(tess_log_last_error(), package) == NULL)
        fail_msg("no %s or %s in: %s", name, package, tess_log_last_error());
}

static void case_without(void **state)
{
    static const struct {
        const char *bytes, *package;
    } file[] = {{"\x89PNG\r\n\x1a\n", "libpng-dev"},
                {"\xff\xd8\xff\xe0....", "libjpeg62-turbo-dev"}};
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    struct tess__tokenizer *tokenizer = NULL;
    (void)state;
    token_folder_open(&folder);
    assert_int_equal(mkdir(token_path(&folder, "class"), 0700), 0);
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 10; n++) {
            char name[32];
            snprintf(name, sizeof(name), "class/%d.jpg", n);
            token_write_bytes(&folder, name, file[i].bytes, 8);
        }
        assert_int_equal(tess_dataset_open_images(folder.path, 0, &set), TESS_ERR_UNSUPPORTED);
        check_message("class/0.jpg", file[i].package);
    }
    token_write_bytes(&folder, "t.model", "x", 1);
    assert_int_equal(tess__tokenizer_open(token_path(&folder, "t.model"), &tokenizer),
                     TESS_ERR_UNSUPPORTED);
    check_message("t.model", "libsentencepiece-dev");
    token_folder_close(&folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_without)};
    return cmocka_run_group_tests_name("without", cases, NULL, NULL);
}
