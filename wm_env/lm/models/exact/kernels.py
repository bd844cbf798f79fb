"""Int8 products and what lies between them, in few passes over memory: Triton kernels whose every step is an eager one.

A kernel does the operations that `network` names, each rounded on its own, in the same order, and keeps what is between
them in registers. So its results are the bits of the eager pass:

* every launch switches fused multiply-adds off (`enable_fp_fusion=False`);
* float32 quotients are `tl.div_rn`, float64 quotients and square roots are correctly rounded as PTX has them;
* x is rounded half to even by (x + 1.5 2^23) - 1.5 2^23, |x| < 2^22;
* constants of float64 formulas are made by `tl.full`, since Triton takes Python's numbers for float32;
* sums, whose order is the compiler's, are sums of integers.

Tensors of halves hold high above low, as `products.operand` makes them: (2 M, K) int8. `fused` launches the kernels,
`fused_start` compares each with the eager operations before it is used.
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


@triton.jit(do_not_specialize=["rows"])
def linear(x, row_scale, weight, matrix_scale, bias, out, rows, N, K, BIASED: tl.constexpr, EVEN: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TOGETHER: tl.constexpr):  # fmt: skip
    """linear(W; x, s): halves (2 M, K), scale (M,), W (N, K) int8, R (N,), bias (N,) -> (M, N) float32.

    Both halves of a block of x are multiplied by a block of W while it is at hand; EVEN: DEPTH divides K. Programs that
    run together share `TOGETHER` blocks of rows, so that what they read is in the cache.
    """
    number = tl.program_id(0)
    blocks = tl.cdiv(N, COLUMNS)
    first = number // (TOGETHER * blocks) * TOGETHER
    size = tl.minimum(tl.cdiv(rows, ROWS) - first, TOGETHER)
    row = (first + (number % (TOGETHER * blocks)) % size) * ROWS + tl.arange(0, ROWS)
    column = (number % (TOGETHER * blocks)) // size * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, DEPTH)
    high_at = x + (row % rows).to(tl.int64)[:, None] * K + lane[None, :]
    low_at = high_at + rows.to(tl.int64) * K
    weight_at = weight + (column % N).to(tl.int64)[None, :] * K + lane[:, None]
    high = tl.zeros((ROWS, COLUMNS), tl.int32)
    low = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, K, DEPTH):
        if EVEN:
            w = tl.load(weight_at + start)
            high = tl.dot(tl.load(high_at + start), w, high, out_dtype=tl.int32)
            low = tl.dot(tl.load(low_at + start), w, low, out_dtype=tl.int32)
        else:
            inside = lane < K - start
            w = tl.load(weight_at + start, inside[:, None], other=0)
            high = tl.dot(tl.load(high_at + start, inside[None, :], other=0), w, high, out_dtype=tl.int32)
            low = tl.dot(tl.load(low_at + start, inside[None, :], other=0), w, low, out_dtype=tl.int32)
    inside = column < N
    whole = (high.to(tl.float64) * 256.0 + low.to(tl.float64)).to(tl.float32)
    y = whole * tl.load(matrix_scale + column, inside, other=0.0)[None, :]
    y = y * tl.load(row_scale + row, row < rows, other=0.0)[:, None]
    if BIASED:
        y = y + tl.load(bias + column, inside, other=0.0)[None, :]
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(out + at, y, (row < rows)[:, None] & inside[None, :])


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
def added_norm(h, y, out, scale, rows, WIDTH: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr,
               INVERSE_WIDTH: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """h = h + y, in place, then norm(h)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    at = row * WIDTH + column
    x = tl.load(h + at, mask, other=0.0) + tl.load(y + at, mask, other=0.0)
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
def turned(y, cosine, sine, out, scale, rows, length, COLUMNS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
           TOP: tl.constexpr, STEP: tl.constexpr, SCORE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Queries or keys of some heads at a position: turned by the tables, then integers along the width of a head.

    y (M, COLUMNS), whose first HEADS 2 HALF columns are the heads; tables (length, HALF); halves (2 M, HEADS 2 HALF);
    scale (M, HEADS) is (m 1/T) SCORE.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, HALF)
    column = head[:, None] * (2 * HALF) + lane[None, :]
    mask = (head[:, None] < HEADS) & (lane[None, :] < HALF)
    a = tl.load(y + row * COLUMNS + column, mask, other=0.0)
    b = tl.load(y + row * COLUMNS + column + HALF, mask, other=0.0)
    position = (row % length) * HALF + lane
    cos = tl.load(cosine + position)[None, :]
    sin = tl.load(sine + position)[None, :]
    first = a * cos - b * sin
    second = b * cos + a * sin
    most = _at_least(tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1)), _SMALLEST)
    tl.store(scale + row * HEADS + head, (most * STEP) * SCORE, head < HEADS)
    factor = _factor(most, TOP)[:, None]
    at = row * (HEADS * 2 * HALF) + column
    low_at = (row + rows) * (HEADS * 2 * HALF) + column
    _store_halves(out, at, low_at, _rounded(first * factor), mask)
    _store_halves(out, at + HALF, low_at + HALF, _rounded(second * factor), mask)


@triton.jit(do_not_specialize=["rows", "length", "sixteens"])
def values(y, out, scale, rows, length, sixteens, COLUMNS: tl.constexpr, SKIPPED: tl.constexpr, WIDTH: tl.constexpr,
           TOP: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr):  # fmt: skip
    """Values of some columns of a canvas: integers along the positions, stored positions last.

    y (M, COLUMNS), of which SKIPPED columns are keys; halves (2, canvases, WIDTH, 16 sixteens), 0 beyond the canvas;
    scale (canvases, WIDTH) is m 1/T.
    """
    canvas = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (column < WIDTH)[None, :]
    lane = tl.arange(0, TOKENS)
    y_at = y + (canvas * length + lane).to(tl.int64)[:, None] * COLUMNS + (SKIPPED + column)[None, :]
    most = tl.full((BLOCK,), _SMALLEST, tl.float32)
    for start in range(0, length, TOKENS):
        v = tl.load(y_at + start * COLUMNS, (lane < length - start)[:, None] & inside, other=0.0)
        most = _at_least(tl.max(tl.abs(v), 0), most)
    tl.store(scale + canvas * WIDTH + column, most * STEP, column < WIDTH)
    factor = _factor(most, TOP)[None, :]
    at = (canvas.to(tl.int64) * WIDTH + column)[None, :] * (sixteens * 16) + lane[:, None]
    low_at = at + (rows // length).to(tl.int64) * WIDTH * (sixteens * 16)
    for start in range(0, length, TOKENS):
        v = tl.load(y_at + start * COLUMNS, (lane < length - start)[:, None] & inside, other=0.0)
        mask = (start + lane < sixteens * 16)[:, None] & inside
        _store_halves(out, at + start, low_at + start, _rounded(v * factor), mask)


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


@triton.jit
def _weights(s, most, key, length, TOP: tl.constexpr):
    """The integers p, 0 beyond the canvas."""
    p = _rounded(_exp2(tl.maximum(s - most[:, None], -60.0)) * TOP)
    return tl.where((key < length)[None, :], p, 0)


@triton.jit
def _weighted(p, v, column, key, canvases, sixteens, GROUPS: tl.constexpr, WIDTH: tl.constexpr, upper, middle, lower):
    """Adds p v: sums of products of high halves, of high and low ones, and of low halves."""
    at = column[None, :] * (sixteens * 16) + key[:, None]
    stored = (key < sixteens * 16)[:, None]
    high = tl.load(v + at, stored, other=0)
    low = tl.load(v + at + canvases.to(tl.int64) * (GROUPS * WIDTH) * (sixteens * 16), stored, other=0)
    p_high = _high(p)
    p_low = p.to(tl.int8)
    upper = tl.dot(p_high, high, upper, out_dtype=tl.int32)
    middle = tl.dot(p_high, low, middle, out_dtype=tl.int32)
    middle = tl.dot(p_low, high, middle, out_dtype=tl.int32)
    return upper, middle, tl.dot(p_low, low, lower, out_dtype=tl.int32)


@triton.jit(do_not_specialize=["wanted", "length", "sixteens", "query_rows", "rows"])
def attention(q, q_scale, k, k_scale, v, v_scale, out, wanted, length, sixteens, query_rows, rows,
              HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, TOP: tl.constexpr, WHOLE: tl.constexpr,
              QUERIES: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """Some queries of a head of a canvas, at most 2^15 keys: the halves of `turned` and `values` -> A (M, HEADS WIDTH).

    WHOLE: the keys of a canvas are one block. Else once over the keys for the largest S of a row, once more for the
    sums of p and p v.
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
    column = (canvas.to(tl.int64) * GROUPS + group) * WIDTH + lane
    canvases = rows // length
    upper = tl.zeros((QUERIES, WIDTH), tl.int32)
    middle = tl.zeros((QUERIES, WIDTH), tl.int32)
    lower = tl.zeros((QUERIES, WIDTH), tl.int32)
    if WHOLE:
        key = tl.arange(0, KEYS)
        s = _scores(q_high, q_low, scale, k, k_scale, canvas, group, key, rows, length, GROUPS, WIDTH)
        p = _weights(s, tl.max(s, 1), key, length, TOP)
        total = tl.sum(p, 1)
        upper, middle, lower = _weighted(p, v, column, key, canvases, sixteens, GROUPS, WIDTH, upper, middle, lower)
    else:
        most = tl.full((QUERIES,), float("-inf"), tl.float32)
        for start in range(0, length, KEYS):
            key = start + tl.arange(0, KEYS)
            s = _scores(q_high, q_low, scale, k, k_scale, canvas, group, key, rows, length, GROUPS, WIDTH)
            most = tl.maximum(most, tl.max(s, 1))
        total = tl.zeros((QUERIES,), tl.int32)
        for start in range(0, length, KEYS):
            key = start + tl.arange(0, KEYS)
            s = _scores(q_high, q_low, scale, k, k_scale, canvas, group, key, rows, length, GROUPS, WIDTH)
            p = _weights(s, most, key, length, TOP)
            total += tl.sum(p, 1)
            upper, middle, lower = _weighted(p, v, column, key, canvases, sixteens, GROUPS, WIDTH, upper, middle, lower)
    whole = (upper.to(tl.float64) * 256.0 + middle.to(tl.float64)) * 256.0 + lower.to(tl.float64)
    y = (whole / total.to(tl.float64)[:, None]).to(tl.float32) * tl.load(v_scale + column)[None, :]
    tl.store(out + at, y, mask[:, None])


@triton.jit(do_not_specialize=["rows"])
def gated(y, out, scale, rows, WIDTH: tl.constexpr, TOP: tl.constexpr, STEP: tl.constexpr,
          MINUS_LOG2_E: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The gate of a row, g / (1 + 2^z) u, and its integers: y (M, 2 WIDTH), gates before ups -> halves (2 M, WIDTH).

    The results take the place of the gates in y.
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    at = y + row * (2 * WIDTH) + lane
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WIDTH, BLOCK):
        mask = lane < WIDTH - start
        g = tl.load(at + start, mask, other=0.0)
        u = tl.load(at + start + WIDTH, mask, other=0.0)
        z = tl.minimum(tl.maximum(g * MINUS_LOG2_E, -64.0), 64.0)
        result = tl.div_rn(g, _exp2(z) + 1.0) * u
        tl.store(at + start, result, mask)
        most = _at_least(tl.abs(result), most)
    largest = _at_least(tl.max(most, 0), _SMALLEST)
    tl.store(scale + row, largest * STEP)
    factor = _factor(largest, TOP)
    tl.debug_barrier()  # another thread may have stored what this one loads
    for start in range(0, WIDTH, BLOCK):
        mask = lane < WIDTH - start
        q = _rounded(tl.load(at + start, mask, other=0.0) * factor)
        column = start + lane
        _store_halves(out, row * WIDTH + column, (row + rows) * WIDTH + column, q, mask)
