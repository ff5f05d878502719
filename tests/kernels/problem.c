/* The check of one forward/backward pair; see problem.h. */
#include "problem.h"

#include <math.h>
#include <stdlib.h>

void problem_open(struct problem *b, struct draw *draw)
{
    for (int i = 0; i < b->part_count; i++) {
        if (b->p[i] == NULL)
            b->p[i] = draw_reals(draw, TESS_F32, b->count[i]);
        b->q[i] = draw_reals(draw, TESS_F32, b->count[i]);
        b->p_dev[i] = device_put_real(b->device, TESS_F32, b->p[i], b->count[i]);
        b->grad_dev[i] = device_array(b->device, (size_t)b->count[i] * sizeof(float));
    }
    b->r = draw_reals(draw, TESS_F32, b->out);
    b->r_dev = device_put_real(b->device, TESS_F32, b->r, b->out);
    b->y = device_array(b->device, (size_t)b->out * sizeof(float));
    b->which = device_array(b->device, (size_t)b->out);
    for (int i = 0; i < 4; i++)
        b->aux[i] = device_array(b->device, (size_t)(b->out + 64) * sizeof(float));
}

/* s(t) */
static double problem_value(struct problem *b, double t)
{
    for (int i = 0; i < b->part_count; i++) {
        float *moved = floats(b->count[i]);
        for (int64_t k = 0; k < b->count[i]; k++)
            moved[k] = (float)(b->p[i][k] + t * b->q[i][k]);
        device_put(b->device, b->p_dev[i], moved, (size_t)b->count[i] * sizeof(float));
        free(moved);
    }
    b->op.weight_token += 1; /* the weights changed */
    b->forward(b);
    double *y = reals(b->out), sum = 0;
    device_get_real(b->device, TESS_F32, b->y, y, b->out);
    for (int64_t i = 0; i < b->out; i++)
        sum += b->r[i] * y[i];
    free(y);
    return sum;
}

static double problem_difference(struct problem *b, double h)
{
    return (problem_value(b, h) - problem_value(b, -h)) / (2 * h);
}

void problem_check(struct problem *b)
{
    double slope = (4 * problem_difference(b, STEP / 2) - problem_difference(b, STEP)) / 3;
    problem_value(b, 0);
    b->backward(b);
    double product = 0, q_norm = 0, r_norm = 0;
    for (int i = 0; i < b->part_count; i++) {
        double *grad = reals(b->count[i]);
        device_get_real(b->device, TESS_F32, b->grad_dev[i], grad, b->count[i]);
        for (int64_t k = 0; k < b->count[i]; k++) {
            product += grad[k] * b->q[i][k];
            q_norm += b->q[i][k] * b->q[i][k];
        }
        free(grad);
    }
    for (int64_t i = 0; i < b->out; i++)
        r_norm += b->r[i] * b->r[i];
    double bound = TOLERANCE * sqrt(q_norm * r_norm);
    check_close(b->name, &product, &slope, &bound, 1);
    assert_true(fabs(slope) > 2 * bound); /* else the test would prove nothing */
    for (int i = 0; i < b->part_count; i++) {
        free(b->p[i]);
        free(b->q[i]);
    }
    free(b->r);
}
