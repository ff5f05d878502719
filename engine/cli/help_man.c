/* Man pages, from the option tables: tessera(1), and one of each command. */
#include "cli/help.h"

#include "base/options_set.h"
#include "tessera/check.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Text for troff, in which a minus that may be copied, a backslash, and a point or an apostrophe at
 * the start of a line are written otherwise. */
static void man_text(FILE *page, const char *text)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", page);
        if (*text == '-')
            fputs("\\-", page);
        else if (*text == '\\')
            fputs("\\e", page);
        else
            fputc(*text, page);
        start = *text == '\n';
    }
}

/* "tessera-bench-comm", "tessera-plan-accuracy" */
static void man_name(const struct tess__command *command, char *name, size_t name_bytes)
{
    const char *second = strchr(command->name, ' ');
    snprintf(name, name_bytes, "tessera-%.*s%s%s", (int)strcspn(command->name, " "), command->name,
             second ? "-" : "", second ? second + strspn(second, " -") : "");
}

static FILE *man_begin(const char *folder, const char *name, const char *summary)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s.1", folder, name);
    FILE *page = fopen(path, "w");
    if (!page) {
        tess_fail(TESS_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        return NULL;
    }
    fprintf(page, ".TH %s 1 \"\" \"tessera %s\"\n.nh\n.SH NAME\n", name, TESS_VERSION);
    man_text(page, name);
    fputs(" \\- ", page);
    man_text(page, summary);
    fputc('\n', page);
    return page;
}

static int man_end(FILE *page)
{
    const bool failed = ferror(page) != 0;
    if (fclose(page) == 0 && !failed)
        return 0;
    return tess_status_exit_code(tess_fail(TESS_ERR_IO, "cannot write a man page"));
}

/* ---- options -------------------------------------------------------------------------------- */

struct man_options {
    FILE *page;
    const char *only;          /* NULL: all, but for `not_of`'s */
    const char *const *not_of; /* groups that have their own call */
    int not_of_count;
};

static bool man_skips(const struct man_options *man, const char *group)
{
    if (man->only)
        return strcmp(man->only, group) != 0;
    for (int i = 0; i < man->not_of_count; i++)
        if (strcmp(man->not_of[i], group) == 0)
            return true;
    return false;
}

static enum tess_status man_show(const struct tess_options *options, void *context)
{
    const struct man_options *man = context;
    for (int i = 0; i < options->entry_count; i++) {
        const char *group = options->entry[i].group;
        bool printed = man_skips(man, group);
        for (int j = 0; j < i && !printed; j++)
            printed = strcmp(options->entry[j].group, group) == 0;
        if (printed)
            continue;
        if (*group)
            fprintf(man->page, ".SS \"%s\"\n", group);
        for (int j = i; j < options->entry_count; j++) {
            const struct tess__option_entry *entry = &options->entry[j];
            char left[TESS__NAME_MAX + 32], right[2048];
            if (strcmp(entry->group, group) != 0)
                continue;
            tess__help_left(entry, left, sizeof(left));
            tess__help_right(entry->shown, right, sizeof(right));
            fputs(".TP\n.B ", man->page);
            man_text(man->page, left + strspn(left, " "));
            fputc('\n', man->page);
            man_text(man->page, right);
            fputc('\n', man->page);
        }
    }
    return TESS_OK;
}

/* The options of each strategy, model and optimizer. */
static int man_parts(const struct tess__command *command, struct man_options *man, bool list_only)
{
    static const char *part[128];
    man->not_of = part;
    man->not_of_count = 0;
    for (int k = 0; k < TESS__CHOOSERS; k++) {
        int count = 0, code = 0;
        const char *const *name = tess_registry_names(tess__namer_list[k].kind, &count);
        for (int i = 0; i < count && man->not_of_count < 128; i++) {
            char *words[] = {(char *)tess__namer_list[k].option, (char *)name[i]};
            part[man->not_of_count++] = man->only = name[i];
            if (!list_only)
                code = tess__command_call(command, 2, words, man_show, man);
            if (code != 0)
                return code;
        }
    }
    man->only = NULL;
    return 0;
}

static int man_options(const struct tess__command *command, FILE *page)
{
    struct man_options man = {.page = page};
    fputs(".SH OPTIONS\n", page);
    if (command->reads == TESS__READS_SERIES) {
        man.only = "";
        fputs("Beside these, all options of\n.BR tessera\\-train (1).\n", page);
    } else if (command->reads == TESS__READS_TRAINING) {
        (void)man_parts(command, &man, true);
    }
    int code = tess__command_call(command, 0, NULL, man_show, &man);
    if (code == 0 && command->reads == TESS__READS_TRAINING)
        code = man_parts(command, &man, false);
    return code;
}

/* ---- pages ---------------------------------------------------------------------------------- */

static int man_command(const char *folder, const struct tess__command *command)
{
    char name[128];
    man_name(command, name, sizeof(name));
    FILE *page = man_begin(folder, name, command->summary);
    if (!page)
        return tess_status_exit_code(TESS_ERR_IO);
    fputs(".SH DESCRIPTION\n.nf\n", page);
    man_text(page, command->usage);
    fputs("\n.fi\n", page);
    const int code = man_options(command, page);
    fputs(".SH \"EXIT STATUS\"\n0: done. 1: the run failed. 2: a bad option or configuration. 130: "
          "interrupted.\n.SH \"SEE ALSO\"\n.BR tessera (1)\n",
          page);
    const int end = man_end(page);
    return code != 0 ? code : end;
}

int tess__help_man(const char *folder)
{
    const struct tess__command *command;
    int code = 0;
    FILE *page = man_begin(folder, "tessera", "a parallel training engine");
    if (!page)
        return tess_status_exit_code(TESS_ERR_IO);
    fputs(".SH SYNOPSIS\n.B tessera\n.I COMMAND\n[\\fICONFIG\\fR] [\\-\\-option value ...]\n"
          ".SH DESCRIPTION\nTrains a model on several ranks under a parallel strategy, or several "
          "at once, with the same bits under all of them, and shows what each costs in memory and "
          "communication.\n.SH COMMANDS\n",
          page);
    for (int i = 0; (command = tess__command_at(i)) != NULL; i++) {
        char name[128];
        man_name(command, name, sizeof(name));
        fputs(".TP\n.BR ", page);
        man_text(page, name);
        fputs(" (1)\n", page);
        man_text(page, command->summary);
        fputc('\n', page);
    }
    code = man_end(page);
    for (int i = 0; code == 0 && (command = tess__command_at(i)) != NULL; i++)
        code = man_command(folder, command);
    return code;
}
