/* The pace of ranks and links as a line of metrics.jsonl (slow.h). */
#include "run/record.h"
#include "run/slow.h"
#include "text/json.h"

static json_t *record_by_axis(const double value[TESS_AXIS_COUNT])
{
    json_t *axes = json_object();
    for (int axis = 0; axes && axis < TESS_AXIS_COUNT; axis++)
        json_object_set_new(axes, tess__record_axis_name[axis], tess__json_number(value[axis]));
    return axes;
}

static json_t *record_rank(const struct tess__slow_rank *rank, int32_t number, const char *host)
{
    const char *in = rank->late ? tess__slow_cause_name[rank->cause] : NULL;
    return json_pack("{s:i, s:s, s:o, s:o, s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "rank", number, "host", host, "score", tess__json_number(rank->score),
                     "late_s", tess__json_number(rank->late_s), "late_in", in, "since",
                     rank->late ? json_integer((json_int_t)rank->since) : json_null(), "step_s",
                     tess__json_number(rank->step_s), "own_s", tess__json_number(rank->own_s),
                     "data_s", tess__json_number(rank->part_s[TESS__PACE_DATA]), "compute_s",
                     tess__json_number(rank->part_s[TESS__PACE_COMPUTE]), "optim_s",
                     tess__json_number(rank->part_s[TESS__PACE_OPTIM]), "other_s",
                     tess__json_number(rank->part_s[TESS__PACE_OTHER]), "processor_s",
                     tess__json_number(rank->delay_s), "wait_axis_s", record_by_axis(rank->wait_s),
                     "sent_axis_bytes", record_by_axis(rank->sent_bytes));
}

static json_t *record_link(const struct tess__slow_link *link)
{
    return json_pack(
        "{s:i, s:i, s:s?, s:o, s:o, s:o, s:o, s:o}", "from", link->from, "to", link->to, "axis",
        link->axis < TESS_AXIS_COUNT ? tess__record_axis_name[link->axis] : NULL, "bytes_per_s",
        tess__json_number(link->bytes_per_s), "busy_s", tess__json_number(link->busy_s), "score",
        tess__json_number(link->score), "late_s", tess__json_number(link->late_s), "since",
        link->slow ? json_integer((json_int_t)link->since) : json_null());
}

/* NULL where nothing is named: there is no field then. */
static json_t *record_network(const struct tess__slow_net_found *found)
{
    if (found->name == NULL)
        return NULL;
    return json_pack("{s:s, s:I, s:i, s:o, s:o, s:o}", "name", found->name, "since",
                     (json_int_t)found->since, "pairs", found->pairs, "bytes_per_s",
                     tess__json_number(found->bytes_per_s), "usual_bytes_per_s",
                     tess__json_number(found->usual_per_s), "late_s",
                     tess__json_number(found->late_s));
}

json_t *tess__slow_record(const struct tess__slow *slow, const struct tess_mesh *mesh,
                          const char *const *host)
{
    json_t *ranks = json_array(), *links = json_array();
    struct tess__slow_link link;
    for (int32_t r = 0; ranks && r < mesh->rank_count; r++)
        json_array_append_new(ranks, record_rank(tess__slow_rank_of(slow, r), r, host[r]));
    for (int32_t i = 0; links && tess__slow_link_of(slow, i, &link); i++)
        json_array_append_new(links, record_link(&link));
    return json_pack("{s:{s:I, s:i, s:o, s:o, s:o*}}", "pace", "step",
                     (json_int_t)tess__slow_step(slow), "steps", TESS__PACE_STEPS, "ranks", ranks,
                     "links", links, "network", record_network(tess__slow_network(slow)));
}
