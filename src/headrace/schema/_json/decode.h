/* From JSON text to columns that grow, by a plan. */

#ifndef HEADRACE_JSON_DECODE_H
#define HEADRACE_JSON_DECODE_H

#include "codec.h"
#include "floats.h"

typedef struct {
    const hr_node *nodes;
    hr_column *columns;
    const hr_constant *constants;
    const uint8_t *at, *end;
    int32_t failed_node;
    int64_t missing_left;  /* properties that may still be missing in this value */
    int64_t repeat_left;   /* bytes of maps that may still be read again, because of repeated keys */
    uint8_t *scratch;      /* strings without their escapes */
    int64_t scratch_capacity;
} hr_decoder;

static inline int hr_start_batch(hr_decoder *d) {
    (void)d;
    return 0;
}

static inline void hr_start_row(hr_decoder *d) { (void)d; }

static inline void hr_end_batch(hr_decoder *d) {
    free(d->scratch);
    d->scratch = NULL;
}

static int hr_decode(hr_decoder *d, int32_t index);

static int hr_scratch(hr_decoder *d, int64_t size) {
    if (size <= d->scratch_capacity) return 0;
    HR_TRY(hr_resize((void **)&d->scratch, size * 2));
    d->scratch_capacity = size * 2;
    return 0;
}

/* Read a string without its escapes; it is in the value or in the scratch memory. */
static int hr_read_string(hr_decoder *d, hr_string *string) {
    const uint8_t *start = d->at;
    HR_TRY(hr_scan_string(&d->at, d->end, string));
    if (HR_UNLIKELY(string->is_escaped)) {
        int code;
        HR_TRY(hr_scratch(d, string->size));
        code = hr_unescape(string, d->scratch, &string->size);
        string->data = d->scratch;
        if (code) {
            d->at = start;
            return code;
        }
    }
    return 0;
}

/* ---- scalars ---- */

static int hr_decode_integer(hr_decoder *d, hr_column *column) {
    const uint8_t *start = d->at;
    hr_number number;
    uint64_t limit = 1ULL << (column->width * 8 - 1);
    int64_t value;
    HR_TRY(hr_scan_number(&d->at, d->end, &number));
    if (HR_UNLIKELY(number.exponent != 0 || !number.is_exact)) {
        if (number.mantissa == 0) number.exponent = 0;
        for (; number.exponent < 0 && number.mantissa % 10 == 0; number.exponent++) number.mantissa /= 10;
        for (; number.exponent > 0; number.exponent--)
            if (__builtin_mul_overflow(number.mantissa, (uint64_t)10, &number.mantissa)) break;
    }
    if (HR_UNLIKELY(number.exponent != 0 || !number.is_exact || number.mantissa > limit - !number.is_negative)) {
        d->at = start;
        return ERROR_INTEGER;
    }
    value = (int64_t)(number.is_negative ? 0 - number.mantissa : number.mantissa);
    HR_TRY(hr_room(column));
    switch (column->width) {
    case 1: ((int8_t *)column->data)[column->length] = (int8_t)value; break;
    case 2: ((int16_t *)column->data)[column->length] = (int16_t)value; break;
    case 4: ((int32_t *)column->data)[column->length] = (int32_t)value; break;
    default: ((int64_t *)column->data)[column->length] = value;
    }
    hr_appended(column);
    return 0;
}

static int hr_decode_number(hr_decoder *d, hr_column *column) {
    const uint8_t *start = d->at;
    hr_number number;
    double value;
    int code;
    HR_TRY(hr_scan_number(&d->at, d->end, &number));
    code = hr_to_double(&number, &value);
    if (!code && column->width == 4 && isinf((float)value)) code = ERROR_NUMBER;
    if (HR_UNLIKELY(code)) {
        d->at = start;
        return code;
    }
    HR_TRY(hr_room(column));
    if (column->width == 4) ((float *)column->data)[column->length] = (float)value;
    else ((double *)column->data)[column->length] = value;
    hr_appended(column);
    return 0;
}

/* Read the digits of a number, times 10^scale; digits after the scale must be 0. */
static int hr_read_decimal(const hr_number *number, int64_t scale, uint64_t limbs[4]) {
    const uint8_t *p = number->start, *end = p + number->size;
    int64_t zeros = number->last_exponent + scale, digits = 0, kept;
    memset(limbs, 0, 32);
    for (; p < end && (*p | 0x20) != 'e'; p++) digits += *p >= '0' && *p <= '9';
    end = p;
    kept = zeros < 0 ? digits + zeros : digits;
    for (p = number->start; p < end; p++) {
        if (*p < '0' || *p > '9') continue;
        if (kept-- > 0) {
            if (hr_times_ten(limbs, (uint64_t)(*p - '0'))) return ERROR_DECIMAL;
        } else if (*p != '0') {
            return ERROR_DECIMAL;
        }
    }
    if (!(limbs[0] | limbs[1] | limbs[2] | limbs[3])) return 0;
    for (; zeros > 0; zeros--)
        if (hr_times_ten(limbs, 0)) return ERROR_DECIMAL;
    return 0;
}

static int hr_decode_decimal(hr_decoder *d, const hr_node *node, hr_column *column) {
    const uint8_t *start = d->at;
    hr_number number;
    uint64_t limbs[4];
    int code;
    HR_TRY(hr_scan_number(&d->at, d->end, &number));
    code = hr_read_decimal(&number, node->size >> 1, limbs);
    if (!code && !hr_is_below(limbs, d->constants[node->children[0]].data)) code = ERROR_DECIMAL;
    if (code) {
        d->at = start;
        return code;
    }
    if (number.is_negative) hr_negate(limbs);
    HR_TRY(hr_room(column));
    memcpy(column->data + column->length * column->width, limbs, (size_t)column->width);
    hr_appended(column);
    return 0;
}

static int hr_base64_digit(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static int hr_decode_base64(hr_decoder *d, hr_column *column) {
    const uint8_t *start = d->at;
    hr_string string;
    uint8_t *out;
    int64_t i, size;
    HR_TRY(hr_read_string(d, &string));
    HR_TRY(hr_scratch(d, string.size));  /* it does not shrink: the string stays if it is in the scratch memory */
    if (string.is_escaped) string.data = d->scratch;
    size = string.size;
    if (size % 4) goto invalid;
    if (size && string.data[size - 1] == '=') size -= string.data[size - 2] == '=' ? 2 : 1;
    out = d->scratch;
    for (i = 0; i < size; i += 4) {
        int64_t k, count = size - i < 4 ? size - i : 4;
        uint32_t bits = 0;
        for (k = 0; k < 4; k++) {
            int digit = k < count ? hr_base64_digit(string.data[i + k]) : 0;
            if (digit < 0) goto invalid;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (k = 0; k < count - 1; k++) *out++ = (uint8_t)(bits >> (16 - 8 * k));
    }
    return hr_append_bytes(column, d->scratch, size / 4 * 3 + (size % 4 ? size % 4 - 1 : 0));
invalid:
    d->at = start;
    return ERROR_BASE64;
}

/* ---- objects and arrays ---- */

static int hr_compare(const uint8_t *a, int64_t a_size, const uint8_t *b, int64_t b_size) {
    int64_t least = a_size < b_size ? a_size : b_size;
    int order = least ? memcmp(a, b, (size_t)least) : 0;
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

/* Return the index of the property with a name; -1 if there is none. */
static int32_t hr_find_property(const hr_decoder *d, const hr_node *node, const hr_string *name) {
    int32_t count = node->child_count / 4, low = 0, high = count;
    const int32_t *sorted = node->children + 3 * count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        const hr_constant *other = &d->constants[node->children[3 * sorted[middle]]];
        int order = hr_compare(name->data, name->size, other->data, other->size);
        if (order == 0) return sorted[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}

/* Read a name and the colon. In most values the properties are in the order of the schema: `expected` is tried first. */
static inline int hr_read_name(hr_decoder *d, const hr_node *node, int32_t expected, int32_t *index) {
    hr_string name;
    hr_skip_space(&d->at, d->end);
    if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
    if (HR_UNLIKELY(*d->at != '"')) return ERROR_SYNTAX;
    if (expected < node->child_count / 4 && node->size & HR_PLAIN_NAMES) {
        const hr_constant *guess = &d->constants[node->children[3 * expected]];
        if (d->end - d->at > guess->size + 1 && d->at[guess->size + 1] == '"'
            && memcmp(d->at + 1, guess->data, (size_t)guess->size) == 0) {
            d->at += guess->size + 2;
            *index = expected;
            return hr_expect(&d->at, d->end, ':');
        }
    }
    HR_TRY(hr_read_string(d, &name));
    *index = hr_find_property(d, node, &name);
    return hr_expect(&d->at, d->end, ':');
}

/* Append what a property has that is not in the object. */
static int hr_decode_missing(hr_decoder *d, const hr_node *node, int32_t index) {
    int32_t child = node->children[3 * index + 1], action = node->children[3 * index + 2];
    const uint8_t *at = d->at, *end = d->end;
    int code;
    if (HR_UNLIKELY(--d->missing_left < 0)) return ERROR_MISSING;
    if (action == HR_MISSING_NULL) return hr_append_null(d->columns, d->nodes[child].column);
    if (action < 0) {
        d->failed_node = child;
        return ERROR_REQUIRED;
    }
    d->at = d->constants[action].data;
    d->end = d->at + d->constants[action].size;
    code = hr_decode(d, child);
    d->at = at;
    d->end = end;
    return code;
}

static int hr_decode_object(hr_decoder *d, const hr_node *node) {
    hr_column *column = &d->columns[node->column];
    int32_t count = node->child_count / 4, expected = 0, seen = 0, index;
    int64_t length = column->length;
    d->at++;
    hr_skip_space(&d->at, d->end);
    if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
    if (*d->at == '}') {
        d->at++;
    } else {
        for (;;) {
            HR_TRY(hr_read_name(d, node, expected, &index));
            if (index < 0) {
                HR_TRY(hr_skip_value(&d->at, d->end));
            } else {
                int32_t child = node->children[3 * index + 1];
                /* Of a property that is there twice, the last value counts. */
                if (HR_UNLIKELY(d->columns[d->nodes[child].column].length > length))
                    hr_truncate(d->columns, d->nodes[child].column, length);
                else
                    seen++;
                HR_TRY(hr_decode(d, child));
                expected = index + 1;
            }
            hr_skip_space(&d->at, d->end);
            if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
            if (*d->at == '}') {
                d->at++;
                break;
            }
            if (HR_UNLIKELY(*d->at != ',')) return ERROR_SYNTAX;
            d->at++;
        }
    }
    if (seen < count)
        for (index = 0; index < count; index++)
            if (d->columns[d->nodes[node->children[3 * index + 1]].column].length == length)
                HR_TRY(hr_decode_missing(d, node, index));
    HR_TRY(hr_room(column));
    hr_appended(column);
    return 0;
}

static int hr_decode_array(hr_decoder *d, const hr_node *node) {
    hr_column *column = &d->columns[node->column];
    hr_column *items = &d->columns[column->children[0]];
    HR_TRY(hr_room(column));
    d->at++;
    hr_skip_space(&d->at, d->end);
    if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
    if (*d->at == ']') {
        d->at++;
    } else {
        for (;;) {
            HR_TRY(hr_decode(d, node->children[0]));
            hr_skip_space(&d->at, d->end);
            if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
            if (*d->at == ']') {
                d->at++;
                break;
            }
            if (HR_UNLIKELY(*d->at != ',')) return ERROR_SYNTAX;
            d->at++;
        }
    }
    column->offsets[column->length + 1] = (int32_t)items->length;
    hr_appended(column);
    return 0;
}

typedef struct { const uint8_t *data; int64_t size, index; } hr_key;

static int hr_compare_keys(const void *a, const void *b) {
    const hr_key *x = a, *y = b;
    int order = hr_compare(x->data, x->size, y->data, y->size);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Mark the entries of a map whose key comes again later; `marks` stays NULL if there are none. */
static int hr_find_repeated(const hr_column *keys, int64_t first, int64_t count, uint8_t **marks) {
    hr_key *sorted;
    int64_t i;
    sorted = malloc((size_t)count * sizeof(hr_key));
    if (sorted == NULL) return FATAL_MEMORY;
    for (i = 0; i < count; i++) {
        sorted[i].data = keys->data + keys->offsets[first + i];
        sorted[i].size = keys->offsets[first + i + 1] - keys->offsets[first + i];
        sorted[i].index = i;
    }
    qsort(sorted, (size_t)count, sizeof(hr_key), hr_compare_keys);
    for (i = 0; i + 1 < count; i++) {
        if (hr_compare(sorted[i].data, sorted[i].size, sorted[i + 1].data, sorted[i + 1].size) != 0) continue;
        if (*marks == NULL && (*marks = calloc(1, (size_t)count)) == NULL) {
            free(sorted);
            return FATAL_MEMORY;
        }
        (*marks)[sorted[i].index] = 1;
    }
    free(sorted);
    return 0;
}

/* Whether one of a few keys is there twice. */
static int hr_has_repeated(const hr_column *keys, int64_t first, int64_t count) {
    int64_t i, k;
    for (i = 1; i < count; i++) {
        int64_t start = keys->offsets[first + i], size = keys->offsets[first + i + 1] - start;
        for (k = 0; k < i; k++) {
            int64_t other = keys->offsets[first + k];
            if (keys->offsets[first + k + 1] - other == size
                && memcmp(keys->data + start, keys->data + other, (size_t)size) == 0) return 1;
        }
    }
    return 0;
}

/* Read the entries of a map, except those that are marked. */
static int hr_read_entries(hr_decoder *d, const hr_node *node, hr_column *entries, const uint8_t *marks) {
    hr_column *keys = &d->columns[entries->children[0]];
    int64_t index;
    for (index = 0;; index++) {
        hr_string key;
        hr_skip_space(&d->at, d->end);
        if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
        if (HR_UNLIKELY(*d->at != '"')) return ERROR_SYNTAX;
        HR_TRY(hr_read_string(d, &key));
        if (marks != NULL && marks[index]) {
            HR_TRY(hr_expect(&d->at, d->end, ':'));
            HR_TRY(hr_skip_value(&d->at, d->end));
        } else {
            HR_TRY(hr_append_bytes(keys, key.data, key.size));
            HR_TRY(hr_expect(&d->at, d->end, ':'));
            HR_TRY(hr_decode(d, node->children[0]));
            HR_TRY(hr_room(entries));
            hr_appended(entries);
        }
        hr_skip_space(&d->at, d->end);
        if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
        if (*d->at == '}') {
            d->at++;
            return 0;
        }
        if (HR_UNLIKELY(*d->at != ',')) return ERROR_SYNTAX;
        d->at++;
    }
}

#define HR_FEW_KEYS 8

static int hr_decode_map(hr_decoder *d, const hr_node *node) {
    hr_column *column = &d->columns[node->column];
    int32_t entries_index = column->children[0];
    hr_column *entries = &d->columns[entries_index], *keys = &d->columns[entries->children[0]];
    int64_t first = entries->length, count;
    const uint8_t *start;
    HR_TRY(hr_room(column));
    d->at++;
    hr_skip_space(&d->at, d->end);
    if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
    start = d->at;
    if (*d->at == '}') {
        d->at++;
    } else {
        HR_TRY(hr_read_entries(d, node, entries, NULL));
        count = entries->length - first;
        if (count > HR_FEW_KEYS || (count > 1 && hr_has_repeated(keys, first, count))) {
            uint8_t *marks = NULL;
            int code = hr_find_repeated(keys, first, count, &marks);
            if (!code && marks != NULL) {
                d->repeat_left -= d->at - start;
                d->at = start;
                hr_truncate(d->columns, entries_index, first);
                code = d->repeat_left < 0 ? ERROR_REPEATED : hr_read_entries(d, node, entries, marks);
            }
            free(marks);
            HR_TRY(code);
        }
    }
    column->offsets[column->length + 1] = (int32_t)entries->length;
    hr_appended(column);
    return 0;
}

static int hr_decode_text(hr_decoder *d, const hr_node *node, hr_column *column, int token) {
    const uint8_t *start = d->at;
    if (!(node->size >> 1 >> token & 1)) return ERROR_TYPE;
    HR_TRY(hr_skip_value(&d->at, d->end));
    return hr_append_bytes(column, start, d->at - start);
}

/* ---- any node ---- */

static int hr_decode_union(hr_decoder *d, const hr_node *node, int token) {
    hr_column *column = &d->columns[node->column];
    const hr_node *member;
    int32_t i;
    if (token > TOKEN_BOOLEAN || node->children[token] < 0) return ERROR_TYPE;
    member = &d->nodes[node->children[token]];
    HR_TRY(hr_decode(d, member->children[0]));
    for (i = 0; i < column->child_count; i++)
        if (i != member->size) HR_TRY(hr_append_null(d->columns, column->children[i]));
    HR_TRY(hr_room(column));
    hr_appended(column);
    return 0;
}

static int hr_decode_node(hr_decoder *d, const hr_node *node) {
    static const uint8_t token_of_op[] = {
        TOKEN_NONE, TOKEN_NULL, TOKEN_BOOLEAN, TOKEN_NUMBER, TOKEN_NUMBER, TOKEN_NUMBER, TOKEN_STRING, TOKEN_STRING,
        TOKEN_NONE, TOKEN_OBJECT, TOKEN_ARRAY, TOKEN_OBJECT, TOKEN_NONE, TOKEN_NONE};
    hr_column *column;
    hr_string string;
    int token;
    if (node->op == OP_ROOT) {
        d->missing_left = HR_MISSING_MAX + HR_MISSING_PER_BYTE_MAX * (int64_t)(d->end - d->at);
        d->repeat_left = HR_REPEATED_PER_BYTE_MAX * (int64_t)(d->end - d->at);
        HR_TRY(hr_decode(d, node->children[0]));
        hr_skip_space(&d->at, d->end);
        return d->at == d->end ? 0 : ERROR_TRAILING;
    }
    column = &d->columns[node->column];
    hr_skip_space(&d->at, d->end);
    if (HR_UNLIKELY(d->at == d->end)) return ERROR_TRUNCATED;
    token = hr_token(*d->at);
    if (HR_UNLIKELY(token == TOKEN_NONE)) return ERROR_SYNTAX;
    if (token == TOKEN_NULL) {
        const uint8_t *start = d->at;
        HR_TRY(hr_scan_null(&d->at, d->end));
        if (node->size & HR_NULLABLE) return hr_append_null(d->columns, node->column);
        d->at = start;
        return ERROR_NULL;
    }
    if (HR_UNLIKELY(token != token_of_op[node->op] && token_of_op[node->op] != TOKEN_NONE)) return ERROR_TYPE;
    switch (node->op) {
    case OP_BOOLEAN: {
        uint8_t value = *d->at == 't';
        HR_TRY(hr_scan_boolean(&d->at, d->end));
        HR_TRY(hr_room(column));
        column->data[column->length] = value;
        hr_appended(column);
        return 0;
    }
    case OP_INTEGER: return hr_decode_integer(d, column);
    case OP_NUMBER: return hr_decode_number(d, column);
    case OP_DECIMAL: return hr_decode_decimal(d, node, column);
    case OP_STRING:
        HR_TRY(hr_read_string(d, &string));
        return hr_append_bytes(column, string.data, string.size);
    case OP_BYTES: return hr_decode_base64(d, column);
    case OP_TEXT: return hr_decode_text(d, node, column, token);
    case OP_OBJECT: return hr_decode_object(d, node);
    case OP_ARRAY: return hr_decode_array(d, node);
    case OP_MAP: return hr_decode_map(d, node);
    case OP_UNION: return hr_decode_union(d, node, token);
    }
    return ERROR_TYPE;
}

static int hr_decode(hr_decoder *d, int32_t index) {
    int code = hr_decode_node(d, &d->nodes[index]);
    if (HR_UNLIKELY(code != 0) && d->failed_node < 0) d->failed_node = index;
    return code;
}

#endif
