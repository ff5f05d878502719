/*
 * Opening cuDNN. The module is not linked to it, so that it loads on machines without; it is opened
 * when a run first chooses it. In the environment, TESSERA_CUDNN names another file.
 */
#include "cuda/cudnn/cudnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The interface of version 9, as in the name. */
#define LOAD_MAJOR 9
#define LOAD_NAME  "libcudnn.so.9"

static struct {
    pthread_once_t once;
    struct cudnn_library library;
    size_t version;
    char why[512]; /* "": it can be used */
} load = {.once = PTHREAD_ONCE_INIT};

/* Major, minor and patch, as CUDNN_VERSION of version 9 puts them together. */
static size_t load_part(size_t version, int part)
{
    return part == 0 ? version / 10000 : part == 1 ? version / 100 % 100 : version % 100;
}

/* The name of a function that the library lacks; NULL where it has all. */
static const char *load_resolve(void *file, struct cudnn_library *library)
{
    /* A function pointer from dlsym: POSIX has it that this conversion works. */
#define LOAD_FUNCTION(name)                                                                        \
    *(void **)&library->name = dlsym(file, #name);                                                 \
    if (library->name == NULL)                                                                     \
        return #name;
    CUDNN_FUNCTIONS(LOAD_FUNCTION)
#undef LOAD_FUNCTION
    return NULL;
}

static void load_open(void)
{
    const char *chosen = getenv("TESSERA_CUDNN");
    const char *name = chosen != NULL && chosen[0] != '\0' ? chosen : LOAD_NAME;
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        const char *word = dlerror();
        snprintf(load.why, sizeof(load.why),
                 "cuDNN cannot be opened (%s): install version 9, or name its libcudnn.so.9 in "
                 "TESSERA_CUDNN",
                 word != NULL ? word : name);
        return;
    }
    const char *lacks = load_resolve(file, &load.library);
    if (lacks == NULL)
        load.version = load.library.cudnnGetVersion();
    if (lacks != NULL)
        snprintf(load.why, sizeof(load.why),
                 "%s has no function %s: version 9 of cuDNN is needed, all files of one release",
                 name, lacks);
    else if (load_part(load.version, 0) != LOAD_MAJOR)
        snprintf(load.why, sizeof(load.why),
                 "%s is version %zu, and version %d of "
                 "cuDNN is needed",
                 name, load.version, LOAD_MAJOR);
    if (load.why[0] != '\0')
        dlclose(file);
}

const struct cudnn_library *tess__cudnn_library(const char **why_out)
{
    (void)pthread_once(&load.once, load_open);
    if (why_out != NULL)
        *why_out = load.why;
    return load.why[0] == '\0' ? &load.library : NULL;
}

bool tess__cudnn_present(char *text, size_t text_bytes)
{
    const char *why;
    const bool present = tess__cudnn_library(&why) != NULL;
    if (present)
        snprintf(text, text_bytes, "cuDNN %zu.%zu.%zu", load_part(load.version, 0),
                 load_part(load.version, 1), load_part(load.version, 2));
    else
        snprintf(text, text_bytes, "%s", why);
    return present;
}

enum tess_status tess__cudnn_fail(cudnnStatus_t error, const char *where)
{
    const bool memory = error == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                        error == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    char message[256] = "";
    load.library.cudnnGetLastErrorString(message, sizeof(message));
    TESS_FAIL(memory ? TESS_ERR_MEMORY : TESS_ERR_DEVICE, "cuDNN: %s returned %s%s%s", where,
              load.library.cudnnGetErrorString(error), message[0] != '\0' ? ": " : "", message);
}
