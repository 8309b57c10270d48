/* The CPU backend: two passes over the parameters, and the small quadratic program between them. One call handles all
   tensors of a step and reads each of them from memory once per pass.

   native.py calls ``prepare``, which makes a job of the parameter slices of a step, and passes it to ``gram`` and
   ``apply``. No torch header is needed, and no OpenMP runtime except torch's.

   A job is one array of 64-bit integers: the header below, followed by
       vectors    (size, 3)        basis vector k is tensor vectors[k][0] minus tensor vectors[k][1], if not -1;
                                   vectors[k][2]: whether it is fixed, so that its products with fixed ones are known
       lengths    (slices,)        number of elements
       blocks     (slices,)        block of each slice
       addresses  (slices, width)  of the target, which is tensor 0, and of the slice's other tensors
   The tensors of a slice are dense in memory, with their elements in the same order.

   The work is cut into units that depend on the job alone. Each unit has its own partial result. These are summed in a
   fixed order, so that the number of threads and their scheduling do not change a bit. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One build serves all x86 processors: glibc's loader picks the widest supported version of these functions. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(CONGRUENCY_ONE_VERSION) && \
    (!defined(__clang__) || __clang_major__ >= 14)
#if defined(__clang__) || __GNUC__ < 12
#define HOT __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOT __attribute__((target_clones("avx512f", "arch=x86-64-v3", "default")))
#endif
#else
#define HOT
#endif

enum {
    RUN = 1024,          /* elements processed at a time, the length of the longest float32 sum */
    STEP = 16,           /* elements read from one tensor before the next: a cache line of float32 */
    PARTIAL = 16,        /* partial float32 sums per product */
    AHEAD = 512,         /* prefetch distance in elements: far enough ahead, with few enough cache lines in flight */
    ROWS = 4096,         /* most doubles for the rows of a run, so that they stay in the L1 cache */
    NARROW_ROWS = 8192,  /* the same in float32 */
    AVERAGED = 1 << 17,  /* elements from which on all products are formed in float32: rounding errors average out, even
                            if constraints are nearly dependent */
    TOGETHER = 5,        /* most fixed vectors read alternately: with more, cache lines would leave L1 before use */
    APART = 3,           /* the same in the second pass, which reads two tensors per vector */
    MANY = 8,            /* runs for which one group of fixed vectors is read before the next: enough to prefetch */
    TILE = 3,            /* rows multiplied with rows at a time: their sums and operands fit the registers */
    UNIT = 8192,         /* fewest elements in a full unit: enough to hide its overhead */
    UNITS = 256,         /* approximate maximum of full units: enough for any number of threads */
    PARTIALS = 1 << 22,  /* most doubles for the partial results of full units */
    GRAIN = 32768,       /* fewest elements for more than one thread (torch's own grain) */
    OWN_GRAIN = 1 << 20, /* the same if the threads must be started first */
    MOVING = 4,          /* most rows that are not fixed, for the pass that skips the products among fixed ones */
};

typedef struct {
    int64_t wide; /* 0: float32, 1: float64 */
    int64_t slices, width, size, blocks, threads;
    int64_t gradient; /* index of the gradient, whose address changes, among a slice's tensors, or -1 */
    int64_t vectors[][3];
} Job;

#if defined(__x86_64__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef double Lanes __attribute__((vector_size(LANES * sizeof(double)), may_alias));

/* A range of elements over consecutive slices of one block: the first slice, the offset in it, and the length. */
typedef struct {
    int64_t slice, offset, length, block;
} Unit;

/* The rule for blocks of one element: see base.py's ElementRule. */
typedef struct {
    int update, strict, mask_decay, write;
    const double *signs, *decay, *scale; /* (constraints,), (slices,), (slices,) or NULL: not scaled */
} Element;

typedef struct {
    const Job *job;
    Unit *units;
    int64_t count, elements;
    int wide;                   /* first pass: no sum in float32 */
    int moving;                 /* first pass: rows that are not fixed, to skip products among fixed ones; 0: skip none */
    int64_t *rows;              /* (moving,): the indices of these rows, 0 is the target */
    const double *known;        /* (blocks, 1 + size, 1 + size): products among fixed vectors */
    double *partials;           /* (count, 1 + size, 1 + size) of the first pass, or (count, 4) with ``element`` */
    const char *applied;        /* (blocks,): which blocks the second pass writes; NULL in the first */
    const double *coefficients; /* (blocks, size) */
    const Element *element;     /* the pass for blocks of one element, instead of the others */
    int64_t participants;
    int64_t *taken;  /* (participants,): number of units of each share that are done or in progress */
    double *scratch; /* (participants, scratch_size) */
} Pass;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Part size that divides ``count`` into nearly equal parts of at most ``limit``. */
static int64_t evenly(int64_t count, int64_t limit) {
    int64_t times = most(1, (count + limit - 1) / limit);
    return (count + times - 1) / times;
}

/* Rows of a run: the target, the basis vectors, and zero rows that complete the last tile. */
static int64_t row_count(const Job *job) { return rounded_up(1 + job->size, TILE); }
static int64_t run_length(const Job *job) { return most(LANES, least(RUN, ROWS / row_count(job) / LANES * LANES)); }

/* Scratch memory per thread, in doubles: the rows of a run, LANES sums per product in the upper triangle of tiles. */
static int64_t rows_size(const Job *job) { return rounded_up(most(RUN, row_count(job) * run_length(job)), 8); }
static int64_t sums_size(const Job *job) {
    int64_t tiles = row_count(job) / TILE;
    return rounded_up(tiles * (tiles + 1) / 2 * TILE * TILE * LANES, 8);
}
static int64_t narrow_run_length(const Job *job) { return most(16, least(RUN, NARROW_ROWS / row_count(job) / 16 * 16)); }
static int64_t scratch_size(const Job *job) {
    int64_t narrow = row_count(job) * (1 + narrow_run_length(job)); /* address and float32 elements of each row */
    return rounded_up(most(MOVING * RUN, rows_size(job) + sums_size(job) + narrow), 8);
}

static int64_t *lengths(const Job *job) { return (int64_t *)&job->vectors[job->size][0]; }
static int64_t *blocks(const Job *job) { return lengths(job) + job->slices; }
static int64_t *addresses(const Job *job, int64_t slice) { return blocks(job) + job->slices + slice * job->width; }

static void *tensor(const Job *job, int64_t slice, int64_t index, int64_t offset) {
    int64_t bytes = job->wide ? sizeof(double) : sizeof(float);
    return (char *)(intptr_t)addresses(job, slice)[index] + offset * bytes;
}

static const double ZEROS[RUN]; /* the subtrahend of a vector that is no difference */

/* Addresses of the minuend and the subtrahend of basis vector k; at most RUN elements of the latter are valid. */
static const void *end_of(const Job *job, int64_t slice, int64_t k, int64_t offset) {
    return tensor(job, slice, job->vectors[k][0], offset);
}
static const void *start_of(const Job *job, int64_t slice, int64_t k, int64_t offset) {
    return job->vectors[k][1] < 0 ? ZEROS : tensor(job, slice, job->vectors[k][1], offset);
}

/* ---- one float32 basis vector: the most common case ---- */

/* Prefetch the step AHEAD elements later: a prefetch never faults. */
static void prefetch_after(const float *elements) {
    uintptr_t after = (uintptr_t)elements + AHEAD * sizeof(float);
    for (int64_t i = 0; i < STEP; i += 16) __builtin_prefetch((const float *)after + i, 0, 3);
}

/* Prefetch the step one run earlier, if there is any: a prefetch never faults. */
static void prefetch_before(const float *elements) {
    uintptr_t before = (uintptr_t)elements - RUN * sizeof(float);
    for (int64_t i = 0; i < STEP; i += 16) __builtin_prefetch((const float *)before + i, 0, 3);
}

/* Keep operands in registers: compilers would load them from memory three times. */
#if defined(__x86_64__)
#define IN_REGISTERS(X, Y, Z) __asm__("" : "+x"(X), "+x"(Y), "+x"(Z))
#else
#define IN_REGISTERS(X, Y, Z) (void)0
#endif

typedef struct {
    void (*run_products)(const float *g, const float *const *ends, const float *const *starts, int64_t count, int64_t n,
                         float *partial, float *sums);
    void (*tile_products)(const float *const *a, const float *const *b, int64_t n, double *sums);
    void (*add_vectors)(float *g, const float *const *ends, const float *const *starts, const float *a, int64_t count,
                        int64_t n);
} Vectors;

/* One version per width: vectors wider than the processor's registers would spill to memory, several times slower. */
#define WIDTH 4
#define TARGET
#include "native_vectors.h"
#if defined(__x86_64__)
#define WIDTH 8
#define TARGET __attribute__((target("avx2,fma")))
#include "native_vectors.h"
#define WIDTH 16
#define TARGET __attribute__((target("avx512f")))
#include "native_vectors.h"
#endif
static const Vectors *vectors = &vectors_4; /* until setup() has detected the processor */

/* Select the widest vectors that the processor supports, of at most ``most`` floats; returns their width. */
static int take_vectors(long most) {
    int width = 4;
    vectors = &vectors_4;
    (void)most;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (most >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) vectors = &vectors_8, width = 8;
    if (most >= 16 && __builtin_cpu_supports("avx512f")) vectors = &vectors_16, width = 16;
#endif
    return width;
}

/* Like run_products for one vector, in float64, where differences of float32 numbers are exact. The hardware prefetches
   three tensors by itself. */
#define PAIR(NAME, TYPE)                                                                                           \
    HOT static void NAME(const TYPE *g, const TYPE *end, const TYPE *start, int64_t n, double *sums) {             \
        double gg = 0, gx = 0, xx = 0;                                                                             \
        _Pragma("omp simd reduction(+ : gg, gx, xx)") for (int64_t i = 0; i < n; i++) {                            \
            double a = g[i], x = (double)end[i] - start[i];                                                        \
            gg += a * a, gx += a * x, xx += x * x;                                                                 \
        }                                                                                                          \
        sums[0] += gg, sums[1] += gx, sums[3] += xx;                                                               \
    }
PAIR(pair_of_narrow, float)
PAIR(pair_of_wide, double)

HOT static float norm2(const float *g, int64_t n) {
    float gg = 0;
#pragma omp simd reduction(+ : gg)
    for (int64_t i = 0; i < n; i++) gg += g[i] * g[i];
    return gg;
}

HOT static int equal(const float *a, const float *b, int64_t n) {
    int different = 0;
#pragma omp simd reduction(| : different)
    for (int64_t i = 0; i < n; i++) different |= a[i] != b[i];
    return !different;
}

/* Whether the range of float32 suffices: a sum of squares far from overflow and underflow, or exactly 0; not nan. */
static int safe(float sum, const float *a, const float *b, int64_t n) {
    return (sum > 1e-25f && sum < 1e30f) || (sum == 0 && equal(a, b, n));
}
static int safe_factor(double a) { return (a > 1e-25 && a < 1e30) || (a < -1e-25 && a > -1e30); }

/* ---- any number of basis vectors, in float64 ---- */

/* The three rows of a tile are interleaved, LANES elements at a time, and padded with zeros. The difference of two
   float32 numbers is formed in float64, where it is exact except for extreme ratios. */
#define LOAD(NAME, TYPE)                                                                                           \
    HOT static void NAME(const TYPE *end, const TYPE *start, int64_t n, Lanes *rows) {                             \
        double *restrict row = (double *)rows;                                                                     \
        for (; n >= LANES; n -= LANES, end += LANES, start += LANES, row += TILE * LANES)                          \
            _Pragma("omp simd") for (int i = 0; i < LANES; i++) row[i] = (double)end[i] - start[i];                \
        for (int i = 0; n && i < LANES; i++) row[i] = i < n ? (double)end[i] - start[i] : 0;                       \
    }
LOAD(load_narrow, float)
LOAD(load_wide, double)

#define ADD(NAME, TYPE)                                                                                            \
    HOT static void NAME(double *restrict x, const TYPE *end, const TYPE *start, int64_t n, double a) {            \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) x[i] += a * (end[i] - start[i]);                       \
    }
ADD(add_narrow, float)
ADD(add_wide, double)

HOT static void subtract_floats(const float *end, const float *start, int64_t n, float *restrict x) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = end[i] - start[i];
}

/* Inner products of a and b with end - start. */
#define DOTS(NAME, TYPE)                                                                                           \
    HOT static void NAME(const TYPE *end, const TYPE *start, int64_t n, const double *a, const double *b,          \
                         double *sums) {                                                                           \
        double ax = 0, bx = 0;                                                                                     \
        _Pragma("omp simd reduction(+ : ax, bx)") for (int64_t i = 0; i < n; i++) {                                \
            double x = (double)end[i] - start[i];                                                                  \
            ax += a[i] * x;                                                                                        \
            bx += b[i] * x;                                                                                        \
        }                                                                                                          \
        sums[0] = ax, sums[1] = bx;                                                                                \
    }
DOTS(dots_narrow, float)
DOTS(dots_wide, double)

#define SUBTRACT(NAME, TYPE)                                                                                       \
    HOT static void NAME(const TYPE *end, const TYPE *start, int64_t n, double *restrict x) {                      \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) x[i] = (double)end[i] - start[i];                      \
    }
SUBTRACT(subtract_narrow, float)
SUBTRACT(subtract_wide, double)

#define COPY(NAME, FROM, TO)                                                                                       \
    HOT static void NAME(const FROM *restrict from, int64_t n, TO *restrict to) {                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = (TO)from[i];                                   \
    }
COPY(widen, float, double)
COPY(narrow, double, float)

/* Add the inner products of one tile of rows with itself and all following tiles to ``sums``, vectors of LANES sums. */
HOT static void add_products(const Lanes *rows, const Lanes *end, int64_t stride, Lanes *sums) {
    for (const Lanes *others = rows; others < end; others += stride, sums += TILE * TILE) {
        Lanes ax = {0}, ay = {0}, az = {0}, bx = {0}, by = {0}, bz = {0}, cx = {0}, cy = {0}, cz = {0};
        for (int64_t k = 0; k < stride; k += TILE) {
            Lanes a = rows[k], b = rows[k + 1], c = rows[k + 2];
            Lanes x = others[k], y = others[k + 1], z = others[k + 2];
            ax += a * x, ay += a * y, az += a * z;
            bx += b * x, by += b * y, bz += b * z;
            cx += c * x, cy += c * y, cz += c * z;
        }
        sums[0] += ax, sums[1] += ay, sums[2] += az;
        sums[3] += bx, sums[4] += by, sums[5] += bz;
        sums[6] += cx, sums[7] += cy, sums[8] += cz;
    }
}

/* ---- the passes over at most a run of one slice ---- */

static void prefetch(const Job *job, int64_t slice, int64_t index, int64_t offset, int64_t n) {
    const char *from = tensor(job, slice, index, offset), *to = tensor(job, slice, index, offset + n);
    for (; from < to; from += 64) __builtin_prefetch(from, 0, 2);
}

static void load(const Job *job, const void *end, const void *start, int64_t n, Lanes *row) {
    if (job->wide)
        load_wide(end, start, n, row);
    else
        load_narrow(end, start, n, row);
}

/* Add the products of a run to the sums behind the rows, and prefetch the next run. */
static void gram_of_run(const Job *job, int64_t slice, int64_t offset, int64_t n, double *scratch) {
    int64_t count = row_count(job), stride = rounded_up(n, LANES) / LANES * TILE;
    Lanes *rows = (Lanes *)scratch, *end = rows + count / TILE * stride, *sums = (Lanes *)(scratch + rows_size(job));
    for (int64_t k = 0; k < count; k++) {
        Lanes *row = rows + k / TILE * stride + k % TILE;
        if (k == 0)
            load(job, tensor(job, slice, 0, offset), ZEROS, n, row);
        else if (k <= job->size)
            load(job, end_of(job, slice, k - 1, offset), start_of(job, slice, k - 1, offset), n, row);
        else
            load(job, ZEROS, ZEROS, n, row);
    }
    for (int64_t i = 0; i < count; i += TILE, rows += stride) {
        for (int64_t t = i * job->width / count; t < (i + TILE) * job->width / count; t++)
            prefetch(job, slice, t, offset + n, n);
        add_products(rows, end, stride, sums);
        sums += (count - i) * TILE;
    }
}

static void two_dots(const Job *job, int64_t slice, int64_t k, int64_t offset, int64_t n, const double *a,
                     const double *b, double *sums) {
    const void *end = end_of(job, slice, k, offset), *start = start_of(job, slice, k, offset);
    if (job->wide)
        dots_wide(end, start, n, a, b, sums);
    else
        dots_narrow(end, start, n, a, b, sums);
}

/* Add the products of a run's moving vectors, those that are not fixed, with all vectors. The moving ones are in scratch
   memory; the others are read once. */
static void moving_gram_of_run(const Pass *pass, int64_t slice, int64_t offset, int64_t n, double *scratch,
                               double *sums) {
    const Job *job = pass->job;
    int64_t size = 1 + job->size;
    double found[2];
    for (int64_t m = 0; m < pass->moving; m++) {
        int64_t k = pass->rows[m];
        const void *end = k ? end_of(job, slice, k - 1, offset) : tensor(job, slice, 0, offset);
        const void *start = k ? start_of(job, slice, k - 1, offset) : ZEROS;
        if (job->wide)
            subtract_wide(end, start, n, scratch + m * RUN);
        else
            subtract_narrow(end, start, n, scratch + m * RUN);
    }
    for (int64_t m = 0; m < pass->moving; m++)
        for (int64_t l = m; l < pass->moving; l++) {
            dots_wide(scratch + m * RUN, ZEROS, n, scratch + l * RUN, scratch + l * RUN, found);
            sums[pass->rows[m] * size + pass->rows[l]] += found[0];
        }
    for (int64_t t = 0; t < job->width; t++) prefetch(job, slice, t, offset + n, n);
    for (int64_t k = 1; k < size; k++) {
        if (!job->vectors[k - 1][2]) continue;
        for (int64_t m = 0; m < pass->moving; m += 2) {
            int64_t other = least(m + 1, pass->moving - 1);
            two_dots(job, slice, k - 1, offset, n, scratch + m * RUN, scratch + other * RUN, found);
            for (int64_t i = 0; i < 2 && m + i < pass->moving; i++) {
                int64_t row = pass->rows[m + i];
                sums[least(row, k) * size + most(row, k)] += found[i];
            }
        }
    }
}

/* Whether the range of float32 suffices for a vector of this squared length over all of its runs. */
static int safe_length(double length2) { return length2 == 0 || (length2 > 1e-25 && length2 < 1e30); }

/* Like moving_gram_of_run in float32, for the target and one moving basis vector, over at most MANY runs. Fixed vectors
   are read in groups, each through all runs. Runs for which the range of float32 does not suffice use float64. */
static void narrow_moving_gram_of_runs(const Pass *pass, int64_t slice, int64_t offset, int64_t n, double *scratch,
                                       double *sums) {
    const Job *job = pass->job;
    int64_t size = 1 + job->size, last = pass->rows[1], fixed = job->size - 1, each = evenly(fixed, TOGETHER), done = 0;
    const float *ends[1 + TOGETHER], *starts[1 + TOGETHER];
    float products[3 + 2 * TOGETHER];
    char wide[MANY];
    do {
        int64_t count = least(each, fixed - done), rows[1 + TOGETHER] = {last};
        for (int64_t i = 1; i <= count; i++) rows[i] = done + i + (done + i >= last); /* all but the moving one */
        for (int64_t run = 0; run * RUN < n; run++) {
            int64_t from = offset + run * RUN, length = least(RUN, n - run * RUN);
            if (done && wide[run]) continue;
            const float *g = tensor(job, slice, 0, from), *found = products + 3;
            for (int64_t i = 0; i <= count; i++)
                ends[i] = end_of(job, slice, rows[i] - 1, from), starts[i] = start_of(job, slice, rows[i] - 1, from);
            vectors->run_products(g, ends, starts, 1 + count, length, (float *)scratch, products);
            if (!done) {
                wide[run] = !safe(products[0], g, (const float *)ZEROS, length) ||
                            !safe(products[2], ends[0], starts[0], length);
                if (wide[run]) {
                    moving_gram_of_run(pass, slice, from, length, scratch, sums);
                    continue;
                }
                sums[0] += products[0], sums[last] += products[1], sums[last * size + last] += products[2];
            }
            for (int64_t i = 1; i <= count; i++, found += 2)
                sums[rows[i]] += found[0], sums[least(last, rows[i]) * size + most(last, rows[i])] += found[1];
        }
        done += count;
    } while (done < fixed);
}

/* Add all products of a run in float32; returns 0 and adds nothing if the range of float32 does not suffice. */
static int narrow_gram_of_run(const Job *job, int64_t slice, int64_t offset, int64_t n, double *scratch) {
    int64_t size = 1 + job->size, count = row_count(job);
    double *sums = scratch + rows_size(job);
    const float **rows = (const float **)(sums + sums_size(job)), *zeros = (const float *)ZEROS;
    float *room = (float *)(rows + count);
    for (int64_t k = 0; k < count; k++) {
        const float *end = k == 0 ? tensor(job, slice, 0, offset) : k < size ? end_of(job, slice, k - 1, offset) : zeros;
        const float *start = k && k < size ? start_of(job, slice, k - 1, offset) : zeros;
        rows[k] = end;
        if (start != zeros) {
            subtract_floats(end, start, n, room);
            rows[k] = room, room += n;
        }
        if (k < size && !safe(norm2(rows[k], n), end, start, n)) return 0;
    }
    for (int64_t i = 0; i < count; i += TILE) {
        for (int64_t t = i * job->width / count; t < (i + TILE) * job->width / count; t++)
            prefetch(job, slice, t, offset + n, n);
        for (int64_t j = i; j < count; j += TILE, sums += TILE * TILE * LANES)
            vectors->tile_products(rows + i, rows + j, n, sums);
    }
    return 1;
}

/* Sum the lanes of each product. */
static void fold(const Job *job, const double *lanes, double *sums) {
    int64_t size = 1 + job->size, count = row_count(job);
    for (int64_t i = 0; i < count; i += TILE)
        for (int64_t j = i; j < count; j += TILE)
            for (int64_t k = 0; k < TILE * TILE; k++, lanes += LANES) {
                int64_t row = i + k / TILE, column = j + k % TILE;
                if (row > column || column >= size) continue;
                for (int64_t l = 0; l < LANES; l++) sums[row * size + column] += lanes[l];
            }
}

/* Products with one basis vector in float64. */
static void exact_gram_of_pair(const Job *job, int64_t slice, int64_t offset, int64_t n, double *sums) {
    const void *g = tensor(job, slice, 0, offset);
    const void *end = end_of(job, slice, 0, offset), *start = start_of(job, slice, 0, offset);
    if (job->wide)
        pair_of_wide(g, end, start, n, sums);
    else
        pair_of_narrow(g, end, start, n, sums);
}

/* Products with at most one basis vector in float32, or in float64 if the range of float32 does not suffice. */
static void gram_of_pair(const Job *job, int64_t slice, int64_t offset, int64_t n, double *scratch, double *sums) {
    const float *g = tensor(job, slice, 0, offset), *zeros = (const float *)ZEROS;
    const float *end = job->size ? end_of(job, slice, 0, offset) : zeros;
    const float *start = job->size ? start_of(job, slice, 0, offset) : zeros;
    float products[3] = {0};
    if (job->size)
        vectors->run_products(g, &end, &start, 1, n, (float *)scratch, products);
    else
        products[0] = norm2(g, n);
    if (!safe(products[0], g, zeros, n) || !safe(products[2], end, start, n)) {
        gram_of_run(job, slice, offset, n, scratch);
        return;
    }
    sums[0] += products[0];
    if (job->size) sums[1] += products[1], sums[3] += products[2];
}

/* Add the basis vectors to a copy of the target, since a basis vector may be the target itself. */
static void add_to_run(const Job *job, int64_t slice, int64_t offset, int64_t n, const double *factors, double *x) {
    void *g = tensor(job, slice, 0, offset);
    if (job->wide)
        memcpy(x, g, n * sizeof(double));
    else
        widen(g, n, x);
    for (int64_t k = 0; k < job->size; k++) {
        const void *end = end_of(job, slice, k, offset), *start = start_of(job, slice, k, offset);
        if (job->wide)
            add_wide(x, end, start, n, factors[k]);
        else
            add_narrow(x, end, start, n, factors[k]);
    }
    if (job->wide)
        memcpy(g, x, n * sizeof(double));
    else
        narrow(x, n, g);
}

/* Like add_to_run in float32. ``scratch`` holds the addresses of the vectors and the factors. */
static void narrow_add_to_run(const Job *job, int64_t slice, int64_t offset, int64_t n, const double *factors,
                              double *scratch) {
    const float **ends = (const float **)scratch, **starts = ends + job->size;
    float *a = (float *)(starts + job->size), *g = tensor(job, slice, 0, offset);
    int64_t count = 0, together = 0;
    for (int64_t k = 0; k < job->size; k++) {
        if (factors[k] == 0) continue;
        ends[count] = end_of(job, slice, k, offset), starts[count] = start_of(job, slice, k, offset);
        if (ends[count] == g || starts[count] == g) together = job->size; /* read g before it is written */
        a[count++] = (float)factors[k];
    }
    together = most(1, most(together, evenly(count, APART)));
    for (int64_t i = 0; i < count; i += together)
        vectors->add_vectors(g, ends + i, starts + i, a + i, least(together, count - i), n);
}

/* ---- the passes over a unit ---- */

static void first_pass(const Pass *pass, int64_t u, double *scratch) {
    const Job *job = pass->job;
    const Unit *unit = &pass->units[u];
    double *sums = pass->partials + u * (1 + job->size) * (1 + job->size);
    int wide = job->wide || pass->wide, pair = !wide && job->size <= 1;
    int exact = wide || job->blocks > 1 || pass->elements < AVERAGED;
    int64_t longest = exact ? run_length(job) : narrow_run_length(job), offset = unit->offset, size = 1 + job->size;
    if (pass->moving || pair) longest = RUN;
    int quick = !wide && pass->moving == 2; /* and float32 suffices for the length of every fixed vector */
    for (int64_t k = 1; quick && k < size; k++)
        if (job->vectors[k - 1][2]) quick = safe_length(pass->known[(unit->block * size + k) * size + k]);
    if (quick) longest = MANY * RUN;
    if (!pass->moving) memset(scratch + rows_size(job), 0, sums_size(job) * sizeof(double));
    for (int64_t slice = unit->slice, left = unit->length; left; slice++, offset = 0) {
        int64_t stop = least(lengths(job)[slice], offset + left);
        left -= stop - offset;
        for (int64_t n; offset < stop; offset += n) {
            n = least(longest, stop - offset);
            if (pair)
                gram_of_pair(job, slice, offset, n, scratch, sums);
            else if (job->size == 1)
                exact_gram_of_pair(job, slice, offset, n, sums);
            else if (pass->moving)
                (quick ? narrow_moving_gram_of_runs : moving_gram_of_run)(pass, slice, offset, n, scratch, sums);
            else if (exact)
                gram_of_run(job, slice, offset, n, scratch);
            else if (!narrow_gram_of_run(job, slice, offset, n, scratch))
                for (int64_t done = 0, part; done < n; done += part) {
                    part = least(run_length(job), n - done);
                    gram_of_run(job, slice, offset + done, part, scratch);
                }
        }
    }
    if (!pass->moving) fold(job, scratch + rows_size(job), sums); /* with ``moving``, this memory holds rows */
}

/* In reverse order within each slice: what the first pass read last is still in the caches. */
static void second_pass(const Pass *pass, int64_t u, double *scratch) {
    const Job *job = pass->job;
    const Unit *unit = &pass->units[u];
    const double *factors = pass->coefficients + unit->block * job->size;
    if (!pass->applied[unit->block]) return;
    int narrow = !job->wide;
    for (int64_t k = 0; k < job->size; k++) narrow = narrow && (factors[k] == 0 || safe_factor(factors[k]));
    int64_t offset = unit->offset;
    for (int64_t slice = unit->slice, left = unit->length; left; slice++, offset = 0) {
        int64_t stop = least(lengths(job)[slice], offset + left);
        left -= stop - offset;
        for (int64_t from; stop > offset; stop = from) {
            from = offset + (stop - offset - 1) / RUN * RUN;
            (narrow ? narrow_add_to_run : add_to_run)(job, slice, from, stop - from, factors, scratch);
        }
    }
}

/* ---- blocks of one element: a mask instead of a problem to solve ---- */

/* Correct at most RUN elements: y = decay * before - target, or the target; constraints c = sign * (end - start). */
#define ELEMENT(NAME, TYPE)                                                                                            \
    /* decay * before - after, with the product rounded as in the optimizer: exactly 0 if it made no step */           \
    HOT static void NAME##_scaled(const TYPE *before, TYPE decay, int64_t n, TYPE *y) {                                \
        for (int64_t i = 0; i < n; i++) y[i] = decay * before[i];                                                      \
    }                                                                                                                  \
    HOT static void NAME##_less(const TYPE *after, int64_t n, TYPE *y) {                                               \
        for (int64_t i = 0; i < n; i++) y[i] -= after[i];                                                              \
    }                                                                                                                  \
    /* whether each element is kept by one constraint and the earlier ones, whose result is ``before`` */              \
    HOT static void NAME##_strict(const TYPE *y, const TYPE *end, const TYPE *start, TYPE sign, int64_t n, int first,  \
                                  TYPE *kept) {                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            TYPE c = sign * (end[i] - start[i]), before = first ? 1 : kept[i];                                         \
            kept[i] = ((y[i] > 0) & (c > 0)) | ((y[i] < 0) & (c < 0)) ? before : 0;                                    \
        }                                                                                                              \
    }                                                                                                                  \
    HOT static void NAME##_weak(const TYPE *y, const TYPE *end, const TYPE *start, TYPE sign, int64_t n, int first,    \
                                TYPE *kept) {                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            TYPE c = sign * (end[i] - start[i]), before = first ? 1 : kept[i];                                         \
            kept[i] = ((y[i] > 0) & (c < 0)) | ((y[i] < 0) & (c > 0)) ? 0 : before;                                    \
        }                                                                                                              \
    }                                                                                                                  \
    /* sums: number of kept elements, <y, c>, <y, y>, <c, c>; c is the first constraint */                             \
    HOT static void NAME##_sums(const TYPE *y, const TYPE *end, const TYPE *start, TYPE sign, int64_t n,               \
                                const TYPE *kept, double *sums) {                                                      \
        TYPE k = 0, yc = 0, yy = 0, cc = 0;                                                                            \
        _Pragma("omp simd reduction(+ : k, yc, yy, cc)") for (int64_t i = 0; i < n; i++) {                             \
            TYPE c = sign * (end[i] - start[i]);                                                                       \
            k += kept[i], yc += y[i] * c, yy += y[i] * y[i], cc += c * c;                                              \
        }                                                                                                              \
        sums[0] += k, sums[1] += yc, sums[2] += yy, sums[3] += cc;                                                     \
    }                                                                                                                  \
    HOT static void NAME##_base(const TYPE *before, const TYPE *y, TYPE decay, TYPE masked, int64_t n, TYPE *base) {   \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int against = ((y[i] > 0) & (before[i] < 0)) | ((y[i] < 0) & (before[i] > 0));                             \
            base[i] = (against ? masked : decay) * before[i];                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    HOT static void NAME##_write(const TYPE *base, const TYPE *y, const TYPE *kept, TYPE scale, int64_t n, TYPE *to) { \
        for (int64_t i = 0; i < n; i++) to[i] = base[i] - (kept[i] != 0 ? scale * y[i] : 0);                           \
    }                                                                                                                  \
    HOT static void NAME##_clear(const TYPE *base, const TYPE *kept, int64_t n, TYPE *to) {                            \
        for (int64_t i = 0; i < n; i++) to[i] = kept[i] != 0 ? to[i] : base[i];                                        \
    }                                                                                                                  \
    static void NAME##_run(const Pass *pass, int64_t slice, int64_t offset, int64_t n, TYPE *room, double *sums) {     \
        const Job *job = pass->job;                                                                                    \
        const Element *rule = pass->element;                                                                           \
        TYPE *target = tensor(job, slice, 0, offset), *y = target, *kept = room, *base = room + RUN;                   \
        TYPE decay = (TYPE)rule->decay[slice];                                                                         \
        const TYPE *before = rule->update ? end_of(job, slice, 0, offset) : NULL;                                      \
        if (before) {                                                                                                  \
            NAME##_scaled(before, decay, n, y = room + 2 * RUN);                                                       \
            NAME##_less(target, n, y);                                                                                 \
        }                                                                                                              \
        for (int64_t k = rule->update; k < job->size; k++)                                                             \
            (rule->strict ? NAME##_strict : NAME##_weak)(y, end_of(job, slice, k, offset),                             \
                                                         start_of(job, slice, k, offset),                              \
                                                         (TYPE)rule->signs[k - rule->update], n, k == rule->update,    \
                                                         kept);                                                        \
        if (!rule->scale)                                                                                              \
            NAME##_sums(y, end_of(job, slice, rule->update, offset), start_of(job, slice, rule->update, offset),       \
                        (TYPE)rule->signs[0], n, kept, sums);                                                          \
        if (rule->write) {                                                                                             \
            if (before)                                                                                                \
                NAME##_base(before, y, decay, rule->mask_decay ? 1 : decay, n, base);                                  \
            else                                                                                                       \
                memset(base, 0, n * sizeof(TYPE));                                                                     \
            TYPE scale = rule->scale ? (TYPE)rule->scale[slice] : 1;                                                   \
            if (rule->scale || rule->mask_decay)                                                                       \
                NAME##_write(base, y, kept, before ? scale : -scale, n, target); /* no before: scale * y */            \
            else                                                                                                       \
                NAME##_clear(base, kept, n, target);                                                                   \
        }                                                                                                              \
    }
ELEMENT(element, float)
ELEMENT(wide_element, double)

/* Every unit is within one slice, since every slice is a block. */
static void element_pass(const Pass *pass, int64_t u, double *scratch) {
    const Unit *unit = &pass->units[u];
    double *sums = pass->partials + 4 * u;
    for (int64_t offset = 0, n; offset < unit->length; offset += n) {
        n = least(RUN, unit->length - offset);
        if (pass->job->wide)
            wide_element_run(pass, unit->slice, unit->offset + offset, n, scratch, sums);
        else
            element_run(pass, unit->slice, unit->offset + offset, n, (float *)scratch, sums);
    }
}

/* ---- units and threads ---- */

static int cut(Pass *pass) {
    const Job *job = pass->job;
    for (int64_t p = 0; p < job->slices; p++) pass->elements += lengths(job)[p];
    int64_t units = least(UNITS, 1 + PARTIALS / ((1 + job->size) * (1 + job->size)));
    int64_t full = rounded_up(1 + pass->elements / units, UNIT);
    Unit *last = NULL;
    pass->units = malloc((pass->elements / full + job->slices + 1) * sizeof(Unit));
    if (!pass->units) return -1;
    for (int64_t p = 0; p < job->slices; p++) {
        for (int64_t offset = 0, n; offset < lengths(job)[p]; offset += n) {
            if (!last || last->block != blocks(job)[p] || last->length >= full) {
                last = &pass->units[pass->count++];
                *last = (Unit){p, offset, 0, blocks(job)[p]};
            }
            /* whole runs, so that a unit that begins within a tensor begins at an aligned address */
            n = least(lengths(job)[p] - offset, rounded_up(full - last->length, RUN));
            last->length += n;
        }
    }
    return 0;
}

/* Process the units of the participant's own share in order, then units left in the shares of others. */
static void participate(Pass *pass, int64_t self) {
    for (int64_t k = 0; k < pass->participants; k++) {
        int64_t share = (self + k) % pass->participants;
        int64_t begin = share * pass->count / pass->participants;
        int64_t end = (share + 1) * pass->count / pass->participants;
        for (;;) {
            int64_t u = __atomic_fetch_add(&pass->taken[share], 1, __ATOMIC_RELAXED);
            if (u >= end - begin) break;
            if (pass->element)
                element_pass(pass, begin + u, pass->scratch + self * scratch_size(pass->job));
            else if (pass->applied)
                second_pass(pass, end - 1 - u, pass->scratch + self * scratch_size(pass->job));
            else
                first_pass(pass, begin + u, pass->scratch + self * scratch_size(pass->job));
        }
    }
}

/* Use torch's own OpenMP threads: they still spin after its last operation and would compete with a second pool. */
static struct {
    void (*parallel)(void (*function)(void *), void *argument, unsigned threads, unsigned flags);
    int (*thread_number)(void);
} openmp;

static void in_torch_thread(void *pass) { participate(pass, openmp.thread_number()); }
static void in_torch_threads(Pass *pass) {
    openmp.parallel(in_torch_thread, pass, (unsigned)pass->participants, 0);
}

typedef struct {
    pthread_t thread;
    int started;
    Pass *pass;
    int64_t self;
} Participant;

static void *in_own_thread(void *argument) {
    Participant *participant = argument;
    participate(participant->pass, participant->self);
    return NULL;
}

/* Threads are started and joined within the call, so that no state is left that a fork could break. */
static void in_own_threads(Pass *pass) {
    Participant *others = calloc(pass->participants, sizeof(Participant));
    for (int64_t t = 1; others && t < pass->participants; t++) {
        others[t].pass = pass, others[t].self = t;
        others[t].started = !pthread_create(&others[t].thread, NULL, in_own_thread, &others[t]);
    }
    participate(pass, 0);
    for (int64_t t = 1; others && t < pass->participants; t++)
        if (others[t].started) pthread_join(others[t].thread, NULL);
    free(others);
}

static int run(Pass *pass) {
    const Job *job = pass->job;
    int64_t work = pass->elements * (1 + job->size) / 2;
    pass->participants = work < (openmp.parallel ? GRAIN : OWN_GRAIN) ? 1 : job->threads;
    pass->scratch = aligned_alloc(64, pass->participants * scratch_size(job) * sizeof(double));
    pass->taken = calloc(pass->participants, sizeof(int64_t));
    int failed = !pass->scratch || !pass->taken;
    if (!failed) {
        if (pass->participants == 1)
            participate(pass, 0);
        else
            (openmp.parallel ? in_torch_threads : in_own_threads)(pass);
    }
    free(pass->scratch);
    free(pass->taken);
    return failed ? -1 : 0;
}

/* Sum the partial results in order; ``sums``: (blocks, 1 + size, 1 + size). */
static void collect(const Pass *pass, double *sums) {
    const Job *job = pass->job;
    int64_t size = 1 + job->size;
    memset(sums, 0, job->blocks * size * size * sizeof(double));
    for (int64_t u = 0; u < pass->count; u++) {
        const double *partial = pass->partials + u * size * size;
        double *to = sums + pass->units[u].block * size * size;
        for (int64_t i = 0; i < size * size; i++) to[i] += partial[i];
    }
    for (int64_t b = 0; b < job->blocks; b++, sums += size * size)
        for (int64_t i = 0; i < size; i++)
            for (int64_t j = 0; j < i; j++) sums[i * size + j] = sums[j * size + i];
}

/* These functions return 0, or -1 if out of memory. */

static int compute_gram(const Job *job, int wide, const double *known, double *sums) {
    int64_t size = 1 + job->size, rows[MOVING] = {0}, moving = 1;
    for (int64_t k = 1; k < size; k++)
        if (!job->vectors[k - 1][2] && moving++ < MOVING) rows[moving - 1] = k;
    Pass pass = {.job = job, .wide = wide, .rows = rows, .known = known,
                 .moving = known && moving <= MOVING ? (int)moving : 0};
    if (cut(&pass)) return -1;
    pass.partials = calloc((1 + pass.count) * (1 + job->size) * (1 + job->size), sizeof(double));
    int failed = !pass.partials || run(&pass);
    if (!failed) collect(&pass, sums);
    for (int64_t i = 0; known && i < job->blocks * size * size; i++) {
        int64_t row = i / size % size, column = i % size;
        if (row && column && job->vectors[row - 1][2] && job->vectors[column - 1][2]) sums[i] = known[i];
    }
    free(pass.partials);
    free(pass.units);
    return failed ? -1 : 0;
}

static int apply_coefficients(const Job *job, const double *coefficients, const char *applied) {
    Pass pass = {.job = job, .coefficients = coefficients, .applied = applied};
    if (cut(&pass)) return -1;
    int failed = run(&pass);
    free(pass.units);
    return failed ? -1 : 0;
}

/* ``sums``: (blocks, 4). */
static int correct_elements(const Job *job, const Element *rule, double *sums) {
    Pass pass = {.job = job, .element = rule};
    if (cut(&pass)) return -1;
    pass.partials = calloc(4 * (1 + pass.count), sizeof(double));
    int failed = !pass.partials || run(&pass);
    if (!failed) {
        memset(sums, 0, 4 * job->blocks * sizeof(double));
        for (int64_t u = 0; u < pass.count; u++)
            for (int64_t i = 0; i < 4; i++) sums[4 * pass.units[u].block + i] += pass.partials[4 * u + i];
    }
    free(pass.partials);
    free(pass.units);
    return failed ? -1 : 0;
}

/* ---- the quadratic program of cone.py: v = argmin 1/2 v'Kv + p'v subject to v >= floor ----

   The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23): free the multiplier of
   the steepest slope, refit, hold negative ones at 0, repeat. It terminates: every round lowers the objective, so no set
   of free multipliers occurs twice. A row in the span of the free ones has slope 0, so it never has to be freed; if
   rounding says otherwise, it is barred until another row has been freed. */

static const double ROUNDING = 4 * DBL_EPSILON; /* as in cone.py */
static const double PIVOT = 450;

typedef struct {
    int64_t n, count, valid; /* number of rows, of free rows, and of free rows in the factorization */
    double grain;            /* the rounding of K */
    double *unit, *q;        /* (n, n) K of unit rows, (n,) the slope at u = 0 */
    double *inverse, *u, *z; /* (n,) 1 / |c_i|, the multipliers minus their floor, and the fit of the free ones */
    double *lower, *half;    /* (n, n) the Cholesky factor L of the free rows, and (n,) L^-1 (-q) */
    double *pivots;          /* (n,) squared distance of each free row from the span of those before it */
    int64_t *free;           /* (n,) the free rows, in the order of the factorization */
    char *shut;              /* (n,) whether a row is free or barred */
} Dual;

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Minimize over the free multipliers, any sign allowed; returns the smallest pivot. */
static double fit(Dual *dual) {
    int64_t n = dual->n, count = dual->count;
    for (int64_t k = dual->valid; k < count; k++) {
        double *row = dual->lower + k * n;
        const double *gram = dual->unit + dual->free[k] * n;
        for (int64_t j = 0; j < k; j++)
            row[j] = (gram[dual->free[j]] - dot(row, dual->lower + j * n, j)) / dual->lower[j * n + j];
        dual->pivots[k] = gram[dual->free[k]] - dot(row, row, k);
        row[k] = sqrt(fmax(dual->pivots[k], PIVOT * dual->grain));
        dual->half[k] = (-dual->q[dual->free[k]] - dot(row, dual->half, k)) / row[k];
    }
    dual->valid = count;
    double least = 1;
    for (int64_t k = 0; k < count; k++) least = fmin(least, dual->pivots[k]), dual->z[k] = dual->half[k];
    for (int64_t k = count - 1; k >= 0; k--) {
        dual->z[k] /= dual->lower[k * n + k];
        for (int64_t j = 0; j < k; j++) dual->z[j] -= dual->lower[k * n + j] * dual->z[k];
    }
    return least;
}

/* Move towards the fit until the first multiplier is 0, hold it there, and refit; returns 0 if none was negative. */
static int shorten(Dual *dual) {
    double step = INFINITY;
    int64_t first = -1, kept = 0;
    for (int64_t k = 0; k < dual->count; k++) {
        double u = dual->u[dual->free[k]], way = dual->z[k] <= 0 ? u / (u - dual->z[k]) : INFINITY;
        if (way < step) step = way, first = dual->free[k];
    }
    if (first < 0) return 0;
    for (int64_t k = 0; k < dual->count; k++) {
        int64_t i = dual->free[k];
        dual->u[i] = i == first ? 0 : dual->u[i] + step * (dual->z[k] - dual->u[i]);
        dual->shut[i] = dual->u[i] > 0;
        if (!dual->shut[i]) {
            dual->u[i] = 0;
            dual->valid = least(dual->valid, kept);
        } else {
            dual->free[kept++] = i;
        }
    }
    dual->count = kept;
    fit(dual);
    return 1;
}

static int64_t steepest(const Dual *dual) {
    double least = INFINITY, sum = 0;
    int64_t worst = -1;
    for (int64_t i = 0; i < dual->n; i++) {
        sum += dual->u[i];
        if (dual->shut[i]) continue;
        double slope = dual->q[i] + dot(dual->unit + i * dual->n, dual->u, dual->n);
        if (slope < least) least = slope, worst = i;
    }
    return worst >= 0 && least < -ROUNDING - 4 * dual->grain * sum ? worst : -1;
}

static void unbar(Dual *dual) {
    memset(dual->shut, 0, dual->n);
    for (int64_t k = 0; k < dual->count; k++) dual->shut[dual->free[k]] = 1;
}

static void minimise(Dual *dual) {
    for (int64_t round = 0; round < 30 * dual->n; round++) { /* more than needed; a limit in case rounding makes cycles */
        int64_t worst = steepest(dual);
        if (worst < 0) return;
        dual->free[dual->count++] = worst, dual->shut[worst] = 1;
        if (fit(dual) <= PIVOT * dual->grain || dual->z[dual->count - 1] <= 0) {
            dual->valid = --dual->count; /* it stays barred */
            continue;
        }
        unbar(dual);
        while (shorten(dual)) continue;
        for (int64_t k = 0; k < dual->count; k++) dual->u[dual->free[k]] = dual->z[k];
    }
}

static int64_t dual_size(int64_t n) { return 2 * n * n + 8 * n; } /* in doubles; the last 2n hold ``free`` and ``shut`` */

/* ``memory``: dual_size(n) doubles. */
static void solve_one(const double *gram, const double *products, const double *floor, int64_t n, double grain,
                      double *memory, double *v) {
    Dual dual = {.n = n, .grain = grain};
    double **parts[] = {&dual.q, &dual.inverse, &dual.u, &dual.z, &dual.half, &dual.pivots};
    for (int i = 0; i < 6; i++) *parts[i] = memory + i * n;
    dual.unit = memory + 6 * n, dual.lower = dual.unit + n * n;
    dual.free = (int64_t *)(dual.lower + n * n), dual.shut = (char *)(dual.free + n);
    double scale = 0;
    for (int64_t i = 0; i < n; i++) dual.inverse[i] = gram[i * n + i] > 0 ? 1 / sqrt(gram[i * n + i]) : 0; /* zero row */
    for (int64_t i = 0; i < n; i++) {
        dual.q[i] = (products[i] + dot(gram + i * n, floor, n)) * dual.inverse[i];
        scale = fmax(scale, fabs(dual.q[i]));
        for (int64_t j = 0; j < n; j++) dual.unit[i * n + j] = gram[i * n + j] * dual.inverse[i] * dual.inverse[j];
    }
    scale = scale > 0 ? scale : 1;
    for (int64_t i = 0; i < n; i++) dual.q[i] /= scale, dual.u[i] = 0, dual.shut[i] = 0;
    minimise(&dual);
    for (int64_t i = 0; i < n; i++) v[i] = floor[i] + dual.u[i] * scale * dual.inverse[i];
}

/* ---- building a job from Python objects ----
   Functions that return int return 1 for yes, 0 for no (not supported, so torch has to do the work) and -1 if a Python
   error is set. */

static struct {
    PyObject *tensor, *parameter, *float32, *float64;                      /* torch's objects */
    PyObject *dtype, *is_cpu, *is_contiguous, *is_neg, *numel, *data_ptr; /* names of tensor attributes */
} torch;

/* Both functions steal the reference to ``value``. */
static int is(PyObject *value, PyObject *wanted) {
    Py_XDECREF(value);
    return value ? value == wanted : -1;
}
static int number(PyObject *value, int64_t *to) {
    if (!value) return -1;
    *to = (int64_t)PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 1;
}

/* Get the address and the number of a tensor's elements, if it is a CPU tensor of this dtype, dense and without a pending
   negation. Tensor subclasses are not supported: they may hold their elements elsewhere (a pending collective, a fake
   tensor). */
static int locate(PyObject *tensor, PyObject *dtype, int dense, int64_t *address, int64_t *length) {
    int good = Py_IS_TYPE(tensor, (PyTypeObject *)torch.tensor) || Py_IS_TYPE(tensor, (PyTypeObject *)torch.parameter);
    if (good > 0) good = is(PyObject_GetAttr(tensor, torch.dtype), dtype);
    if (good > 0) good = is(PyObject_GetAttr(tensor, torch.is_cpu), Py_True);
    if (good > 0) good = is(PyObject_CallMethodNoArgs(tensor, torch.is_neg), Py_False);
    if (good > 0 && !dense) good = is(PyObject_CallMethodNoArgs(tensor, torch.is_contiguous), Py_True);
    if (good > 0) good = number(PyObject_CallMethodNoArgs(tensor, torch.numel), length);
    if (good > 0) good = number(PyObject_CallMethodNoArgs(tensor, torch.data_ptr), address);
    return good > 0 ? *address || !*length : good;
}

/* Add a basis, (tensors, chained, fixed), as the slice's tensors from ``*width`` on. The first slice defines the basis
   vectors; the others must have the same structure. */
static int add_basis(Job *job, int64_t slice, PyObject *basis, PyObject *dtype, int dense, int64_t *size,
                      int64_t *width) {
    PyObject *tensors;
    int chained;
    Py_ssize_t fixed;
    if (!PyArg_ParseTuple(basis, "Opn", &tensors, &chained, &fixed)) return -1;
    if (!(tensors = PySequence_Fast(tensors, "the tensors of a basis must be a sequence"))) return -1;
    int64_t count = PySequence_Fast_GET_SIZE(tensors), vectors = most(0, count - chained), length;
    int good = *width + count <= job->width && *size + vectors <= job->size;
    for (int64_t i = 0; good > 0 && i < count; i++) {
        int64_t *address = &addresses(job, slice)[*width + i];
        good = locate(PySequence_Fast_GET_ITEM(tensors, i), dtype, dense, address, &length);
        if (good > 0) good = length == lengths(job)[slice];
    }
    for (int64_t k = 0; good > 0 && k < vectors; k++) {
        int64_t end = *width + k + chained, start = chained ? end - 1 : -1, *vector = job->vectors[*size + k];
        if (slice == 0) vector[0] = end, vector[1] = start, vector[2] = k < fixed;
        good = vector[0] == end && vector[1] == start && vector[2] == (k < fixed);
    }
    *width += count, *size += vectors;
    Py_DECREF(tensors);
    return good;
}

static int add_slice(Job *job, int64_t slice, PyObject *item, PyObject *dtype, int dense) {
    PyObject *gradient, *bases;
    Py_ssize_t block, place;
    int64_t size = 0, width = 1;
    if (!PyArg_ParseTuple(item, "OOnn", &gradient, &bases, &block, &place)) return -1;
    if (slice == 0) job->gradient = least(place, job->width - 1);
    if (block < 0 || block >= job->blocks) {
        PyErr_Format(PyExc_ValueError, "a slice has block %zd, but there are %lld", block, (long long)job->blocks);
        return -1;
    }
    blocks(job)[slice] = block;
    int good = locate(gradient, dtype, dense, addresses(job, slice), &lengths(job)[slice]);
    if (good > 0) good = job->gradient == place;
    if (good <= 0) return good;
    if (!(bases = PySequence_Fast(bases, "the bases of a slice must be a sequence"))) return -1;
    for (Py_ssize_t i = 0; good > 0 && i < PySequence_Fast_GET_SIZE(bases); i++)
        good = add_basis(job, slice, PySequence_Fast_GET_ITEM(bases, i), dtype, dense, &size, &width);
    Py_DECREF(bases);
    return good > 0 ? size == job->size && width == job->width : good;
}

/* Number of tensors of a slice, or -1 if a Python error is set. */
static int64_t count_tensors(PyObject *slice) {
    PyObject *gradient, *bases, *tensors;
    int64_t count = 1;
    int chained;
    Py_ssize_t fixed;
    if (!PyArg_ParseTuple(slice, "OOOn", &gradient, &bases, &tensors, &fixed)) return -1;
    if (!(bases = PySequence_Fast(bases, "the bases of a slice must be a sequence"))) return -1;
    for (Py_ssize_t i = 0; count > 0 && i < PySequence_Fast_GET_SIZE(bases); i++) {
        Py_ssize_t own = -1;
        if (PyArg_ParseTuple(PySequence_Fast_GET_ITEM(bases, i), "Opn", &tensors, &chained, &fixed))
            own = PySequence_Size(tensors);
        count = own < 0 ? -1 : count + own;
    }
    Py_DECREF(bases);
    return count;
}

static int add_slices(Job *job, PyObject *slices, int dense) {
    if (!job->slices) return 0;
    PyObject *dtype = PyObject_GetAttr(PyTuple_GET_ITEM(PySequence_Fast_GET_ITEM(slices, 0), 0), torch.dtype);
    if (!dtype) return -1;
    int good = dtype == torch.float32 || dtype == torch.float64;
    job->wide = dtype == torch.float64;
    for (int64_t p = 0; good > 0 && p < job->slices; p++)
        good = add_slice(job, p, PySequence_Fast_GET_ITEM(slices, p), dtype, dense);
    Py_DECREF(dtype);
    return good;
}

static const char JOB[] = "congruency.job";
static void free_job(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, JOB)); }

/* prepare(slices, size, blocks, threads, dense): returns a job, or None if the slices are not all of one supported kind.
   With ``dense`` the caller guarantees that tensors are dense and in the same order. */
static PyObject *prepare(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *slices;
    Py_ssize_t size, all_blocks, threads;
    int dense, good = -1;
    if (!PyArg_ParseTuple(arguments, "Onnnp", &slices, &size, &all_blocks, &threads, &dense)) return NULL;
    if (!(slices = PySequence_Fast(slices, "slices must be a sequence"))) return NULL;
    int64_t count = PySequence_Fast_GET_SIZE(slices);
    int64_t width = count ? count_tensors(PySequence_Fast_GET_ITEM(slices, 0)) : 0;
    Job *job = NULL;
    if (width >= 0 && !(job = calloc(1, sizeof(Job) + (3 * size + 2 * count + count * width) * sizeof(int64_t))))
        PyErr_NoMemory();
    if (job) {
        *job = (Job){.slices = count, .width = width, .size = size, .blocks = all_blocks, .threads = threads};
        good = add_slices(job, slices, dense);
    }
    Py_DECREF(slices);
    PyObject *result = good > 0 ? PyCapsule_New(job, JOB, free_job) : NULL;
    if (!result) free(job);
    return good ? result : Py_NewRef(Py_None);
}

/* point(job, gradients): sets the addresses of the slices' gradients, a tuple of integers, which the caller guarantees
   to be valid. */
static PyObject *point(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule, *gradients;
    if (!PyArg_ParseTuple(arguments, "OO!", &capsule, &PyTuple_Type, &gradients)) return NULL;
    Job *job = PyCapsule_GetPointer(capsule, JOB);
    if (!job) return NULL;
    if (PyTuple_GET_SIZE(gradients) != job->slices)
        return PyErr_Format(PyExc_ValueError, "%lld slices have as many gradients", (long long)job->slices);
    for (int64_t p = 0; job->gradient >= 0 && p < job->slices; p++)
        addresses(job, p)[job->gradient] = (int64_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(gradients, p));
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Convert an address from native.py, which guarantees that it is valid. */
static void *at(unsigned long long address) { return (void *)(uintptr_t)address; }

/* gram(job, wide, known, sums): writes the (blocks, 1 + size, 1 + size) inner products to ``sums``; those among fixed
   vectors are taken from ``known``, which is of the same shape, or 0. */
static PyObject *gram(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule;
    int wide, failed;
    unsigned long long known, sums;
    if (!PyArg_ParseTuple(arguments, "OpKK", &capsule, &wide, &known, &sums)) return NULL;
    Job *job = PyCapsule_GetPointer(capsule, JOB);
    if (!job) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    failed = compute_gram(job, wide, at(known), at(sums));
    Py_END_ALLOW_THREADS;
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

/* apply(job, coefficients, applied): writes the corrected targets; (blocks, size) float64 and (blocks,) bool. */
static PyObject *apply(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule;
    int failed;
    unsigned long long coefficients, applied;
    if (!PyArg_ParseTuple(arguments, "OKK", &capsule, &coefficients, &applied)) return NULL;
    Job *job = PyCapsule_GetPointer(capsule, JOB);
    if (!job) return NULL;
    if (!job->size || !job->slices) return Py_NewRef(Py_None);
    Py_BEGIN_ALLOW_THREADS;
    failed = apply_coefficients(job, at(coefficients), at(applied));
    Py_END_ALLOW_THREADS;
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

/* element(job, update, strict, mask_decay, write, signs, decay, scale, sums): writes (blocks, 4) sums, and the targets if
   ``write``. Every slice is a block of its own. */
static PyObject *element(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule;
    Element rule = {0};
    int failed;
    unsigned long long signs, decay, scale, sums;
    if (!PyArg_ParseTuple(arguments, "OppppKKKK", &capsule, &rule.update, &rule.strict, &rule.mask_decay, &rule.write,
                          &signs, &decay, &scale, &sums))
        return NULL;
    Job *job = PyCapsule_GetPointer(capsule, JOB);
    if (!job) return NULL;
    rule.signs = at(signs), rule.decay = at(decay), rule.scale = at(scale);
    Py_BEGIN_ALLOW_THREADS;
    failed = correct_elements(job, &rule, at(sums));
    Py_END_ALLOW_THREADS;
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

/* settle(agreement, sizes, scales, finite, means, slices, most): see base.py's Backend.settle. */
static PyObject *settle(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long agreement, sizes, scales, finite, means;
    Py_ssize_t slices;
    double greatest, total[4] = {0}, elements = 0;
    if (!PyArg_ParseTuple(arguments, "KKKKKnd", &agreement, &sizes, &scales, &finite, &means, &slices, &greatest))
        return NULL;
    const double *found = at(agreement), *size = at(sizes);
    for (int64_t p = 0; p < slices; p++) {
        for (int k = 0; k < 4; k++) total[k] += found[4 * p + k];
        ((double *)at(scales))[p] = size[p] / fmax(found[4 * p], size[p] / greatest);
        elements += size[p];
    }
    double step[4] = {total[1] / sqrt(total[2] * total[3]), NAN, sqrt(total[3]), total[0] / elements}, *to = at(means);
    int good = isfinite(total[0] + total[1] + total[2] + total[3]) != 0;
    for (int k = 0; good && k < 4; k++)
        if (!isnan(step[k])) to[k] += step[k], to[4 + k]++;
    *(char *)at(finite) = (char)good;
    return Py_NewRef(Py_None);
}

/* One constraint in closed form, more by the active-set method. */
static void solve_small(const double *gram, const double *products, const double *floor, int64_t n, double *memory,
                        double *v) {
    if (n == 1)
        v[0] = gram[0] > 0 ? fmax(floor[0], -products[0] / gram[0]) : floor[0];
    else
        solve_one(gram, products, floor, n, DBL_EPSILON, memory, v);
}

/* solve_dual(gram, products, floor, v, count, n): solves ``count`` problems, stored one after the other in float64 at
   these addresses, and writes the solutions to ``v``. */
static PyObject *solve_dual(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long gram, products, floor, v;
    Py_ssize_t count, n;
    if (!PyArg_ParseTuple(arguments, "KKKKnn", &gram, &products, &floor, &v, &count, &n)) return NULL;
    double *memory = malloc((1 + dual_size(n)) * sizeof(double));
    if (!memory) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t b = 0; b < count; b++)
        solve_small((double *)at(gram) + b * n * n, (double *)at(products) + b * n, (double *)at(floor) + b * n, n,
                    memory, (double *)at(v) + b * n);
    Py_END_ALLOW_THREADS;
    free(memory);
    return Py_NewRef(Py_None);
}

/* The constraints of a step, and scratch memory: see base.py's Problem. */
typedef struct {
    int64_t n;
    int only_violated;
    double factor;
    const double *combination, *signs, *floors;                      /* (n, n), (n,), (n,) or NULL */
    double *half, *signed_gram, *signed_products, *margins, *memory; /* (n, n), (n, n), (n,), (n,), dual_size(n) */
} Step;

/* One block of base.py's Solution. */
typedef struct {
    double *gradient_norm2, *products, *gram, *v, *coefficients; /* (), (n,), (n, n), (n,), (n,) */
} Answer;

/* Whether constraint ``i`` applies. */
static int counts(const Step *s, int64_t i, double product, double norm2, double length2, double previous) {
    if (!(length2 > 0)) return 0;
    if (!s->floors) return 1;
    return length2 <= previous && (isinf(s->floors[i]) || product >= -s->floors[i] * sqrt(norm2 * length2));
}

/* Solve one block whose inner products are ``sums``; returns whether its gradient changes. */
static int solve_block(const Step *s, const double *sums, const double *margins, double *previous, const Answer *to) {
    int64_t n = s->n, width = 1 + n;
    *to->gradient_norm2 = sums[0] / (s->factor * s->factor);
    for (int64_t i = 0; i < n; i++) {
        to->products[i] = dot(s->combination + i * n, sums + 1, n) / s->factor;
        to->v[i] = to->coefficients[i] = 0;
        for (int64_t j = 0; j < n; j++)
            s->half[i * n + j] = dot(s->combination + i * n, sums + (1 + j) * width + 1, n);
    }
    int violated = 0, applied = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) to->gram[i * n + j] = dot(s->half + i * n, s->combination + j * n, n);
        double product = to->products[i] * s->signs[i], length2 = to->gram[i * n + i];
        int in = counts(s, i, product, *to->gradient_norm2, length2, s->floors ? previous[i] : 0);
        if (s->floors && !isinf(previous[i])) previous[i] = length2;
        s->signed_products[i] = in ? product : 0;
        s->margins[i] = in ? margins[i] : 0;
        s->half[i] = in; /* reuses memory that is no longer needed */
        violated |= in && product < 0;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            s->signed_gram[i * n + j] = to->gram[i * n + j] * s->signs[i] * s->signs[j] * s->half[i] * s->half[j];
    if (violated || !s->only_violated)
        solve_small(s->signed_gram, s->signed_products, s->margins, n, s->memory, to->v);
    for (int64_t i = 0; i < n; i++) {
        applied |= to->v[i] != 0;
        for (int64_t k = 0; k < n; k++)
            to->coefficients[k] += to->v[i] * s->signs[i] * s->factor * s->combination[i * n + k];
    }
    return applied;
}

static double cosine(double product, double norm2, double length2) {
    double norms = sqrt(fmax(norm2, 0)) * sqrt(fmax(length2, 0));
    return norms > 0 ? fmax(-1, fmin(1, product / norms)) : NAN;
}

/* Add one block's congruency before and after the correction and its magnitudes, as in base.py's Solution.measures, to
   (2, 3) sums and counts, without nan. */
static void measure(const Step *s, const Answer *to, int applied, double *sums) {
    int64_t n = s->n;
    double *shift = s->half, corrected2 = *to->gradient_norm2; /* <a_i, x - g>, |x|^2 */
    for (int64_t i = 0; i < n; i++) {
        shift[i] = 0;
        for (int64_t j = 0; j < n; j++) shift[i] += to->gram[i * n + j] * to->v[j] * s->signs[j];
        corrected2 += to->v[i] * s->signs[i] * (2 * to->products[i] + shift[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        double length2 = to->gram[i * n + i], before = cosine(to->products[i], *to->gradient_norm2, length2);
        double after = applied ? cosine(to->products[i] + shift[i], corrected2, length2) : before;
        double found[3] = {before, after, sqrt(fmax(length2, 0))};
        for (int k = 0; k < 3; k++)
            if (!isnan(found[k])) sums[k] += found[k], sums[3 + k]++;
    }
}

/* solve(sums, combination, signs, margins, stride, floors, previous, means, only_violated, factor, blocks, n, norm2,
   products, gram, v, coefficients, flags): computes base.py's Solution of a Problem; tensors are given by their
   addresses. ``stride`` is the distance between the margins of consecutive blocks; ``flags`` receives whether each block
   is applied, then whether all was finite. */
static PyObject *solve(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long sums, combination, signs, margins, floors, previous, means, norm2, products, gram, v, coefficients,
        flags;
    Py_ssize_t count, n, stride;
    Step s = {0};
    if (!PyArg_ParseTuple(arguments, "KKKKnKKKpdnnKKKKKK", &sums, &combination, &signs, &margins, &stride, &floors,
                          &previous, &means, &s.only_violated, &s.factor, &count, &n, &norm2, &products, &gram, &v,
                          &coefficients, &flags))
        return NULL;
    s.n = n, s.combination = at(combination), s.signs = at(signs), s.floors = at(floors);
    if (!(s.half = malloc((1 + 2 * n * n + 2 * n + dual_size(n)) * sizeof(double)))) return PyErr_NoMemory();
    s.signed_gram = s.half + n * n, s.signed_products = s.signed_gram + n * n;
    s.margins = s.signed_products + n, s.memory = s.margins + n;
    const double *given = at(sums);
    int64_t area = (1 + n) * (1 + n);
    int finite = 1;
    for (int64_t i = 0; i < count * area; i++) finite &= isfinite(given[i]) != 0;
    double *zeros = finite ? NULL : calloc(area, sizeof(double)); /* used instead of sums that are not finite */
    if (!finite && !zeros) {
        free(s.half);
        return PyErr_NoMemory();
    }
    double measured[6] = {0}, *step = at(means);
    for (int64_t b = 0; b < count; b++) {
        Answer to = {(double *)at(norm2) + b, (double *)at(products) + b * n, (double *)at(gram) + b * n * n,
                     (double *)at(v) + b * n, (double *)at(coefficients) + b * n};
        int applied = solve_block(&s, finite ? given + b * area : zeros, (double *)at(margins) + b * stride,
                                  (double *)at(previous) + b * n, &to);
        ((char *)at(flags))[b] = (char)applied;
        if (step && finite) measure(&s, &to, applied, measured);
    }
    for (int k = 0; step && k < 3; k++)
        if (measured[3 + k] > 0) step[k] += measured[k] / measured[3 + k], step[4 + k]++;
    ((char *)at(flags))[count] = finite;
    free(zeros);
    free(s.half);
    return Py_NewRef(Py_None);
}

/* setup(library, Tensor, Parameter, float32, float64): ``library`` is one that is linked with torch's OpenMP. */
static PyObject *setup(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *library;
    PyObject **objects[] = {&torch.tensor, &torch.parameter, &torch.float32, &torch.float64};
    PyObject *given[4];
    if (!PyArg_ParseTuple(arguments, "sOOOO", &library, &given[0], &given[1], &given[2], &given[3])) return NULL;
    for (int i = 0; i < 4; i++) Py_XSETREF(*objects[i], Py_NewRef(given[i]));
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD); /* the search includes what it was linked with */
    *(void **)&openmp.parallel = handle ? dlsym(handle, "GOMP_parallel") : NULL;
    *(void **)&openmp.thread_number = handle ? dlsym(handle, "omp_get_thread_num") : NULL;
    if (!openmp.thread_number) openmp.parallel = NULL;
    take_vectors(16);
    return Py_NewRef(Py_None);
}

/* vectors(most): lets tests run every width on one processor; see take_vectors. */
static PyObject *choose_vectors(PyObject *module, PyObject *most) {
    (void)module;
    long given = PyLong_AsLong(most);
    if (given == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLong(take_vectors(given));
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"vectors", choose_vectors, METH_O, NULL},
    {"prepare", prepare, METH_VARARGS, NULL},
    {"point", point, METH_VARARGS, NULL},
    {"gram", gram, METH_VARARGS, NULL},
    {"apply", apply, METH_VARARGS, NULL},
    {"element", element, METH_VARARGS, NULL},
    {"settle", settle, METH_VARARGS, NULL},
    {"solve", solve, METH_VARARGS, NULL},
    {"solve_dual", solve_dual, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject **attributes[] = {&torch.dtype,  &torch.is_cpu, &torch.is_contiguous,
                               &torch.is_neg, &torch.numel,  &torch.data_ptr};
    const char *spelt[] = {"dtype", "is_cpu", "is_contiguous", "is_neg", "numel", "data_ptr"};
    for (int i = 0; i < 6; i++)
        if (!(*attributes[i] = PyUnicode_InternFromString(spelt[i]))) return NULL;
    return PyModule_Create(&definition);
}
