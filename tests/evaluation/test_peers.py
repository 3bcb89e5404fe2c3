"""The same figures as other libraries, on random cases: scikit-learn and eccv_caption, and the formulas of VSE++ and
CLIP_benchmark, in `make test`; ranx, ir-measures, pytrec_eval, torchmetrics and mteb in `make test-peers`, which
installs them and draws 10,000 cases (2,000 for mteb).

Others break ties by the order of the items, or not at all. So they are given scores whose ties are broken against the
model beforehand; on these, all agree with ours on the tied scores. What they make of ties themselves: the last tests.
"""

import contextlib
import io
import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from made_splits import galleries
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score, ndcg_score

from maxmatch.evaluation import evaluate_scores

EXAMPLES = int(os.environ.get("MAXMATCH_EXAMPLES", "200"))
WHY = "a peer that is not installed for `make test`: run `make test-peers`"
several = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def both_ways(scores, images, texts):
    """For each direction the scores without ties (queries, answers), and which answers are true."""
    true = (images[:, None] == texts).numpy()
    values = scores.double().numpy()
    return {"i2t": (untied(values, true), true), "t2i": (untied(values.T, true.T), true.T)}


def untied(scores, true):
    """Whole numbers from 1 on in the order of the scores; of equal ones a wrong answer has the higher."""
    order = np.lexsort((~true, scores), axis=1)
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, scores.shape[1] + 1)[None], 1)
    return ranks.astype(float)


def assert_equal(gallery, *peers):
    """peers: from scores and truth of a direction to the mean of each measure, from 0 to 1, by our names."""
    found = evaluate_scores(*gallery)
    figures = {**found.figures, **found.at(5), **found.at(10)}
    for way, (scores, true) in both_ways(*gallery).items():
        for peer in peers:
            for name, value in peer(scores, true).items():
                if way == "i2t" or name not in ("map_at_r", "r_precision"):  # with one image per text these are R@1
                    assert figures[f"{way}_{name}"] == pytest.approx(100 * float(value), abs=1e-3), (peer, way, name)


# In `make test`.


def by_scikit_learn(scores, true):
    if scores.shape[1] == 1:
        return {}
    found = {f"ndcg_{k}": ndcg_score(true, scores, k=k) for k in (5, 10)}
    return found | {"map": label_ranking_average_precision_score(true, scores)}  # mAP, as nothing is tied


def vse_ranks(scores, true):
    """VSE++'s evaluation.py, i2t: of each query the place of its best true answer in numpy.argsort(scores)[::-1]."""
    ranks = []
    for row, right in zip(scores, true, strict=True):
        order = np.argsort(row)[::-1]
        ranks.append(min(int(np.where(order == answer)[0][0]) for answer in np.flatnonzero(right)))
    return np.array(ranks)


def by_vse(scores, true):
    ranks = vse_ranks(scores, true)
    found = {f"r{level}": np.sum(ranks < level) / len(ranks) for level in (1, 5, 10)}
    return found | {"mean_rank": (ranks.mean() + 1) / 100, "median_rank": (np.median(ranks) + 1) / 100}


def clip_benchmark_recall(scores, positive_pairs, k):
    """CLIP_benchmark's zeroshot_retrieval.recall_at_k, of which the share that is above 0 is reported."""
    scores, positive_pairs = torch.as_tensor(scores), torch.as_tensor(positive_pairs)
    first = torch.topk(scores, min(k, scores.shape[1]), dim=1).indices
    chosen = torch.nn.functional.one_hot(first, scores.shape[1]).bool()
    return (positive_pairs[:, None] & chosen).sum((1, 2)) / positive_pairs.sum(1)


def by_clip_benchmark(scores, true):
    recalls = {k: clip_benchmark_recall(scores, true, k).double() for k in (1, 5, 10)}
    found = {f"r{k}": (some > 0).double().mean() for k, some in recalls.items()}
    return found | {f"coverage_{k}": recalls[k].mean() for k in (5, 10)}


def by_eccv_caption(scores, true):
    ranked = {query: np.argsort(-row, kind="stable").tolist() for query, row in enumerate(scores)}
    answers = {query: np.flatnonzero(row).tolist() for query, row in enumerate(true)}
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a faster JSON
        from eccv_caption._metrics import compute_eccv_metrics

        found = compute_eccv_metrics(ranked, answers)
    names = {"map_at_r": "eccv_map_at_r", "r_precision": "eccv_rprecision", "r1": "eccv_r1"}
    return {ours: found[theirs] for ours, theirs in names.items()}


@several
@given(galleries())
def test_scikit_learn_eccv_caption_and_the_formulas_of_vse_plus_plus_and_clip_benchmark(gallery):
    assert_equal(gallery, by_scikit_learn, by_vse, by_clip_benchmark, by_eccv_caption)


# In `make test-peers`.


def as_runs(scores, true):
    """Judgements and scores by names, as TREC's tools take them."""
    qrels = {f"q{q}": {f"d{d}": 1 for d in np.flatnonzero(row).tolist()} for q, row in enumerate(true)}
    run = {f"q{q}": {f"d{d}": float(one) for d, one in enumerate(row)} for q, row in enumerate(scores)}
    return qrels, run


def by_pytrec_eval(scores, true):
    import pytrec_eval

    names = {"map": "map", "recip_rank": "mrr", "Rprec": "r_precision"}
    for k in (5, 10):
        names |= {f"ndcg_cut_{k}": f"ndcg_{k}", f"P_{k}": f"precision_{k}", f"recall_{k}": f"coverage_{k}"}
    names |= {f"success_{k}": f"r{k}" for k in (1, 5, 10)}
    qrels, run = as_runs(scores, true)
    kinds = {"map", "recip_rank", "Rprec", "ndcg_cut", "P", "recall", "success"}
    per_query = pytrec_eval.RelevanceEvaluator(qrels, kinds).evaluate(run).values()
    return {ours: np.mean([one[theirs] for one in per_query]) for theirs, ours in names.items()}


def by_ir_measures(scores, true):
    import ir_measures

    names = {"AP": "map", "RR": "mrr", "Rprec": "r_precision", "nDCG@10": "ndcg_10", "P@5": "precision_5"}
    names |= {"R@10": "coverage_10", "Success@1": "r1", "Success@5": "r5", "Success@10": "r10"}
    wanted = {ir_measures.parse_measure(theirs): ours for theirs, ours in names.items()}
    found = ir_measures.calc_aggregate(list(wanted), *as_runs(scores, true))
    return {ours: found[theirs] for theirs, ours in wanted.items()}


def by_ranx(scores, true):
    import ranx

    names = {"map": "map", "mrr": "mrr", "r-precision": "r_precision", "ndcg@10": "ndcg_10", "ndcg@5": "ndcg_5"}
    names |= {"precision@5": "precision_5", "recall@10": "coverage_10"}
    names |= {f"hit_rate@{k}": f"r{k}" for k in (1, 5, 10)}
    qrels, run = as_runs(scores, true)
    found = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), list(names), make_comparable=True)
    return {ours: found[theirs] for theirs, ours in names.items()}


def by_torchmetrics(scores, true):
    from torchmetrics.functional import retrieval

    found: dict[str, list[float]] = {}
    for row, right in zip(torch.from_numpy(scores), torch.from_numpy(true), strict=True):
        one = {
            "map": retrieval.retrieval_average_precision(row, right),
            "mrr": retrieval.retrieval_reciprocal_rank(row, right),
            "r_precision": retrieval.retrieval_r_precision(row, right),
            **{f"r{k}": retrieval.retrieval_hit_rate(row, right, top_k=k) for k in (1, 5, 10)},
            **{f"coverage_{k}": retrieval.retrieval_recall(row, right, top_k=k) for k in (5, 10)},
            **{f"ndcg_{k}": retrieval.retrieval_normalized_dcg(row, right, top_k=k) for k in (5, 10)},
            **{f"precision_{k}": retrieval.retrieval_precision(row, right, top_k=k) for k in (5, 10)},
        }
        for name, value in one.items():
            found.setdefault(name, []).append(float(value))
    return {name: np.mean(values) for name, values in found.items()}


@pytest.mark.filterwarnings("ignore")  # of Numba, about ranx's code
@several
@given(galleries())
def test_pytrec_eval_ir_measures_ranx_and_torchmetrics(gallery):
    for name in ("pytrec_eval", "ir_measures", "ranx", "torchmetrics"):
        pytest.importorskip(name, reason=WHY)
    assert_equal(gallery, by_pytrec_eval, by_ir_measures, by_ranx, by_torchmetrics)


@settings(several, max_examples=max(EXAMPLES // 5, 20))  # each takes five times as long as all others together
@given(galleries())
def test_the_figures_that_mteb_computes(gallery):
    metrics = pytest.importorskip("mteb._evaluators.retrieval_metrics", reason=WHY)
    names = {"ndcg_at_5": "ndcg_5", "ndcg_at_10": "ndcg_10", "map_at_1000": "map", "mrr_at_1000": "mrr"}
    names |= {f"hit_rate_at_{k}": f"r{k}" for k in (1, 5, 10)}
    names |= {f"recall_at_{k}": f"coverage_{k}" for k in (5, 10)} | {
        f"precision_at_{k}": f"precision_{k}" for k in (5, 10)
    }

    def measure(scores, true):
        qrels, run = as_runs(scores, true)
        found = metrics.calculate_retrieval_scores(run, qrels, [1, 5, 10, 1000])
        known = metrics.make_score_dict(
            ndcg=found.ndcg, _map=found.map, recall=found.recall, precision=found.precision, mrr=found.mrr,
            naucs=found.naucs, naucs_mrr=found.naucs_mrr, hit_rate=found.hit_rate, task_scores={},
        )  # fmt: skip
        return {ours: known[theirs] for theirs, ours in names.items()}

    assert_equal(gallery, measure)


# Where they differ: the smallest examples, which docs/evaluation.md shows.

ALIKE = np.zeros((2, 2))  # a model that gives every pair the same score


def test_a_model_that_tells_nothing_apart_is_perfect_by_counting_what_scores_more():
    found = evaluate_scores(ALIKE, [0, 1], [0, 1]).figures
    assert (found["i2t_r1"], found["t2i_r1"], found["i2t_ties"]) == (0.0, 0.0, 2.0)
    assert [1 + int((row > row[place]).sum()) for place, row in enumerate(ALIKE)] == [1, 1]  # the usual short cut


def test_by_the_order_of_items_such_a_model_finds_half():
    true = np.eye(2, dtype=bool)
    assert vse_ranks(ALIKE, true).tolist() == [1, 0]
    assert (clip_benchmark_recall(ALIKE, true, 1) > 0).double().mean() == 0.5
    assert ndcg_score(true, ALIKE, k=1) == pytest.approx(0.5)  # scikit-learn averages over the orders of ties
    assert average_precision_score([1, 0], [0, 0]) == 0.5


def test_vse_plus_plus_rounds_the_median_down():
    scores = np.array([[2.0, 1.0], [2.0, 1.0]])  # ranks 1 and 2
    ranks = vse_ranks(scores, np.eye(2, dtype=bool))
    assert np.floor(np.median(ranks)) + 1 == 1
    assert evaluate_scores(scores, [0, 1], [0, 1]).figures["i2t_median_rank"] == 1.5


def test_the_recall_of_other_libraries_is_our_coverage():
    """One image with two captions, one of them first: hit@1 is 1, what they call recall@1 is a half."""
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 0.0, 5.0]])
    found = evaluate_scores(scores, [0, 1], [0, 0, 1])
    assert found.at(1)["i2t_r1"] == 100
    assert found.at(1)["i2t_coverage_1"] == 75
    recall = clip_benchmark_recall(scores, [[True, True, False], [False, False, True]], 1)
    assert recall.tolist() == [0.5, 1.0]


def test_pytrec_eval_breaks_ties_by_the_names_of_documents():
    pytrec_eval = pytest.importorskip("pytrec_eval", reason=WHY)
    found = pytrec_eval.RelevanceEvaluator({"q": {"b": 1}}, {"success"}).evaluate({"q": {"a": 0.5, "b": 0.5}})
    renamed = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"success"}).evaluate({"q": {"a": 0.5, "b": 0.5}})
    assert (found["q"]["success_1"], renamed["q"]["success_1"]) == (1.0, 0.0)


def test_torchmetrics_takes_a_true_answer_with_a_score_of_0_or_less_for_a_wrong_one():
    functional = pytest.importorskip("torchmetrics.functional.retrieval", reason=WHY)
    first, second = torch.tensor([-0.1, -0.2]), torch.tensor([True, False])
    assert float(functional.retrieval_reciprocal_rank(first, second)) == 0
    assert float(functional.retrieval_average_precision(first, second)) == 0
    assert float(functional.retrieval_reciprocal_rank(first + 1, second)) == 1  # the same order
    assert evaluate_scores(np.array([[-0.1, -0.2], [-0.2, -0.1]]), [0, 1], [0, 1]).figures["i2t_mrr"] == 100
