"""Products of codes with queries in whole numbers, as vector instructions.

A loop over 8-bit codes that numba compiles fills half of a vector register. These loops
are built from LLVM instructions instead: 16 codes are widened, multiplied with 16
numbers of a query, and neighbouring products are added. On Intel and AMD processors
that is one instruction, with twice the throughput of products in float32; other
processors need a few.

numba keeps compiled loops by the date of `_numba.py`: after a change of this file,
touch that one.
"""

try:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.core.errors import TypingError
    from numba.extending import intrinsic
except ImportError:  # pragma: no cover - depends on what is installed

    def intrinsic(function):
        return function


def multiplier(rows, queries):
    """A compiled function: the products of some rows of codes with some queries.

    ``multiply(codes, i, whole, c)`` is a tuple of ``codes[i + a] · whole[c + b]`` in
    int32, for each a < `rows` and b < `queries`; b varies fastest. Both arrays are
    C-contiguous, `codes` int8 and `whole` int16, and have the same number of columns, a
    multiple of 32. Sums must not exceed int32.
    """

    @intrinsic
    def multiply(_, codes, i, whole, c):
        if codes.layout != "C" or whole.layout != "C":
            raise TypingError(f"rows are not C-contiguous: {codes}, {whole}")
        result = types.UniTuple(types.int32, rows * queries)

        def generate(context, builder, signature, arguments):
            codes, i, whole, c = arguments
            columns, left = _rows(context, builder, signature.args[0], codes, i, rows)
            _, right = _rows(context, builder, signature.args[2], whole, c, queries)
            sums = _sums(builder, columns, left, right)
            return context.make_tuple(builder, result, sums)

        return result(codes, types.intp, whole, types.intp), generate

    return multiply


def _rows(context, builder, kind, array, first, count):
    """The number of columns of an array, and pointers to `count` of its rows."""
    array = context.make_array(kind)(context, builder, array)
    _, columns = cgutils.unpack_tuple(builder, array.shape)
    starts = [builder.add(first, ir.Constant(first.type, at)) for at in range(count)]
    return columns, [
        builder.gep(array.data, [builder.mul(start, columns)]) for start in starts
    ]


def _sums(builder, columns, left, right):
    """Sums over all columns of the products of each row of codes with each query."""
    # Additions to one sum wait for each other, so a single one is made in two halves.
    lanes = 16 if len(left) * len(right) > 1 else 32
    narrow, wide = (ir.VectorType(ir.IntType(32), size) for size in (lanes // 2, lanes))
    zero, step = ir.Constant(narrow, None), ir.Constant(columns.type, lanes)
    pairs = [(a, b) for a in range(len(left)) for b in range(len(right))]
    sums = [cgutils.alloca_once_value(builder, zero) for _ in pairs]
    begin = ir.Constant(columns.type, 0)
    with cgutils.for_range_slice(builder, begin, columns, step) as (column, _):
        x, q = (
            [_load(builder, row, column, wide) for row in rows]
            for rows in (left, right)
        )
        for total, (a, b) in zip(sums, pairs, strict=True):
            product = builder.mul(x[a], q[b])
            even, odd = (_every_other(builder, product, start) for start in (0, 1))
            added = builder.add(builder.load(total), builder.add(even, odd))
            builder.store(added, total)
    return [_total(builder, builder.load(total)) for total in sums]


def _load(builder, row, column, wide):
    """Numbers of a row from a column on, as integers of 32 bits."""
    number = row.type.pointee
    pointer = builder.gep(row, [column])
    vector = ir.VectorType(number, wide.count)
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    loaded.align = number.width // 8
    return builder.sext(loaded, wide)


def _every_other(builder, vector, start):
    """Every other element of a vector."""
    places = list(range(start, vector.type.count, 2))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _total(builder, vector):
    """The sum of the elements of a vector."""
    kind, name = vector.type, f"llvm.vector.reduce.add.v{vector.type.count}i32"
    function = ir.FunctionType(kind.element, [kind])
    function = cgutils.get_or_insert_function(builder.module, function, name)
    return builder.call(function, [vector])
