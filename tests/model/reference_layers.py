"""The layers written once more, from the paper's sections 3.1 and 3.2, with plain loops over numbers. Items come one
at a time, without padding: what padding does to them must be nothing.
"""

import math

Vector = list[float]
Matrix = list[Vector]


def linear(x: Vector, weight: Matrix, bias: Vector | None = None) -> Vector:
    out = [sum(w * v for w, v in zip(row, x, strict=True)) for row in weight]
    return out if bias is None else [o + b for o, b in zip(out, bias, strict=True)]


def layer_norm(x: Vector, scale: Vector, shift: Vector) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return [(v - mean) / math.sqrt(variance + 1e-5) * s + b for v, s, b in zip(x, scale, shift, strict=True)]


def unit(x: Vector) -> Vector:
    norm = math.sqrt(sum(v * v for v in x))
    return [v / norm for v in x]


def gelu(v: float) -> float:
    return v * (1 + math.erf(v / math.sqrt(2))) / 2


def softmax(x: Vector) -> Vector:
    exps = [math.exp(v - max(x)) for v in x]
    return [e / sum(exps) for e in exps]


def wave(place: float, width: int) -> Vector:
    out = []
    for w in range(width):
        angle = place / 10000 ** (2 * (w // 2) / width)
        out.append(math.sin(angle) if w % 2 == 0 else math.cos(angle))
    return out


def sequence_positions(length: int, width: int) -> Matrix:
    return [wave(2 * math.pi * i / length, width) for i in range(1, length + 1)]


def grid_positions(rows: int, columns: int, width: int) -> Matrix:
    return [
        wave(2 * math.pi * y / rows, width // 2) + wave(2 * math.pi * x / columns, width // 2)
        for y in range(1, rows + 1)
        for x in range(1, columns + 1)
    ]


def slot_attention(slots: Matrix, keys_from: Matrix, values_from: Matrix, weights: dict, heads: int):
    """(what each slot takes, the weights [head][slot][input])."""
    queries = [linear(x, weights["to_queries.weight"]) for x in slots]
    keys = [linear(x, weights["to_keys.weight"]) for x in keys_from]
    values = [linear(x, weights["to_values.weight"]) for x in values_from]
    size, count, width = len(slots), len(keys), len(queries[0]) // heads
    taken = [[] for _ in slots]
    maps = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        share = [[0.0] * count for _ in slots]
        for n in range(count):
            logits = [
                sum(a * b for a, b in zip(queries[k][part], keys[n][part], strict=True)) / math.sqrt(width)
                for k in range(size)
            ]
            for k, value in enumerate(softmax(logits)):
                share[k][n] = value
        maps.append([[a / (sum(row) + 1e-7) for a in row] for row in share])
        for k in range(size):
            for d in range(part.start, part.stop):
                taken[k].append(sum(maps[h][k][n] * values[n][d] for n in range(count)))
    return [linear(x, weights["output.0.weight"], weights["output.0.bias"]) for x in taken], maps


def add(x: Vector, y: Vector) -> Vector:
    return [a + b for a, b in zip(x, y, strict=True)]


def under(weights: dict, prefix: str) -> dict:
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def set_head(local: Matrix, positions: Matrix | None, pooled: Vector, weights: dict, heads: int, depth: int):
    """(vectors, residual, attention): keys and values are computed anew in every block."""

    def norm(name: str, x: Vector) -> Vector:
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    slots = weights["slots"]
    for _ in range(depth):
        context = [norm("block.context_norm", x) for x in local]
        placed = context if positions is None else [add(x, p) for x, p in zip(context, positions, strict=True)]
        queries = [norm("block.query_norm", x) for x in slots]
        taken, maps = slot_attention(queries, placed, context, under(weights, "block.attention."), heads)
        slots = [add(x, t) for x, t in zip(slots, taken, strict=True)]
        hidden = [
            linear(
                norm("block.feedforward.0", x),
                weights["block.feedforward.1.weight"],
                weights["block.feedforward.1.bias"],
            )
            for x in slots
        ]
        slots = [
            add(
                x,
                linear(
                    [gelu(v) for v in h], weights["block.feedforward.4.weight"], weights["block.feedforward.4.bias"]
                ),
            )
            for x, h in zip(slots, hidden, strict=True)
        ]
    residual = [norm("residual_norm", x) for x in slots]
    vectors = [unit(add(x, norm("pooled_norm", pooled))) for x in residual]
    attention = [
        [sum(maps[h][k][n] for h in range(heads)) / heads for n in range(len(local))] for k in range(len(slots))
    ]
    return vectors, residual, attention


def pie_head(local: Matrix, pooled: Vector, weights: dict):
    """(vectors, residual, attention)."""
    hidden = [[math.tanh(v) for v in linear(x, weights["attention.0.weight"])] for x in local]
    logits = [linear(x, weights["attention.2.weight"]) for x in hidden]
    vectors, residuals, attention = [], [], []
    for k in range(len(logits[0])):
        a = softmax([row[k] for row in logits])
        attended = [sum(a[n] * local[n][w] for n in range(len(local))) for w in range(len(local[0]))]
        residual = [1 / (1 + math.exp(-v)) for v in linear(attended, weights["fc.weight"], weights["fc.bias"])]
        vectors.append(unit(layer_norm(add(pooled, residual), weights["norm.weight"], weights["norm.bias"])))
        residuals.append(residual)
        attention.append(a)
    return vectors, residuals, attention


def gru_step(state: Vector, x: Vector, weights: dict, direction: str) -> Vector:
    """One step of a GRU, whose gates stand one after another in the weights: reset, update, new."""
    of_input, of_state = (
        linear(given, weights[f"gru.weight_{kind}_l0{direction}"], weights[f"gru.bias_{kind}_l0{direction}"])
        for kind, given in (("ih", x), ("hh", state))
    )
    size, following = len(state), []
    for i, old in enumerate(state):
        reset = 1 / (1 + math.exp(-of_input[i] - of_state[i]))
        update = 1 / (1 + math.exp(-of_input[size + i] - of_state[size + i]))
        new = math.tanh(of_input[2 * size + i] + reset * of_state[2 * size + i])
        following.append((1 - update) * new + update * old)
    return following


def gpo_weights(length: int, weights: dict) -> Vector:
    """The weight of each rank of an item with `length` features."""
    ranks = range(length)
    codes = [wave(float(i), 32) for i in ranks]
    states = {}
    for direction, order in (("", ranks), ("_reverse", reversed(ranks))):
        state = [0.0] * 32
        for i in order:
            state = states[direction, i] = gru_step(state, codes[i], weights, direction)
    scores = []
    for i in ranks:
        mean = [(a + b) / 2 for a, b in zip(states["", i], states["_reverse", i], strict=True)]
        scores += linear(mean, weights["score.weight"])
    return softmax([score / 0.1 for score in scores])


def gpo_pool(local: Matrix, weights: Vector) -> Vector:
    """Every column sorted on its own, the largest first, and weighted by rank."""
    columns = [sorted(column, reverse=True) for column in zip(*local, strict=True)]
    return [sum(w * v for w, v in zip(weights, column, strict=True)) for column in columns]
