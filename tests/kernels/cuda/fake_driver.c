/*
 * A libcuda.so.1 that starts as the environment demands and can do nothing else: for the sentences
 * about drivers that no test machine has.
 *
 *   FAKE_DRIVER_INIT      what cuInit returns, by number; 0
 *   FAKE_DRIVER_VERSION   the version of CUDA that it reports; 99000
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_NOT_FOUND 500 /* CUDA_ERROR_NOT_FOUND */

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version_out);
int cuGetProcAddress_v2(const char *symbol, void **function_out, int version,
                        unsigned long long flags, int *found_out);
int cuGetExportTable(const void **table_out, const void *id);

static int fake_number(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : fallback;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return fake_number("FAKE_DRIVER_INIT", 0);
}

int cuDriverGetVersion(int *version_out)
{
    *version_out = fake_number("FAKE_DRIVER_VERSION", 99000);
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function_out, int version,
                        unsigned long long flags, int *found_out)
{
    (void)version, (void)flags;
    *function_out = NULL;
    if (strcmp(symbol, "cuInit") == 0)
        *(int (**)(unsigned))function_out = cuInit;
    else if (strcmp(symbol, "cuDriverGetVersion") == 0)
        *(int (**)(int *))function_out = cuDriverGetVersion;
    else if (strcmp(symbol, "cuGetProcAddress") == 0)
        *(int (**)(const char *, void **, int, unsigned long long, int *))function_out =
            cuGetProcAddress_v2;
    if (found_out != NULL)
        *found_out = 0;
    return *function_out != NULL ? 0 : FAKE_NOT_FOUND;
}

int cuGetExportTable(const void **table_out, const void *id)
{
    (void)id;
    *table_out = NULL;
    return FAKE_NOT_FOUND;
}
