"""Ranks by sorting, and the figures made of them: slow and plain."""

import statistics


def sorted_ranks(scores, row_groups, column_groups):
    """The ranks and ties of the rows: best score first, and at one score the wrong answers before the true ones."""
    ranks, ties = [], []
    for row, group in zip(scores.tolist(), row_groups.tolist(), strict=True):
        answers = sorted((-score, other == group) for score, other in zip(row, column_groups.tolist(), strict=True))
        place = next(place for place, (_, true) in enumerate(answers) if true)
        ranks.append(place + 1)
        ties.append(sum(1 for score, true in answers if not true and score == answers[place][0]))
    return ranks, ties


def slow_figures(scores, image_groups, text_groups):
    found = {}
    for way, sides in (("i2t", (scores, image_groups, text_groups)), ("t2i", (scores.T, text_groups, image_groups))):
        ranks, ties = sorted_ranks(*sides)
        for level in (1, 5, 10):
            found[f"{way}_r{level}"] = 100 * sum(rank <= level for rank in ranks) / len(ranks)
        found[f"{way}_median_rank"] = statistics.median(ranks)
        found[f"{way}_mean_rank"] = sum(ranks) / len(ranks)
        found[f"{way}_ties"] = sum(count > 0 for count in ties)
    return found | {"rsum": sum(found[f"{way}_r{level}"] for way in ("i2t", "t2i") for level in (1, 5, 10))}
