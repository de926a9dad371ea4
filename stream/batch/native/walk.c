/* Walk the records of a batch in compiled code. `stream.batch.walk` calls this, and has the same
 * in Python.
 *
 * Reads no byte outside [data, data + size): every length is compared with what is left before it
 * is used. Writes only to the job, which has FIRST + 2 * job[ERRORS_MAX] elements. Freestanding:
 * no libc, no allocation, no state. `make kernels` compiles it for every platform.
 */
#include <stdint.h>

enum { DONE, BAD_NUMBER, BAD_LENGTH, BAD_FIELD, BAD_HEADER_COUNT, BAD_HEADER_NAME, BAD_END,
       BAD_DELTA, BAD_COUNT, BAD_REST };
enum { NEEDS_KEYS = 1, IGNORES_TIMES = 2, SEQUENTIAL = 4 };
/* The job: what is given, then what is found, then pairs for the errors of records. */
enum { DATA, SIZE, COUNT, BASE_MS, LOW_MS, HIGH_MS, FLAGS, ERRORS_MAX,
       INDEX, MAX_TIMESTAMP, ERRORS, FIRST };

typedef const uint8_t *bytes;

/* Parse an unsigned number; NULL if it does not fit into `bits` or has no end. */
static inline bytes number(bytes at, bytes end, int bits, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    uint64_t found = 0;
    for (int shift = 0; shift < bits && at < end; shift += 7) {
        uint64_t byte = *at++;
        found |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (shift + 7 > bits && byte >> (bits - shift)) return 0;
            *value = found;
            return at;
        }
    }
    return 0;
}

static inline int64_t zigzag(uint64_t value) {
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* Skip a nullable field: NULL if its length is not a number, or, with `error`, too high. */
static inline bytes field(bytes at, bytes end, int64_t *length, int *error) {
    uint64_t value;
    at = number(at, end, 32, &value);
    if (!at) {
        *error = BAD_NUMBER;
        return 0;
    }
    *length = zigzag(value);
    if (*length <= 0) return at;
    if (*length > end - at) {
        *error = BAD_FIELD;
        return 0;
    }
    return at + *length;
}

static int headers(bytes at, bytes end, int64_t count) {
    int error = DONE;
    int64_t length;
    while (count-- > 0) {
        if (!(at = field(at, end, &length, &error))) return error;
        if (length < 0) return BAD_HEADER_NAME;
        if (!(at = field(at, end, &length, &error))) return error;
    }
    return at == end ? DONE : BAD_END;
}

int64_t penstock_walk(int64_t *job) {
    bytes at = (bytes)job[DATA], stop = at + job[SIZE];
    const int64_t count = job[COUNT], base_ms = job[BASE_MS], low_ms = job[LOW_MS],
                  high_ms = job[HIGH_MS], flags = job[FLAGS], errors_max = job[ERRORS_MAX];
    int64_t newest = -1, errors = 0;
    for (int64_t index = 0; index < count; index++) {
        uint64_t value;
        int64_t length, key_length;
        int error = DONE;
        job[INDEX] = index;
        if (at == stop) return BAD_COUNT;
        if (!(at = number(at, stop, 32, &value))) return BAD_NUMBER;
        length = zigzag(value);
        if (length < 1 || length > stop - at) return BAD_LENGTH;
        bytes end = at + length;
        at++; /* attributes, which are not used */
        if (!(at = number(at, end, 64, &value))) return BAD_NUMBER;
        int64_t delta_ms = zigzag(value), timestamp;
        if (!(at = number(at, end, 32, &value))) return BAD_NUMBER;
        int64_t delta = zigzag(value);
        if ((flags & SEQUENTIAL) ? delta != index : delta < 0 || delta >= count) return BAD_DELTA;
        if (!(at = field(at, end, &key_length, &error))) return error;
        if (!(at = field(at, end, &length, &error))) return error;
        if (!(at = number(at, end, 32, &value))) return BAD_NUMBER;
        if (value) {
            int64_t header_count = zigzag(value);
            if (header_count < 0 || header_count > (end - at) / 2) return BAD_HEADER_COUNT;
            if ((error = headers(at, end, header_count))) return error;
        } else if (at != end) {
            return BAD_END;
        }
        at = end;
        int is_outside = __builtin_add_overflow(base_ms, delta_ms, &timestamp);
        if (is_outside) timestamp = delta_ms < 0 ? INT64_MIN : INT64_MAX;
        if (timestamp > newest) newest = timestamp;
        if (!(flags & IGNORES_TIMES))
            is_outside |= timestamp != -1 && (timestamp < low_ms || timestamp > high_ms);
        else
            is_outside = 0;
        int is_keyless = (flags & NEEDS_KEYS) && key_length < 0;
        if (is_outside || is_keyless) {
            if (errors < errors_max) {
                job[FIRST + 2 * errors] = is_keyless ? -index - 1 : index;
                job[FIRST + 2 * errors + 1] = timestamp;
            }
            errors++;
        }
    }
    job[INDEX] = count;
    job[MAX_TIMESTAMP] = newest;
    job[ERRORS] = errors;
    return at == stop ? DONE : BAD_REST;
}

/* Return 0 if the bytes are one lz4 frame as Kafka reads it: version 1, independent blocks, no
 * dictionary, nothing behind the end mark. Does not check checksums. */
int64_t penstock_lz4_frame(int64_t *job) {
    bytes at = (bytes)job[DATA], stop = at + job[SIZE];
    if (stop - at < 7 || at[0] != 0x04 || at[1] != 0x22 || at[2] != 0x4D || at[3] != 0x18)
        return 1;
    int flags = at[4], sizes = at[5];
    /* Version, reserved bit, dictionary; then reserved bits and the least block size. */
    if ((flags & 0xC3) != 0x40 || !(flags & 0x20) || (sizes & 0x8F) || sizes < 0x40) return 1;
    int64_t head = flags & 0x08 ? 15 : 7, behind_block = flags & 0x10 ? 4 : 0;
    int64_t behind_frame = flags & 0x04 ? 4 : 0;
    if (stop - at < head) return 1;
    at += head;
    while (stop - at >= 4) {
        uint32_t word = at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
        at += 4;
        if (!word) return stop - at != behind_frame;
        int64_t length = (int64_t)(word & 0x7FFFFFFF) + behind_block;
        if (length > stop - at) return 1;
        at += length;
    }
    return 1;
}
