/*
 * Sets of images in a folder: which kind it is. Of folders of classes: which pictures there are,
 * which class each has and which are for validation. Everything is in the order of names' bytes, so
 * that the set is the same on every machine.
 *
 *     FOLDER/train/CLASS/...png    or    FOLDER/CLASS/...png
 *     FOLDER/val/CLASS/...png            every tenth picture of a class is for validation
 */
#include "data/data_images.h"

#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define FOLDER_CLASSES_MAX 65536 /* a label has 16 bits */
#define FOLDER_DEEP_MAX    8
#define FOLDER_TENTH       10

struct folder {
    int32_t size;
    struct tess__names class, file[2]; /* paths for training, for validation */
    int32_t *label[2];                 /* [file.count] */
};

static enum tess_status folder_join(const char *folder, const char *name, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s: a path in it is too long", folder);
    return TESS_OK;
}

static bool folder_is(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* Names that are not hidden, sorted. */
static enum tess_status folder_list(const char *path, struct tess__names *names)
{
    enum tess_status status = TESS_OK;
    DIR *list = opendir(path);
    if (list == NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot read the folder %s: %s", path, strerror(errno));
    for (struct dirent *entry; status == TESS_OK && (entry = readdir(list)) != NULL;)
        if (entry->d_name[0] != '.')
            status = tess__names_add(names, entry->d_name);
    closedir(list);
    tess__names_sort(names, 0);
    return status;
}

static bool folder_ends(const char *name, const char *const *end)
{
    const char *dot = strrchr(name, '.');
    for (; dot != NULL && *end != NULL; end++)
        if (strcasecmp(dot + 1, *end) == 0)
            return true;
    return false;
}

/* ---- pictures -------------------------------------------------------------------------------- */

static enum tess_status folder_add_name(const char *path, const char *name, int deep,
                                        struct tess__names *found);

/* All pictures below a folder. */
static enum tess_status folder_add(const char *folder, int deep, struct tess__names *found)
{
    struct tess__names names = {0};
    enum tess_status status = folder_list(folder, &names);
    for (int32_t i = 0; i < names.count && status == TESS_OK; i++) {
        char path[PATH_MAX];
        status = folder_join(folder, names.name[i], path);
        if (status == TESS_OK)
            status = folder_add_name(path, names.name[i], deep, found);
    }
    tess__names_close(&names);
    return status;
}

static enum tess_status folder_add_name(const char *path, const char *name, int deep,
                                        struct tess__names *found)
{
    static const char *const picture[] = {"png", "jpg", "jpeg", NULL};
    static const char *const other[] = {"bmp", "gif", "webp", "tif",  "tiff", "ppm",  "pgm",
                                        "pbm", "pnm", "heic", "avif", "jp2",  "jfif", NULL};
    if (folder_is(path) && deep == FOLDER_DEEP_MAX)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: more than %d folders below a class's: is it a link to one above?", path,
                  FOLDER_DEEP_MAX);
    if (folder_is(path))
        return folder_add(path, deep + 1, found);
    if (folder_ends(name, picture))
        return tess__names_add(found, path);
    if (folder_ends(name, other))
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: PNG and JPEG are read of images: convert it, convert FILE FILE.png "
                  "(ImageMagick), or remove it",
                  path);
    return TESS_OK; /* notes, lists of labels ... */
}

/* ---- classes --------------------------------------------------------------------------------- */

/* The sub-folders. */
static enum tess_status folder_classes(const char *folder, struct tess__names *class)
{
    struct tess__names names = {0};
    enum tess_status status = folder_list(folder, &names);
    for (int32_t i = 0; i < names.count && status == TESS_OK; i++) {
        char path[PATH_MAX];
        status = folder_join(folder, names.name[i], path);
        if (status == TESS_OK && folder_is(path))
            status = tess__names_add(class, names.name[i]);
    }
    tess__names_close(&names);
    if (status == TESS_OK && class->count == 0)
        status = tess_fail(TESS_ERR_DATA, "%s: no folders of classes in it", folder);
    if (status == TESS_OK && class->count > FOLDER_CLASSES_MAX)
        status = tess_fail(TESS_ERR_UNSUPPORTED, "%s: %d classes: at most %d are read", folder,
                           class->count, FOLDER_CLASSES_MAX);
    return status;
}

static enum tess_status folder_label(struct folder *set, int part, int32_t label)
{
    const int32_t count = set->file[part].count;
    int32_t *grown = realloc(set->label[part], ((size_t)count + 1) * sizeof(*grown));
    if (grown == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the labels of %d images", count);
    set->label[part] = grown;
    grown[count] = label;
    return TESS_OK;
}

/* The pictures of one class; `splits`: every tenth is for validation. */
static enum tess_status folder_read_class(struct folder *set, const char *folder, int32_t label,
                                          int part, bool splits)
{
    struct tess__names found = {0};
    char path[PATH_MAX];
    TESS_TRY(folder_join(folder, set->class.name[label], path));
    enum tess_status status = folder_add(path, 0, &found);
    if (status == TESS_OK && found.count == 0)
        status = tess_fail(TESS_ERR_DATA, "%s: no PNG or JPEG images of this class in it", path);
    for (int32_t i = 0; i < found.count && status == TESS_OK; i++) {
        const int to = splits && i % FOLDER_TENTH == FOLDER_TENTH - 1 ? 1 : part;
        status = folder_label(set, to, label);
        if (status == TESS_OK)
            status = tess__names_add(&set->file[to], found.name[i]);
    }
    tess__names_close(&found);
    return status;
}

/* The classes of a folder for validation are some of those of training. */
static enum tess_status folder_read_validation(struct folder *set, const char *folder)
{
    struct tess__names class = {0};
    enum tess_status status = folder_classes(folder, &class);
    for (int32_t i = 0; i < class.count && status == TESS_OK; i++) {
        int32_t label = 0;
        while (label < set->class.count && strcmp(set->class.name[label], class.name[i]) != 0)
            label++;
        status =
            label < set->class.count
                ? folder_read_class(set, folder, label, 1, false)
                : tess_fail(TESS_ERR_DATA, "%s/%s: a class that the training images do not have",
                            folder, class.name[i]);
    }
    tess__names_close(&class);
    return status;
}

static enum tess_status folder_read(struct folder *set, const char *folder)
{
    static const char *const validation[] = {"val", "valid", "validation", "test"};
    char train[PATH_MAX], test[PATH_MAX] = "";
    TESS_TRY(folder_join(folder, "train", train));
    for (size_t i = 0; i < 4 && !folder_is(test); i++)
        TESS_TRY(folder_join(folder, validation[i], test));
    const bool own = folder_is(train), splits = !own || !folder_is(test);
    if (!own)
        snprintf(train, sizeof(train), "%s", folder);
    TESS_TRY(folder_classes(train, &set->class));
    for (int32_t label = 0; label < set->class.count; label++)
        TESS_TRY(folder_read_class(set, train, label, 0, splits));
    if (!splits)
        return folder_read_validation(set, test);
    if (set->file[1].count == 0)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: no class has %d images, of which the last would be for validation: give "
                  "images for validation, %s/train/CLASS and %s/val/CLASS",
                  train, FOLDER_TENTH, folder, folder);
    return TESS_OK;
}

/* ---- the set --------------------------------------------------------------------------------- */

static enum tess_status folder_load(const struct folder *set, struct tess_dataset **dataset_out)
{
    const int64_t train = set->file[0].count, test = set->file[1].count;
    struct tess__picture_name *name = calloc((size_t)(train + test), sizeof(*name));
    if (name == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of %lld images",
                  (long long)(train + test));
    for (int64_t i = 0; i < train + test; i++) {
        const int part = i >= train;
        const int64_t at = part ? i - train : i;
        name[i] =
            (struct tess__picture_name){set->file[part].name[at], (uint16_t)set->label[part][at]};
    }
    const enum tess_status status =
        tess__pictures_open(name, train, test, set->class.count, set->size, dataset_out);
    free(name);
    return status;
}

static bool folder_has_folders(const char *folder)
{
    bool found = false;
    DIR *list = opendir(folder);
    struct dirent *entry;
    char path[PATH_MAX];
    while (list != NULL && !found && (entry = readdir(list)) != NULL)
        found = entry->d_name[0] != '.' &&
                snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) < PATH_MAX &&
                folder_is(path);
    if (list != NULL)
        closedir(list);
    return found;
}

/* Sub-folders of classes, or train/ and val/ (valid/, validation/, test/) with such. */
static enum tess_status folder_open(const char *folder, int32_t size,
                                    struct tess_dataset **dataset_out)
{
    struct folder set = {.size = size};
    enum tess_status status = folder_read(&set, folder);
    if (status == TESS_OK)
        status = folder_load(&set, dataset_out);
    tess__names_close(&set.class);
    for (int part = 0; part < 2; part++) {
        tess__names_close(&set.file[part]);
        free(set.label[part]);
    }
    return status;
}

enum tess_status tess_dataset_open_images(const char *folder, int32_t size,
                                          struct tess_dataset **dataset_out)
{
    const bool idx = tess__idx_is_there(folder), cifar = !idx && tess__cifar_is_there(folder);
    if (!idx && !cifar && folder_has_folders(folder))
        return folder_open(folder, size, dataset_out);
    if (size > 0 && (idx || cifar))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--data.size scales the images of folders of classes, and %s has none: leave it "
                  "out",
                  folder);
    return cifar ? tess__cifar_open(folder, dataset_out)
                 : tess_dataset_open_idx(folder, dataset_out);
}
