/* The noting communicator; see note.h. */
#include "note.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static enum tess_status note_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                  uint64_t *ticket_out)
{
    struct note_comm *note = (struct note_comm *)comm;
    assert_true(note->count < NOTE_MAX);
    *ticket_out = (uint64_t)note->count;
    note->call[note->count++] = *call;
    return TESS_OK;
}

static enum tess_status note_wait(struct tess_comm *comm, uint64_t ticket)
{
    struct note_comm *note = (struct note_comm *)comm;
    assert_true(ticket < (uint64_t)note->count);
    note->done[ticket] = true;
    return TESS_OK;
}

static const struct tess_comm_ops note_ops = {.call = note_call, .wait = note_wait};

void note_open(struct note_comm *note, int32_t rank, int32_t rank_count)
{
    *note = (struct note_comm){.comm = {.ops = &note_ops, .rank = rank, .rank_count = rank_count}};
}
