/* Loads, stores and sums rows of numbers, 64 at a time, in float32, for norm.h and blend.h. Sums over a row have 64
 * parts, which are the same on every instruction set. */
#define ROW_MAP(X) FLOAT16_MAP(X) X(BFLOAT16, 2) X(FLOAT32, 4)
/* A block is 64 elements: ROW_PARTS vectors of ROW_LANES lanes in float32. */
enum { ROW_BLOCK = 64, ROW_LANES = WIDTH / 4, ROW_PARTS = ROW_BLOCK / ROW_LANES };
/* Returns which element of a block is in lane `lane` of vector `part`. Unpacking reorders bfloat16, and float16 on some
   instruction sets. */
INLINE int row_element(tutti_dtype dtype, int part, int lane)
{
    bool by_parity = dtype == TUTTI_BFLOAT16 || (dtype == TUTTI_FLOAT16 && FLOAT16_BY_PARITY);
    int pair = part / 2 * 2 * ROW_LANES;
    return by_parity ? pair + 2 * lane + part % 2 : part * ROW_LANES + lane;
}
/* Returns the bytes of one element. */
INLINE size_t row_element_bytes(tutti_dtype dtype) { return dtype == TUTTI_FLOAT32 ? 4 : 2; }

/* ---- a block, or one element in the first lane ---- */
/* Loads a block as float32. */
INLINE void row_load(tutti_dtype dtype, const char *from, vector *out)
{
    for (int k = 0; k < ROW_PARTS / dtype_count_parts(dtype); k++)
        vector_unpack_parts(dtype, from + k * WIDTH, out + k * dtype_count_parts(dtype));
}
/* Replaces NaNs in a block by the canonical NaN. */
INLINE void row_canonicalize_nans(vector *part)
{
    if (__builtin_expect(!widened_any_nan(part, ROW_PARTS), 1)) return;
    for (int p = 0; p < ROW_PARTS; p++) part[p] = lanes_canonicalize_nans(TUTTI_FLOAT32, part[p]);
}
/* Stores a block, rounded to the dtype, and replaces `part` by the rounded numbers. */
INLINE void row_round(tutti_dtype dtype, char *to, vector *part)
{
    row_canonicalize_nans(part);
    for (int k = 0; k < ROW_PARTS / dtype_count_parts(dtype); k++) {
        vector packed = vector_pack_parts(dtype, part + k * dtype_count_parts(dtype));
        vector_store(to + k * WIDTH, packed);
        vector_unpack_parts(dtype, (const char *)&packed, part + k * dtype_count_parts(dtype));
    }
}
/* Stores a block, rounded to the dtype. */
INLINE void row_store(tutti_dtype dtype, char *to, vector *part)
{
    row_canonicalize_nans(part);
    for (int k = 0; k < ROW_PARTS / dtype_count_parts(dtype); k++)
        vector_store(to + k * WIDTH, vector_pack_parts(dtype, part + k * dtype_count_parts(dtype)));
}
/* Returns one element. */
INLINE float row_load_one(tutti_dtype dtype, const char *from)
{
    vector part[2], some = vector_load_some(from, row_element_bytes(dtype));
    vector_unpack_parts(dtype, (const char *)&some, part);
    return ((lanes_f32)part[0])[0];
}
/* Stores one element, rounded to the dtype, and returns the rounded number. */
INLINE float row_store_one(tutti_dtype dtype, char *to, float number)
{
    vector part[2] = { (vector)((lanes_f32){ number }), vector_all(0) };
    parts_canonicalize_nans(dtype, part, dtype_count_parts(dtype));
    vector packed = vector_pack_parts(dtype, part);
    vector_store_some(to, packed, row_element_bytes(dtype));
    return row_load_one(dtype, to);
}

/* ---- a sum over a row ---- */
/* Returns the sum of the 64 numbers of a block, added in pairs of elements that are 32, 16, … 1 apart. As long as there
   are more vectors than one unpacking makes, these pairs lie in the same lane of two vectors. Overwrites `part`. */
INLINE float row_sum_block(tutti_dtype dtype, lanes_f32 *part)
{
    int parts = ROW_PARTS;
    float sum[ROW_BLOCK];
    while (parts > dtype_count_parts(dtype)) {
        parts /= 2;
        for (int p = 0; p < parts; p++) part[p] += part[p + parts];
    }
    for (int p = 0; p < parts; p++)
        for (int l = 0; l < ROW_LANES; l++) sum[row_element(dtype, p, l)] = part[p][l];
    for (int apart = parts * ROW_LANES / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++) sum[i] += sum[i + apart];
    return sum[0];
}
