/* The inner loops over float32 tensors with SIMD vectors of WIDTH floats. native.c includes this file once per width,
   with the required processor features as TARGET, and uses the widest version that the processor supports. */

#define JOINED(NAME, SUFFIX) NAME##_##SUFFIX
#define OF_WIDTH(NAME, SUFFIX) JOINED(NAME, SUFFIX)
#define Floats OF_WIDTH(Floats, WIDTH)
#define total OF_WIDTH(total, WIDTH)
#define run_products OF_WIDTH(run_products, WIDTH)
#define tile_products OF_WIDTH(tile_products, WIDTH)
#define add_vectors OF_WIDTH(add_vectors, WIDTH)
#define EACH (STEP / WIDTH)     /* SIMD vectors per tensor and step */
#define KEPT (PARTIAL / WIDTH)  /* SIMD vectors of partial sums per product */

typedef float Floats __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static float total(const float *partial) {
    float eight[8], four[4];
    for (int i = 0; i < 8; i++) eight[i] = partial[i] + partial[i + 8];
    for (int i = 0; i < 4; i++) four[i] = eight[i] + eight[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Inner products of at most RUN elements in float32, each as PARTIAL short sums: <g, g>, <g, b>, <b, b> with b = ends[0]
   - starts[0], then <g, x>, <b, x> for each of the ``count - 1`` other vectors x. Tensors are read alternately in small
   steps, with explicit prefetches: the hardware prefetcher cannot follow so many. ``partial``: 2 PARTIAL floats per
   vector. */
TARGET static void run_products(const float *g, const float *const *ends, const float *const *starts, int64_t count,
                                int64_t n, float *partial, float *sums) {
    Floats gg[KEPT] = {0}, gb[KEPT] = {0}, bb[KEPT] = {0};
    memset(partial, 0, 2 * PARTIAL * count * sizeof(float));
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        Floats a[EACH], b[EACH], start[EACH] = {0};
        prefetch_after(g + i), prefetch_after(ends[0] + i), prefetch_after(starts[0] + i);
        for (int j = 0; j < EACH; j++) {
            a[j] = ((const Floats *)(g + i))[j];
            b[j] = ((const Floats *)(ends[0] + i))[j] - ((const Floats *)(starts[0] + i))[j];
            gg[j % KEPT] += a[j] * a[j], gb[j % KEPT] += a[j] * b[j], bb[j % KEPT] += b[j] * b[j];
        }
        for (int64_t k = 1; k < count; k++) {
            if (k == 1 || starts[k] != ends[k - 1]) { /* otherwise ``start`` holds it already */
                prefetch_after(starts[k] + i);
                for (int j = 0; j < EACH; j++) start[j] = ((const Floats *)(starts[k] + i))[j];
            }
            prefetch_after(ends[k] + i);
            Floats *kept = (Floats *)(partial + 2 * PARTIAL * k), gx[KEPT], bx[KEPT];
            for (int j = 0; j < KEPT; j++) gx[j] = kept[j], bx[j] = kept[KEPT + j];
            for (int j = 0; j < EACH; j++) {
                Floats end = ((const Floats *)(ends[k] + i))[j], x = end - start[j];
                gx[j % KEPT] += a[j] * x, bx[j % KEPT] += b[j] * x, start[j] = end;
            }
            for (int j = 0; j < KEPT; j++) kept[j] = gx[j], kept[KEPT + j] = bx[j];
        }
    }
    sums[0] = total((const float *)gg), sums[1] = total((const float *)gb), sums[2] = total((const float *)bb);
    for (int64_t k = 1; k < count; k++, partial += 2 * PARTIAL)
        sums[2 * k + 1] = total(partial + 2 * PARTIAL), sums[2 * k + 2] = total(partial + 3 * PARTIAL);
    for (; i < n; i++) {
        float b = ends[0][i] - starts[0][i];
        sums[0] += g[i] * g[i], sums[1] += g[i] * b, sums[2] += b * b;
        for (int64_t k = 1; k < count; k++) {
            float x = ends[k][i] - starts[k][i];
            sums[2 * k + 1] += g[i] * x, sums[2 * k + 2] += b * x;
        }
    }
}

/* Add the inner products of three rows with three others, computed in float32, to nine vectors of LANES sums. These sums
   and the rows fill the registers. */
TARGET static void tile_products(const float *const *a, const float *const *b, int64_t n, double *sums) {
    const float *p = a[0], *q = a[1], *r = a[2], *x = b[0], *y = b[1], *z = b[2];
    Floats px = {0}, py = {0}, pz = {0}, qx = {0}, qy = {0}, qz = {0}, rx = {0}, ry = {0}, rz = {0};
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        Floats P = *(const Floats *)(p + i), Q = *(const Floats *)(q + i), R = *(const Floats *)(r + i);
        Floats X = *(const Floats *)(x + i), Y = *(const Floats *)(y + i), Z = *(const Floats *)(z + i);
        IN_REGISTERS(X, Y, Z);
        px += P * X, py += P * Y, pz += P * Z;
        qx += Q * X, qy += Q * Y, qz += Q * Z;
        rx += R * X, ry += R * Y, rz += R * Z;
    }
    const Floats found[TILE * TILE] = {px, py, pz, qx, qy, qz, rx, ry, rz};
    for (int k = 0; k < TILE * TILE; k++, sums += LANES) {
        const float *lanes = (const float *)&found[k];
        for (int l = 0; l < WIDTH; l++) sums[l % LANES] += lanes[l];
        for (int64_t l = i; l < n; l++) sums[0] += a[k / TILE][l] * b[k % TILE][l];
    }
}

/* Add sum_k a_k (end_k - start_k) to g, reading each tensor once; one of them may be g itself. */
TARGET static void add_vectors(float *g, const float *const *ends, const float *const *starts, const float *a,
                               int64_t count, int64_t n) {
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        Floats x[EACH];
        prefetch_before(g + i), prefetch_before(starts[0] + i);
        for (int j = 0; j < EACH; j++) x[j] = ((const Floats *)(g + i))[j];
        for (int64_t k = 0; k < count; k++) {
            const Floats *end = (const Floats *)(ends[k] + i), *start = (const Floats *)(starts[k] + i);
            prefetch_before(ends[k] + i);
            for (int j = 0; j < EACH; j++) x[j] += a[k] * (end[j] - start[j]);
        }
        for (int j = 0; j < EACH; j++) ((Floats *)(g + i))[j] = x[j];
    }
    for (; i < n; i++) {
        float x = g[i];
        for (int64_t k = 0; k < count; k++) x += a[k] * (ends[k][i] - starts[k][i]);
        g[i] = x;
    }
}

static const Vectors OF_WIDTH(vectors, WIDTH) = {run_products, tile_products, add_vectors};

#undef Floats
#undef total
#undef run_products
#undef tile_products
#undef add_vectors
#undef EACH
#undef KEPT
#undef JOINED
#undef OF_WIDTH
#undef WIDTH
#undef TARGET
