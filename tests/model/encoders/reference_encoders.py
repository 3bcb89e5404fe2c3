"""The encoders written again with plain loops over numbers: one item at a time, without padding."""

import math

import torch

Vector = list[float]
Matrix = list[Vector]


def assert_item(features, place: int, expected: tuple[Matrix, Vector]) -> None:
    """What an encoder made of one item of a batch, in float64, is what the reference makes of it alone."""
    local, pooled = (torch.tensor(part, dtype=torch.float64) for part in expected)
    torch.testing.assert_close(features.local[place, : len(local)], local, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(features.pooled[place], pooled, rtol=1e-10, atol=1e-12)


def parameters_of(module: torch.nn.Module) -> dict[str, list]:
    """The parameters outside a backbone, as lists."""
    return {name: value.tolist() for name, value in module.state_dict().items() if not name.startswith("backbone.")}


def linear(x: Vector, weight: Matrix, bias: Vector) -> Vector:
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def maximum(rows: Matrix) -> Vector:
    return [max(column) for column in zip(*rows, strict=True)]


def mean(rows: Matrix) -> Vector:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def region(regions: Matrix, weights: dict, mlp_reads: str = "fc") -> tuple[Matrix, Vector]:
    local = []
    for x in regions:
        base = linear(x, weights["fc.weight"], weights["fc.bias"])
        hidden = linear(base if mlp_reads == "fc" else x, weights["mlp.0.weight"], weights["mlp.0.bias"])
        for i, h in enumerate(hidden):
            spread = math.sqrt(weights["mlp.1.running_var"][i] + 1e-5)
            normal = (h - weights["mlp.1.running_mean"][i]) / spread
            hidden[i] = max(0.0, normal * weights["mlp.1.weight"][i] + weights["mlp.1.bias"][i])
        extra = linear(hidden, weights["mlp.3.weight"], weights["mlp.3.bias"])
        local.append([a + b for a, b in zip(extra, base, strict=True)])
    return local, maximum(local)


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def gru_direction(words: Matrix, weights: dict, suffix: str) -> Matrix:
    """The states of a GRU. Its three gates stand one after another in the weights: reset, update, new."""
    weight_i, weight_h = weights[f"gru.weight_ih_l0{suffix}"], weights[f"gru.weight_hh_l0{suffix}"]
    bias_i, bias_h = weights[f"gru.bias_ih_l0{suffix}"], weights[f"gru.bias_hh_l0{suffix}"]
    size = len(weight_h) // 3
    state, states = [0.0] * size, []
    for x in words:
        from_input, from_state = linear(x, weight_i, bias_i), linear(state, weight_h, bias_h)
        following = []
        for i in range(size):
            reset = sigmoid(from_input[i] + from_state[i])
            update = sigmoid(from_input[size + i] + from_state[size + i])
            new = math.tanh(from_input[2 * size + i] + reset * from_state[2 * size + i])
            following.append((1 - update) * new + update * state[i])
        state = following
        states.append(state)
    return states


def gru(ids: list[int], weights: dict, directions: str, local: str = "words") -> tuple[Matrix, Vector]:
    words = [weights["words.weight"][i] for i in ids]
    forward = gru_direction(words, weights, "")
    if directions == "forward":
        return words if local == "words" else forward, forward[-1]
    backward = gru_direction(words[::-1], weights, "_reverse")[::-1]

    def joined(one: Vector, other: Vector) -> Vector:
        return mean([one, other]) if directions == "mean" else one + other

    states = [joined(*pair) for pair in zip(forward, backward, strict=True)]
    return words if local == "words" else states, joined(forward[-1], backward[0])


POOLING = {"max": maximum, "mean": mean, "first": lambda rows: rows[0]}


def unit(x: Vector) -> Vector:
    norm = math.sqrt(sum(v * v for v in x))
    return [v / norm for v in x]


def conv(
    cells: Matrix, weights: dict, pooling: str, projection: str = "linear", unit_pooled: bool = False
) -> tuple[Matrix, Vector]:
    prefix = "local_projection."
    mine = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    if projection == "linear":
        local = [linear(x, mine["weight"], mine["bias"]) for x in cells]
    else:
        local = cells if projection == "none" else region(cells, mine)[0]
    if pooling == "none":
        return local, mean(local)
    pooled = unit(POOLING[pooling](cells)) if unit_pooled else POOLING[pooling](cells)
    return local, linear(pooled, weights["pooled_projection.weight"], weights["pooled_projection.bias"])


def transformer(hidden: Matrix, weights: dict, pooling: str) -> tuple[Matrix, Vector]:
    local = [linear(x, weights["projection.weight"], weights["projection.bias"]) for x in hidden]
    return local, POOLING[pooling](local)
