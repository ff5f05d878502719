/* Values as JSON has them. Each is a new reference, NULL when out of memory. */
#ifndef TESSERA_TEXT_JSON_H
#define TESSERA_TEXT_JSON_H

#include <jansson.h>
#include <stdint.h>

/* JSON has no NaN and no infinity: they become null. */
json_t *tess__json_number(double value);
/* 16 hexadecimal digits. */
json_t *tess__json_hash(uint64_t hash);

#endif
