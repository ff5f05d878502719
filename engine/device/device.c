/*
 * Loadable modules: finds libtessera_<name>.so beside this library, opens it once, and gives the
 * reason in one sentence where it cannot. tessera/device.h defines what is in a module. And
 * plugins, which are opened by their path.
 *
 * A module is searched for in the folders of TESSERA_MODULE_PATH (joined by ':') where that is set.
 * Else, with D the folder of the file that holds this code, libtessera.so or the program, in D (a
 * build tree), D/tessera (an installed library) and D/../<libdir>/tessera (an installed program).
 */
#include "device/device.h"

#include "tessera/check.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICE_MODULES_MAX 16
#define DEVICE_NAME_BYTES  32

/* The state of a module that was requested. Kept for the process's life: code of a device library
 * cannot be unloaded while its threads run. */
struct device_module {
    char name[DEVICE_NAME_BYTES];
    const struct tess_module *module; /* NULL: it cannot be had, because of `why` */
    char *why;
};

static struct {
    pthread_mutex_t lock;
    struct device_module module[DEVICE_MODULES_MAX];
    int count;
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- where ----------------------------------------------------------------------------------- */

/* The folder of the file that this code was loaded from; "": it is unknown. */
static char device_own[PATH_MAX];
static pthread_once_t device_own_once = PTHREAD_ONCE_INIT;

/* The loader has the program's argv[0] alone, which may be no path. */
static void device_find_own(void)
{
    static const char here = 0;
    Dl_info info;
    struct link_map *map;
    char file[PATH_MAX];
    if (dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 ||
        realpath(map->l_name[0] != '\0' ? map->l_name : "/proc/self/exe", file) == NULL)
        return;
    char *slash = strrchr(file, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    memcpy(device_own, file, sizeof(device_own));
}

/* The folders to search, joined by ':'; "" where they are unknown. */
static void device_folders(char *folders, size_t bytes)
{
    const char *named = getenv("TESSERA_MODULE_PATH");
    folders[0] = '\0';
    if (named != NULL && named[0] != '\0') {
        snprintf(folders, bytes, "%s", named);
        return;
    }
    pthread_once(&device_own_once, device_find_own);
    if (device_own[0] != '\0')
        snprintf(folders, bytes, "%s:%s/tessera:%s/../" TESS_LIBDIR "/tessera", device_own,
                 device_own, device_own);
}

/* The first file of that module in `folders`. */
static bool device_locate(const char *name, const char *folders, char path[PATH_MAX])
{
    while (*folders != '\0') {
        const int length = (int)strcspn(folders, ":");
        const int used = snprintf(path, PATH_MAX, "%.*s/libtessera_%s.so", length, folders, name);
        if (length > 0 && used < PATH_MAX && access(path, F_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

/* What was last asked: a plan asks thousands of times. */
static struct {
    pthread_mutex_t lock;
    char name[DEVICE_NAME_BYTES], named[4 * PATH_MAX];
    bool there;
} device_last = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool tess__module_is_there(const char *name)
{
    char folders[sizeof(device_last.named)], path[PATH_MAX];
    const char *variable = getenv("TESSERA_MODULE_PATH"), *named = variable != NULL ? variable : "";
    pthread_mutex_lock(&device_last.lock);
    bool there = device_last.there;
    if (strcmp(device_last.name, name) != 0 || strcmp(device_last.named, named) != 0) {
        snprintf(device_last.name, sizeof(device_last.name), "%s", name);
        snprintf(device_last.named, sizeof(device_last.named), "%s", named);
        device_folders(folders, sizeof(folders));
        there = device_last.there = device_locate(name, folders, path);
    }
    pthread_mutex_unlock(&device_last.lock);
    return there;
}

static bool device_driver;
static pthread_once_t device_driver_once = PTHREAD_ONCE_INIT;

static void device_find_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver != NULL)
        dlclose(driver);
    device_driver = driver != NULL;
}

bool tess__driver_is_there(void)
{
    const char *named = getenv("TESSERA_MODULE_PATH");
    if (named != NULL && named[0] != '\0')
        return true;
    pthread_once(&device_driver_once, device_find_driver);
    return device_driver;
}

/* ---- why not --------------------------------------------------------------------------------- */

/* A text that stays; NULL: no memory. */
static char *device_text(const char *format, ...) TESS_PRINTF(1, 2);

static char *device_text(const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    return text;
}

/* Of the loader's message: what is part of it, and what a user can do about that. */
struct device_cause {
    const char *part, *what, *remedy;
};

static const struct device_cause device_unresolved[] = {
    {"undefined symbol: nccl", "it needs a newer NCCL than the one found",
     "install the NCCL that it was built with, or newer, and put its folder into LD_LIBRARY_PATH"},
    {"undefined symbol: cublas", "it needs a newer cuBLAS than the one found",
     "install the cuBLAS that it was built with and put its folder into LD_LIBRARY_PATH"},
    {"undefined symbol: tess", "it was built with another version of libtessera",
     "build and install both together"},
    {"", "the file cannot be loaded", "build or install it again"},
};

#define DEVICE_MISSING "a library that it needs is missing"

static const struct device_cause device_missing[] = {
    {"libcublas", DEVICE_MISSING,
     "install cuBLAS of the CUDA toolkit (or pip's nvidia-cublas) and put its folder into "
     "LD_LIBRARY_PATH"},
    {"libnccl", DEVICE_MISSING,
     "install NCCL (libnccl2, or pip's nvidia-nccl-cu13) and put its folder into LD_LIBRARY_PATH"},
    {"libmpi", DEVICE_MISSING,
     "install the MPI library (Debian: libopenmpi3, libmpich12) or put its folder into "
     "LD_LIBRARY_PATH"},
    {"libtessera", DEVICE_MISSING,
     "link it without libtessera, whose functions are in the program, or put the library's folder "
     "into LD_LIBRARY_PATH"},
    {"libcud", DEVICE_MISSING,
     "install the CUDA toolkit's run-time libraries and put their folder into LD_LIBRARY_PATH"},
    {"", DEVICE_MISSING, "install what is missing, or put its folder into LD_LIBRARY_PATH"},
};

/* The loader's message, and what a user can do about it. */
static char *device_explain(const char *path, const char *word)
{
    bool missing = strstr(word, "cannot open shared object file") != NULL &&
                   strncmp(word, path, strlen(path)) != 0;
    const struct device_cause *cause = missing ? device_missing : device_unresolved;
    while (strstr(word, cause->part) == NULL)
        cause++;
    return device_text("%s: %s: %s (%s)", path, cause->what, cause->remedy, word);
}

/*
 * Does the file hold all that its ELF header describes? The loader maps what a program header
 * gives without a check, and touching pages beyond the end of an incomplete copy is fatal. The
 * section headers are the last thing in a file.
 */
static bool device_is_whole(const char *path)
{
    ElfW(Ehdr) header;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return true; /* the loader's message gives the reason */
    bool whole = fread(&header, sizeof(header), 1, file) == 1 && fseek(file, 0, SEEK_END) == 0;
    const long bytes = whole ? ftell(file) : -1;
    whole = bytes >= 0 && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
            header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize <= (uint64_t)bytes;
    fclose(file);
    return whole;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Everything is resolved at once: a library that is too old is found here, not in mid-training.
 * NULL: it cannot be opened, because of *why_out. */
static void *device_load(const char *path, char **why_out)
{
    if (!device_is_whole(path)) {
        *why_out = device_text("%s: the file is damaged: build or install it again", path);
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *word = dlerror();
        *why_out = device_explain(path, word != NULL ? word : "the loader gives no reason");
    }
    return handle;
}

static void device_open(struct device_module *module)
{
    char folders[4 * PATH_MAX], path[PATH_MAX];
    device_folders(folders, sizeof(folders));
    if (!device_locate(module->name, folders, path)) {
        const bool mpi = strncmp(module->name, "mpi_", 4) == 0;
        module->why = device_text("libtessera_%s.so is not installed: %s%s%s and install it, or "
                                  "name its folder in TESSERA_MODULE_PATH (searched: %s)",
                                  module->name,
                                  mpi ? "known but not built: build where that MPI's development "
                                        "package is installed (-DTESS_MPI=ON)"
                                      : "build with the preset '",
                                  mpi ? "" : module->name, mpi ? "" : "'",
                                  folders[0] != '\0' ? folders : "nowhere");
        return;
    }
    void *handle = device_load(path, &module->why);
    if (handle == NULL)
        return;
    const struct tess_module *found = dlsym(handle, "tess_module");
    if (found == NULL)
        module->why = device_text(
            "%s: it exports no tess_module, so it is no module of Tessera: install it again", path);
    else if (found->abi != TESS_ABI)
        module->why = device_text(
            "%s: it was built for ABI %u, this library has %u: build and install both together",
            path, found->abi, TESS_ABI);
    else
        module->module = found;
    if (module->module == NULL)
        dlclose(handle);
}

/* The state of the module; the first call opens it, others wait. NULL: no room. */
static const struct device_module *device_ask(const char *name)
{
    pthread_mutex_lock(&device.lock);
    struct device_module *found = NULL;
    for (int i = 0; i < device.count && found == NULL; i++)
        if (strcmp(device.module[i].name, name) == 0)
            found = &device.module[i];
    if (found == NULL && device.count < DEVICE_MODULES_MAX && strlen(name) < DEVICE_NAME_BYTES &&
        strchr(name, '/') == NULL) {
        found = &device.module[device.count++];
        snprintf(found->name, sizeof(found->name), "%s", name);
        device_open(found);
    }
    pthread_mutex_unlock(&device.lock);
    return found;
}

static const char *device_why(const struct device_module *module)
{
    if (module == NULL)
        return "there is no such module";
    return module->why != NULL ? module->why : "no memory for the reason why it cannot be loaded";
}

const struct tess_module *tess_module_find(const char *name, char *why, size_t why_bytes)
{
    const struct device_module *found = device_ask(name);
    if (found != NULL && found->module != NULL)
        return found->module;
    if (why_bytes > 0)
        snprintf(why, why_bytes, "%s", device_why(found));
    return NULL;
}

enum tess_status tess_module_get(const char *name, const struct tess_module **module_out)
{
    const struct device_module *found = device_ask(name);
    if (found == NULL || found->module == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "module %s: %s", name, device_why(found));
    *module_out = found->module;
    return TESS_OK;
}

enum tess_status tess_registry_add_plugin(const char *path)
{
    char file[PATH_MAX];
    if (realpath(path, file) == NULL) /* the loader would search a name without '/' elsewhere */
        TESS_FAIL(TESS_ERR_USAGE, "plugin %s: %s: give the path of a shared object", path,
                  strerror(errno));
    char *why = NULL;
    void *handle = device_load(file, &why);
    if (handle == NULL) {
        tess_fail(TESS_ERR_USAGE, "plugin %s", why != NULL ? why : file);
        free(why);
        return TESS_ERR_USAGE;
    }
    enum tess_status (*add)(void);
    *(void **)&add = dlsym(handle, "tess_plugin");
    if (add != NULL)
        return add();
    dlclose(handle);
    TESS_FAIL(TESS_ERR_USAGE,
              "plugin %s: it exports no function tess_plugin: define 'enum tess_status "
              "tess_plugin(void)', which adds its parts (tessera/registry.h)",
              file);
}
