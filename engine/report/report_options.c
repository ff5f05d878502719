/*
 * The options of every run, side by side: those that differ first, then all of them. Names and
 * values come from files and are escaped.
 */
#include "report/report_section.h"

#include <string.h>

/* Runs with options, and the names of all of them in the order of their first mention. */
struct options_table {
    const struct tess__report_run **run;
    size_t run_count;
    const char **name; /* borrowed from the documents */
    size_t name_count;
};

/* An option of a run as text; NULL when it has none of that name. Values are text in our files. */
static const char *options_value(const struct tess__report_run *run, const char *name)
{
    return json_string_value(json_object_get(run->options, name));
}

static bool options_differ(const struct options_table *table, const char *name)
{
    for (size_t i = 1; i < table->run_count; i++)
        if (!tess__report_same(options_value(table->run[i], name),
                               options_value(table->run[0], name)))
            return true;
    return false;
}

static void options_collect(struct tess__report *report, struct options_table *table)
{
    for (size_t i = 0; i < report->run_count; i++) {
        const char *name;
        json_t *value;
        if (!report->run[i].options)
            continue;
        *(const struct tess__report_run **)tess__report_add(report, &table->run, &table->run_count,
                                                            sizeof(*table->run)) = &report->run[i];
        json_object_foreach(report->run[i].options, name, value)
        {
            bool seen = !json_is_string(value);
            for (size_t r = 0; r + 1 < table->run_count && !seen; r++)
                seen = json_is_string(json_object_get(table->run[r]->options, name));
            if (!seen)
                *(const char **)tess__report_add(report, &table->name, &table->name_count,
                                                 sizeof(*table->name)) = name;
        }
    }
}

/* One row for each option that is (or, with all, whether or not it is) different between runs. */
static void options_rows(const struct options_table *table, bool all, struct tess__html *html)
{
    tess__html_add(html,
                   "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"options "
                   "of the runs\"><table class=\"options\"><thead><tr><th scope=\"col\" "
                   "class=\"text\">option</th>");
    for (size_t i = 0; i < table->run_count; i++)
        tess__html_put_short(html, "<th scope=\"col\" class=\"text\">", table->run[i]->name,
                             TESS__PLOT_NAME_MAX, "</th>");
    tess__html_add(html, "</tr></thead>\n<tbody>\n");
    for (size_t n = 0; n < table->name_count; n++) {
        const char *name = table->name[n];
        bool differs = options_differ(table, name);
        /* The folder differs in every run and is left out. */
        if (!all && (!differs || strcmp(name, "run") == 0))
            continue;
        tess__html_add(html, differs && all ? "<tr class=\"differs\"><th scope=\"row\">"
                                            : "<tr><th scope=\"row\">");
        tess__html_put_short(html, "", name, 60, "</th>");
        for (size_t i = 0; i < table->run_count; i++)
            tess__html_put_short(html, "<td class=\"text\">", options_value(table->run[i], name),
                                 120, "</td>");
        tess__html_add(html, "</tr>\n");
    }
    tess__html_add(html, "</tbody></table></div>\n");
}

void tess__report_options(struct tess__report *report, struct tess__html *html)
{
    struct options_table table = {0};
    size_t different = 0;
    options_collect(report, &table);
    if (table.name_count == 0)
        return;
    for (size_t n = 0; n < table.name_count; n++)
        different += strcmp(table.name[n], "run") != 0 && options_differ(&table, table.name[n]);
    tess__html_add(html, "<div class=\"card\">");
    if (different > 0) {
        tess__html_print(html, "<h3>What differs between the runs</h3><p>%zu of %zu options.</p>",
                         different, table.name_count);
        options_rows(&table, false, html);
    } else if (table.run_count > 1) {
        tess__html_add(html, "<p>All runs have the same options.</p>");
    }
    tess__html_print(html, "<details class=\"all\"><summary>All %zu options</summary>\n",
                     table.name_count);
    options_rows(&table, true, html);
    tess__html_add(html, "</details></div>\n");
}
