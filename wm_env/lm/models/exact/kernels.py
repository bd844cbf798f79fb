"""What lies between the int8 products, in few passes over memory: Triton kernels whose every step is an eager one.

A kernel does the operations that `network` names, each rounded on its own, in the same order, and keeps what is between
them in registers. So its results are the bits of the eager pass:

* every launch switches fused multiply-adds off (`enable_fp_fusion=False`);
* float32 quotients are `tl.div_rn`, float64 quotients and square roots are correctly rounded as PTX has them;
* x is rounded half to even by (x + 1.5 2^23) - 1.5 2^23, |x| < 2^22;
* constants of float64 formulas are made by `tl.full`, since Triton takes Python's numbers for float32;
* sums, whose order is the compiler's, are sums of integers.

Tensors of halves hold high above low, as `products.operand` makes them: (2 M, K) int8 before a product, (2 M, N) int32
after it. `fused` launches the kernels and compares each with the eager operations before it is used.
"""

import triton
import triton.language as tl

from wm_env.lm.models.exact.functions import EXP2_FLOAT32, MAGIC_FLOAT32
from wm_env.lm.models.exact.quantise import SMALLEST

_SMALLEST = tl.constexpr(SMALLEST)
_MAGIC = tl.constexpr(MAGIC_FLOAT32)
_C4, _C3, _C2, _C1 = (tl.constexpr(coefficient) for coefficient in EXP2_FLOAT32)


@triton.jit
def _rounded(x):
    """float32, |x| < 2^22 -> the next int32, half to even."""
    return ((x + _MAGIC) - _MAGIC).to(tl.int32)


@triton.jit
def _exp2(x):
    """`exp2_float32_`."""
    t = x + _MAGIC
    f = x - (t - _MAGIC)
    p = f * _C4
    p = (p + _C3) * f
    p = (p + _C2) * f
    p = (p + _C1) * f
    p = p + 1.0
    return (p.to(tl.int32, bitcast=True) + (t.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def _at_least(x, least):
    """Maximum that keeps NaN, as `clamp_min` does."""
    return tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _factor(most, TOP: tl.constexpr):
    """float32 TOP / most."""
    return tl.div_rn(tl.full(most.shape, TOP, tl.float32), most)


@triton.jit
def _high(q):
    """The high byte of 256 high + low, -128 <= low <= 127; low is the last byte of q."""
    return ((q + 128) >> 8).to(tl.int8)


@triton.jit
def _store_halves(out, at, low_at, q, mask):
    tl.store(out + at, _high(q), mask)
    tl.store(out + low_at, q.to(tl.int8), mask)


@triton.jit
def _linear(sums, at, low_at, matrix_scale, column, row_scale, mask, mask_column):
    """(float32(256 high + low) R) s, where s has the shape of a column beside the others, or is one number."""
    high = tl.load(sums + at, mask, other=0).to(tl.float64)
    low = tl.load(sums + low_at, mask, other=0).to(tl.float64)
    whole = (high * 256.0 + low).to(tl.float32)
    return (whole * tl.load(matrix_scale + column, mask_column, other=0.0)) * row_scale


@triton.jit
def _store_norm(h, out, scale, row, rows, column, mask, WIDTH: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr,
                INVERSE_WIDTH: tl.constexpr, EPS: tl.constexpr):  # fmt: skip
    """The integers of a row, and the scale of the row divided by its root mean square."""
    most = _at_least(tl.max(tl.abs(h), 0), _SMALLEST)
    q = _rounded(h * _factor(most, TOP))
    squares = tl.sum((q * q).to(tl.int64), 0).to(tl.float64)
    t = (most * STEP).to(tl.float64)
    mean = ((t * t) * squares) * tl.full((), INVERSE_WIDTH, tl.float64)
    root = tl.sqrt(mean + tl.full((), EPS, tl.float64))
    tl.store(scale + row, (t * (tl.full((), 1.0, tl.float64) / root)).to(tl.float32))
    _store_halves(out, row * WIDTH + column, (row + rows) * WIDTH + column, q, mask)


@triton.jit(do_not_specialize=["rows"])
def norm(h, out, scale, rows, WIDTH: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr,
         INVERSE_WIDTH: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """norm(h) of a row: (M, WIDTH) float32 -> halves (2 M, WIDTH), scale (M,)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    x = tl.load(h + row * WIDTH + column, mask, other=0.0)
    _store_norm(x, out, scale, row, rows, column, mask, WIDTH, TOP, STEP, INVERSE_WIDTH, EPS)


@triton.jit(do_not_specialize=["rows"])
def added_norm(h, sums, matrix_scale, row_scale, out, scale, rows, WIDTH: tl.constexpr, TOP: tl.constexpr,
               STEP: tl.constexpr, INVERSE_WIDTH: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """h = h + linear, in place, then norm(h): sums (2 M, WIDTH) int32 of the product before."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    at = row * WIDTH + column
    low_at = (row + rows) * WIDTH + column
    y = _linear(sums, at, low_at, matrix_scale, column, tl.load(row_scale + row), mask, mask)
    x = tl.load(h + at, mask, other=0.0) + y
    tl.store(h + at, x, mask)
    _store_norm(x, out, scale, row, rows, column, mask, WIDTH, TOP, STEP, INVERSE_WIDTH, EPS)


@triton.jit(do_not_specialize=["rows"])
def integers(x, out, scale, rows, WIDTH: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    """q(x) and m(x) 1/T of a row: (M, WIDTH) float32 -> halves (2 M, WIDTH), scale (M,)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    at = row * WIDTH + column
    y = tl.load(x + at, mask, other=0.0)
    most = _at_least(tl.max(tl.abs(y), 0), _SMALLEST)
    tl.store(scale + row, most * STEP)
    _store_halves(out, at, (row + rows) * WIDTH + column, _rounded(y * _factor(most, TOP)), mask)


@triton.jit(do_not_specialize=["rows", "length"])
def turned(sums, matrix_scale, row_scale, bias, cosine, sine, out, scale, rows, length, COLUMNS: tl.constexpr,
           HEADS: tl.constexpr, HALF: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr, SCORE: tl.constexpr,
           BIASED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Queries or keys of some heads at a position: turned by the tables, then integers along the width of a head.

    sums (2 M, COLUMNS) int32, whose first HEADS 2 HALF columns are the heads; tables (length, HALF); halves
    (2 M, HEADS 2 HALF); scale (M, HEADS) is (m 1/T) SCORE.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, HALF)
    column = head[:, None] * (2 * HALF) + lane[None, :]
    mask = (head[:, None] < HEADS) & (lane[None, :] < HALF)
    s = tl.load(row_scale + row)
    at = row * COLUMNS + column
    low_at = (row + rows) * COLUMNS + column
    a = _linear(sums, at, low_at, matrix_scale, column, s, mask, mask)
    b = _linear(sums, at + HALF, low_at + HALF, matrix_scale, column + HALF, s, mask, mask)
    if BIASED:
        a = a + tl.load(bias + column, mask, other=0.0)
        b = b + tl.load(bias + column + HALF, mask, other=0.0)
    position = (row % length) * HALF + lane
    cos = tl.load(cosine + position)[None, :]
    sin = tl.load(sine + position)[None, :]
    first = a * cos - b * sin
    second = b * cos + a * sin
    most = _at_least(tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1)), _SMALLEST)
    tl.store(scale + row * HEADS + head, (most * STEP) * SCORE, head < HEADS)
    factor = _factor(most, TOP)[:, None]
    out_at = row * (HEADS * 2 * HALF) + column
    out_low = (row + rows) * (HEADS * 2 * HALF) + column
    _store_halves(out, out_at, out_low, _rounded(first * factor), mask)
    _store_halves(out, out_at + HALF, out_low + HALF, _rounded(second * factor), mask)


@triton.jit
def _values_at(sums, matrix_scale, row_scale, bias, canvas, token, column, rows, length, COLUMNS: tl.constexpr,
               SKIPPED: tl.constexpr, WIDTH: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    row = (canvas * length + token).to(tl.int64)
    mask_row = token < length
    mask_column = column < WIDTH
    mask = mask_row[:, None] & mask_column[None, :]
    at = row[:, None] * COLUMNS + (SKIPPED + column)[None, :]
    low_at = (row + rows)[:, None] * COLUMNS + (SKIPPED + column)[None, :]
    s = tl.load(row_scale + row, mask_row, other=0.0)[:, None]
    v = _linear(sums, at, low_at, matrix_scale, (SKIPPED + column)[None, :], s, mask, mask_column[None, :])
    if BIASED:
        v = v + tl.load(bias + SKIPPED + column, mask_column, other=0.0)[None, :]
        v = tl.where(mask, v, 0.0)
    return v


@triton.jit(do_not_specialize=["rows", "length", "sixteens"])
def values(sums, matrix_scale, row_scale, bias, out, scale, rows, length, sixteens, COLUMNS: tl.constexpr,
           SKIPPED: tl.constexpr, WIDTH: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr, BIASED: tl.constexpr,
           BLOCK: tl.constexpr, TOKENS: tl.constexpr):  # fmt: skip
    """Values of some columns of a canvas: integers along the positions, stored positions last.

    sums (2 M, COLUMNS) int32, of which SKIPPED columns are keys; halves (2, canvases, WIDTH, 16 sixteens), 0 beyond
    the canvas; scale (canvases, WIDTH) is m 1/T.
    """
    canvas = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), 0.0, tl.float32)
    for start in range(0, length, TOKENS):
        token = start + tl.arange(0, TOKENS)
        v = _values_at(sums, matrix_scale, row_scale, bias, canvas, token, column, rows, length, COLUMNS, SKIPPED,
                       WIDTH, BIASED)  # fmt: skip
        most = _at_least(tl.max(tl.abs(v), 0), most)
    most = _at_least(most, _SMALLEST)
    tl.store(scale + canvas * WIDTH + column, most * STEP, column < WIDTH)
    factor = _factor(most, TOP)[None, :]
    first = (canvas.to(tl.int64) * WIDTH + column) * (sixteens * 16)
    beside = (rows // length).to(tl.int64) * WIDTH * (sixteens * 16)
    for start in range(0, length, TOKENS):
        token = start + tl.arange(0, TOKENS)
        v = _values_at(sums, matrix_scale, row_scale, bias, canvas, token, column, rows, length, COLUMNS, SKIPPED,
                       WIDTH, BIASED)  # fmt: skip
        at = first[None, :] + token[:, None]
        mask = (token < sixteens * 16)[:, None] & (column < WIDTH)[None, :]
        _store_halves(out, at, beside + at, _rounded(v * factor), mask)


@triton.jit
def _scores(q_high, q_low, q_scale, k, k_scale, canvas, group, key, rows, length, GROUPS: tl.constexpr,
            WIDTH: tl.constexpr):  # fmt: skip
    """(float32(sum q k) (m(Q) 1/T c)) (m(K) 1/T) of some queries and keys; -inf beyond the canvas."""
    row = (canvas * length + key).to(tl.int64)
    mask = key < length
    at = row[:, None] * (GROUPS * WIDTH) + group * WIDTH + tl.arange(0, WIDTH)[None, :]
    high = tl.trans(tl.load(k + at, mask[:, None], other=0))
    low = tl.trans(tl.load(k + at + rows.to(tl.int64) * (GROUPS * WIDTH), mask[:, None], other=0))
    # At most 256 columns: 256 sum(high high) + sum(high low + low high) is below 2^31.
    middle = tl.dot(q_low, high, tl.dot(q_high, low), out_dtype=tl.int32)
    upper = tl.dot(q_high, high) * 256 + middle
    whole = (upper.to(tl.float64) * 256.0 + tl.dot(q_low, low).to(tl.float64)).to(tl.float32)
    s = (whole * q_scale[:, None]) * tl.load(k_scale + row * GROUPS + group, mask, other=0.0)[None, :]
    return tl.where(mask[None, :], s, float("-inf"))


@triton.jit(do_not_specialize=["wanted", "length", "sixteens", "query_rows", "rows"])
def attention(q, q_scale, k, k_scale, v, v_scale, out, wanted, length, sixteens, query_rows, rows,
              HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TOP: tl.constexpr,
              QUERIES: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """Some queries of a head of a canvas, at most 2^15 keys: the halves of `turned` and `values` -> A (M, HEADS WIDTH).

    Once over the keys for the largest S of a row, once more for the sums of p and p v.
    """
    head = tl.program_id(1)
    canvas = tl.program_id(2)
    group = head // (HEADS // GROUPS)
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    mask = query < wanted
    row = (canvas * wanted + query).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    at = row[:, None] * (HEADS * WIDTH) + head * WIDTH + lane[None, :]
    q_high = tl.load(q + at, mask[:, None], other=0)
    q_low = tl.load(q + at + query_rows.to(tl.int64) * (HEADS * WIDTH), mask[:, None], other=0)
    scale = tl.load(q_scale + row * HEADS + head, mask, other=0.0)
    most = tl.full((QUERIES,), float("-inf"), tl.float32)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        s = _scores(q_high, q_low, scale, k, k_scale, canvas, group, key, rows, length, GROUPS, WIDTH)
        most = tl.maximum(most, tl.max(s, 1))
    total = tl.zeros((QUERIES,), tl.int32)
    upper = tl.zeros((QUERIES, WIDTH), tl.int32)
    middle = tl.zeros((QUERIES, WIDTH), tl.int32)
    lower = tl.zeros((QUERIES, WIDTH), tl.int32)
    column = (canvas.to(tl.int64) * GROUPS + group) * WIDTH + lane
    beside = (rows // length).to(tl.int64) * (GROUPS * WIDTH) * (sixteens * 16)
    for start in range(0, length, KEYS):
        key = start + tl.arange(0, KEYS)
        s = _scores(q_high, q_low, scale, k, k_scale, canvas, group, key, rows, length, GROUPS, WIDTH)
        p = _rounded(_exp2(tl.maximum(s - most[:, None], -60.0)) * TOP)
        p = tl.where((key < length)[None, :], p, 0)
        total += tl.sum(p, 1)
        p_high = _high(p)
        p_low = p.to(tl.int8)
        v_at = column[None, :] * (sixteens * 16) + key[:, None]
        stored = (key < sixteens * 16)[:, None]
        v_high = tl.load(v + v_at, stored, other=0)
        v_low = tl.load(v + beside + v_at, stored, other=0)
        upper = tl.dot(p_high, v_high, upper, out_dtype=tl.int32)
        middle = tl.dot(p_high, v_low, middle, out_dtype=tl.int32)
        middle = tl.dot(p_low, v_high, middle, out_dtype=tl.int32)
        lower = tl.dot(p_low, v_low, lower, out_dtype=tl.int32)
    whole = (upper.to(tl.float64) * 256.0 + middle.to(tl.float64)) * 256.0 + lower.to(tl.float64)
    y = (whole / total.to(tl.float64)[:, None]).to(tl.float32) * tl.load(v_scale + column)[None, :]
    tl.store(out + at, y, mask[:, None])


@triton.jit(do_not_specialize=["rows"])
def gated(sums, matrix_scale, row_scale, between, out, scale, rows, WIDTH: tl.constexpr, TOP: tl.constexpr,
          STEP: tl.constexpr, MINUS_LOG2_E: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """y = (g / (1 + 2^z)) u of a row, then its integers.

    sums (2 M, 2 WIDTH) int32, gates before ups; `between` (M, WIDTH) float32 takes y; halves (2 M, WIDTH).
    """
    row = tl.program_id(0).to(tl.int64)
    s = tl.load(row_scale + row)
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < WIDTH
        at = row * (2 * WIDTH) + column
        low_at = (row + rows) * (2 * WIDTH) + column
        g = _linear(sums, at, low_at, matrix_scale, column, s, mask, mask)
        u = _linear(sums, at + WIDTH, low_at + WIDTH, matrix_scale, column + WIDTH, s, mask, mask)
        z = tl.minimum(tl.maximum(g * MINUS_LOG2_E, -64.0), 64.0)
        y = tl.div_rn(g, _exp2(z) + 1.0) * u
        tl.store(between + row * WIDTH + column, y, mask)
        most = _at_least(tl.abs(y), most)
    largest = _at_least(tl.max(most, 0), _SMALLEST)
    tl.store(scale + row, largest * STEP)
    factor = _factor(largest, TOP)
    tl.debug_barrier()  # another thread may have stored what this one loads
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < WIDTH
        y = tl.load(between + row * WIDTH + column, mask, other=0.0)
        _store_halves(out, row * WIDTH + column, (row + rows) * WIDTH + column, _rounded(y * factor), mask)
