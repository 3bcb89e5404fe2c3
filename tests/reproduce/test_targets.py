"""What is reproduced are the paper's rows, whatever the data; a finished model is known by what it was made with."""

from pathlib import Path

import pytest
from small_runs import recipe_for, write_data

from maxmatch.evaluation.paper import LOSSES, tables
from maxmatch.model.config import PIE
from maxmatch.recipe.yaml_files import dump_recipe, list_recipes, load_recipe
from maxmatch.reproduce.targets import (
    MAXMATCH_ON_PVSE,
    ONE_VECTOR,
    PVSE,
    RESULT,
    SETDIV,
    ReproduceOptions,
    changes,
    ensemble,
    plan,
    read_job,
    single,
    target_called,
    targets,
)

ELEVEN = [  # similarity, Div, MMD, GD, ISD, RSUM: typed from the paper
    ("mil", 1, 1, 0, 0, 438.98),
    ("smooth_chamfer", 1, 1, 0, 0, 439.57),
    ("smooth_chamfer", 1, 1, 1, 0, 441.76),
    ("smooth_chamfer", 1, 1, 0, 1, 442.43),
    ("smooth_chamfer", 0, 0, 1, 1, 443.11),
    ("smooth_chamfer", 1, 1, 1, 1, 444.10),
    ("maxmatch", 1, 1, 0, 0, 441.23),
    ("maxmatch", 0, 0, 1, 0, 442.67),
    ("maxmatch", 0, 0, 0, 1, 443.49),
    ("maxmatch", 0, 0, 1, 1, 444.49),
    ("maxmatch", 1, 1, 1, 1, 446.53),
]


def plan_of(target, folder, *data, **options):
    return plan(target_called(target), ReproduceOptions(data or ["scenes"], folder, **options))


def same_but_for_names(one, other):
    return one.model_dump(exclude={"name", "description"}) == other.model_dump(exclude={"name", "description"})


def rows_of(lines):
    found = []
    for planned in lines:
        (job,) = planned.jobs
        (recipe,) = job.recipes
        goal = recipe.objective
        weights = (goal.div_weight, goal.mmd_weight, goal.gd_weight, goal.isd_weight)
        found.append((recipe.model.similarity, *(int(weight > 0) for weight in weights)))
    return found


def test_the_ablation_on_scenes_has_the_eleven_rows_of_the_paper(tmp_path):
    made = plan_of("ablation", tmp_path)
    assert rows_of(made.lines) == [row[:5] for row in ELEVEN]
    assert [planned.line.paper["coco_5k_rsum"] for planned in made.lines] == [row[5] for row in ELEVEN]
    ticks = [tuple(int(tick == "✓") for tick in planned.line.title[1:]) for planned in made.lines]
    assert ticks == [row[1:5] for row in ELEVEN]
    assert made.target.headings == ("similarity", *LOSSES)


def test_the_ablation_on_the_papers_data_takes_the_recipes_that_ship(tmp_path):
    made = plan_of("table_abl", tmp_path, str(tmp_path))
    assert rows_of(made.lines) == [row[:5] for row in ELEVEN]
    for number, planned in enumerate(made.lines, start=1):
        shipped = load_recipe(f"ablation/{number:02}", [f"data.path={tmp_path}"])
        assert same_but_for_names(planned.jobs[0].recipes[0], shipped)


def test_rows_made_from_a_base_change_what_the_recipes_of_the_ablation_change():
    base = load_recipe("coco_region_bert")
    for number, line in enumerate(target_called("ablation").lines, start=1):
        made = load_recipe("coco_region_bert", changes(line.variant, base))
        assert same_but_for_names(made, load_recipe(f"ablation/{number:02}")), number


def test_peers_made_from_a_base_differ_in_similarity_losses_head_and_set_size():
    for name in ("scenes", "flickr8k_maxmatch"):
        base = load_recipe(name)
        setdiv, single_vector, pvse, ours = (
            load_recipe(name, changes(one, base)) for one in (SETDIV, ONE_VECTOR, PVSE, MAXMATCH_ON_PVSE)
        )
        assert setdiv.model.similarity == "smooth_chamfer"
        assert setdiv.similarities == ("smooth_chamfer",)
        assert {tower.set_size for tower in single_vector.model.resolved().towers.values()} == {1}
        assert {tower.set_size for tower in pvse.model.resolved().towers.values()} == {2}
        for recipe in (pvse, ours):
            towers = recipe.model.resolved().towers
            assert {tower.head for tower in towers.values()} == {PIE(init="xavier")}
            assert (towers["image"].encoder.projection, towers["text"].encoder.word_scale) == ("none", 1.0)
            assert recipe.train == base.train.model_copy(update={"size_augmentation": 0.0})
        assert pvse.objective.diversity == "pvse"
        assert ours.objective == base.objective
        assert single_vector.objective.gd_weight == single_vector.objective.div_weight == 0
        assert setdiv.train == single_vector.train == base.train
        assert all(one.data == base.data for one in (setdiv, single_vector, pvse, ours))


def test_a_model_of_regions_has_no_cells_to_leave_raw_for_the_head_of_pvse():
    base = load_recipe("coco_region_bert")
    made = load_recipe("coco_region_bert", changes(MAXMATCH_ON_PVSE, base))
    assert {tower.head for tower in made.model.resolved().towers.values()} == {PIE(init="xavier")}


def test_a_model_with_one_vector_made_from_a_base_is_not_called_vsepp(tmp_path):
    first = plan_of("pvse", tmp_path).lines[0].line
    assert (first.title, first.paper) == (("one vector, triplet loss",), {})
    assert plan_of("pvse", tmp_path, str(tmp_path)).lines[0].line.title == ("VSE++",)


def test_scenes_are_compared_as_the_recipes_that_ship_for_them(tmp_path):
    made = plan_of("elements", tmp_path)
    for planned, name in zip(made.lines, ("scenes_mil", "scenes_setdiv", "scenes"), strict=True):
        recipe = planned.jobs[0].recipes[0]
        assert same_but_for_names(recipe, load_recipe(name, [f"data.path={recipe.data.path}"]))


def test_a_base_that_is_not_maxmatch_or_lacks_a_loss_is_refused_with_advice(tmp_path):
    with pytest.raises(ValueError, match=r"scenes_mil: trains with mil.*--base"):
        plan_of("ablation", tmp_path, base="scenes_mil")
    with pytest.raises(ValueError, match=r"has no GD \(objective.gd_weight=0\).*objective.gd_weight=0.1"):
        plan_of("ablation", tmp_path, changes=["objective.gd_weight=0"])


def test_every_target_is_called_by_its_name_and_by_the_papers_label():
    for name, target in targets().items():
        assert target_called(name).name == name
        assert target_called(target.label).label == target.label
    assert {target.label for target in targets().values()} >= set(tables())
    assert target_called("fig:qualitativei2t").name == "qualitative"
    with pytest.raises(ValueError, match=r"ablatoin.* 'ablation'"):
        target_called("ablatoin")
    with pytest.raises(ValueError, match=r"nor a study\. Did you mean 'finalists'"):
        target_called("finalist", ["finalists"])


def test_every_recipe_of_every_target_ships_and_every_row_of_the_paper_is_shown():
    shipped = {name for name, _ in list_recipes()}
    for target in targets().values():
        assert {line.recipe for line in target.lines if line.recipe is not None} <= shipped
        for line in target.lines:
            assert len(line.title) == len(target.headings)
    assert len(targets()["flickr30k"].lines) == 27
    assert len(targets()["coco"].lines) == 26
    trained = [line.recipe for line in targets()["flickr30k"].lines if line.recipe is not None]
    assert len(trained) == len(set(trained)) + 2  # the two ensembles are made of models that are there
    ours = targets()["elements"].lines[2].paper  # every slot
    assert (ours["image_slot_1_rsum"], ours["text_slot_4_rsum"], ours["log_variance"]) == (440.89, 443.78, -1.68)
    assert len(ours) == 10


def test_data_can_be_given_for_the_recipes_that_read_it(tmp_path):
    for name in ("regions", "pictures"):
        (tmp_path / name).mkdir()
    data = [f"region={tmp_path / 'regions'}", f"resnet={tmp_path / 'pictures'}"]
    made = plan_of("flickr30k", tmp_path, *data, seeds=2)
    paths = {planned.line.recipe: planned.jobs[0].recipes[0].data.path for planned in made.lines if planned.jobs}
    assert paths["f30k_region_bert"] == str(tmp_path / "regions")
    assert paths["f30k_resnet152_bigru_setdiv"] == str(tmp_path / "pictures")
    missing = {planned.line.recipe: planned.why_none for planned in made.lines if planned.why_none}
    assert missing == {name: f"no --data for {name}" for name in ("f30k_vsepp", "f30k_pvse")}


def test_an_ensemble_is_of_two_seeds_and_comes_after_them(tmp_path):
    one = plan_of("flickr30k", tmp_path, str(tmp_path))
    assert {planned.why_none for planned in one.lines if planned.line.ensemble and planned.line.recipe} == {
        "an ensemble: takes --seeds 2"
    }
    three = plan_of("flickr30k", tmp_path, str(tmp_path), seeds=3)
    both = [planned for planned in three.lines if planned.line.ensemble and planned.jobs]
    assert len(both) == 2
    for planned in both:
        (job,) = planned.jobs
        assert [recipe.seed for recipe in job.recipes] == [0, 1]
        places = [other.folder for other in three.jobs]
        assert all(places.index(member) < places.index(job.folder) for member in job.members)
    assert len(three.jobs) == 10 * 3 + 2


def test_all_lines_get_their_first_model_before_one_gets_its_second(tmp_path):
    made = plan_of("ablation", tmp_path, seeds=3)
    seeds = [job.recipes[0].seed for job in made.jobs]
    assert seeds == [0] * len(made.lines) + [1] * len(made.lines) + [2] * len(made.lines)
    firsts = [job.folder for job in made.jobs[: len(made.lines)]]
    assert firsts == [line.jobs[0].folder for line in made.lines]


def test_what_the_user_changes_does_not_undo_the_row(tmp_path):
    made = plan_of("ablation", tmp_path, changes=["objective.gd_weight=0.3", "train.epochs=2"], seeds=2)
    first, last = made.lines[0].jobs[1].recipes[0], made.lines[10].jobs[1].recipes[0]
    assert (first.objective.gd_weight, last.objective.gd_weight) == (0.0, 0.3)
    assert first.train.epochs == last.train.epochs == 2
    assert last.seed == 1


def test_quick_is_smaller_and_lies_elsewhere(tmp_path):
    whole = plan_of("ablation", tmp_path)
    quick = plan_of("ablation", tmp_path, quick=True)
    assert not {job.folder for job in whole.jobs} & {job.folder for job in quick.jobs}
    small, large = quick.jobs[0].recipes[0], whole.jobs[0].recipes[0]
    assert small.data.scenes.images < large.data.scenes.images
    assert small.data.path != large.data.path
    file = tmp_path / "own.yaml"
    file.write_text(dump_recipe(recipe_for(write_data(tmp_path / "data"), epochs=45)))
    real = plan_of("ablation", tmp_path, str(tmp_path / "data"), base=str(file), quick=True)
    assert real.jobs[0].recipes[0].train.epochs == 3


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--data nowhere: no such file or folder\. .*--data scenes"):
        plan_of("ablation", tmp_path, "nowhere")
    with pytest.raises(ValueError, match="flickr8k_maxmatch"):
        plan_of("ablation", tmp_path, base="flickr8k_maxmatch")


@pytest.mark.parametrize(("base", "data"), [(None, "scenes"), ("flickr8k_maxmatch", "here"), (None, "here")])
def test_only_the_set_size_differs_and_the_bases_own_model_is_shared(tmp_path, base, data):
    where = [str(tmp_path) if data == "here" else data]
    made = plan_of("sizes", tmp_path, *where, base=base)
    recipes = [planned.jobs[0].recipes[0] for planned in made.lines]

    def resized(recipe):
        towers = recipe.model.resolved().towers
        return {name: tower.model_copy(update={"set_size": 4}) for name, tower in towers.items()}

    for recipe, size in zip(recipes, (1, 2, 4, 8), strict=True):
        assert {tower.set_size for tower in recipe.model.resolved().towers.values()} == {size}
        assert recipe.model.similarity == "maxmatch"
        assert resized(recipe) == resized(recipes[2])
        for part in ("objective", "train", "data"):
            assert getattr(recipe, part) == getattr(recipes[2], part)
    assert made.lines[2].jobs == plan_of("ablation", tmp_path, *where, base=base).lines[10].jobs
    assert "Not a table of the paper" in made.target.about
    assert not any(line.paper for line in made.target.lines)


# Jobs.


def job_for(folder, *changes, split=None, protocol="plain"):
    return single(folder, load_recipe("scenes", ["data.path=here", *changes]), split, protocol)


def test_a_result_is_found_again(tmp_path):
    job = job_for(tmp_path)
    assert job.result() is None
    job.finish({"figures": {"rsum": 1.0}})
    assert job_for(tmp_path).result()["figures"] == {"rsum": 1.0}
    assert not list(job.folder.glob(".*"))


@pytest.mark.parametrize(
    "change",
    ["seed=1", "train.lr=1e-4", "objective.gd_weight=0.2", "data.scenes.images=7", "evaluate.similarities=[top_k]"],
)
def test_another_recipe_lies_elsewhere_and_has_no_result(change, tmp_path):
    job, other = job_for(tmp_path), job_for(tmp_path, change)
    assert other.folder != job.folder
    job.finish({"figures": {"rsum": 1.0}})
    (other.folder).mkdir()
    (other.folder / RESULT).write_text((job.folder / RESULT).read_text())  # as if two digests were the same
    assert other.result() is None


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("flickr8k_maxmatch", "maxmatch-k4-div-mmd-gd-isd-seed0-72ebe926"),
        ("flickr8k_vsepp", "mil-global-k1-seed0-2b1f45f1"),
        ("flickr8k_pvse", "mil-pie-k2-div-mmd-seed0-44ed9fba"),
        ("f30k_region_bert", "maxmatch-k4-div-mmd-gd-isd-seed0-270950d4"),
        ("coco_resnet152_bigru", "maxmatch-k4-div-mmd-gd-isd-seed0-dca27513"),
    ],
)
def test_models_that_were_trained_before_are_found_again_whatever_options_recipes_have_got_since(name, folder):
    """A new option has to be named with its default in `targets._LATER`, or hours of training are done again."""
    assert single(Path("out"), load_recipe(name, ["data.path=photos.json"]), None, "plain").folder.name == folder


WHOLE = (
    "{towers: {image: {encoder: {name: conv, backbone: {source: efficientnet_lite}, "
    "pixels: {size: 9, resize: crop, mean: [0, 0, 0], std: [1, 1, 1]}}}, "
    "text: {encoder: {name: gru}, head: {name: pie}}}}"
)


@pytest.mark.parametrize(
    ("changed", "name"),  # as an earlier version, without the options that came later, named them
    [
        ([], "maxmatch-k4-div-mmd-gd-isd-seed0-6204e6dd"),
        (
            ["model.preset=null", "model.options=null", f"model.config={WHOLE}"],
            "maxmatch-pie-k4-div-mmd-gd-isd-seed0-386803ad",
        ),
    ],
)
def test_options_that_came_later_do_not_rename_what_is_finished(changed, name, tmp_path):
    stored = Path(__file__).parents[1] / "stored" / "run" / "recipe.yaml"
    assert single(tmp_path, load_recipe(stored, changed), None, "auto").folder.name == name


def test_a_base_whose_set_head_has_options_can_have_the_head_of_pvse():
    for option in ("heads=2", "global_feature=normalised"):
        base = load_recipe("flickr8k_maxmatch", [f"model.options.{option}"])
        made = load_recipe("flickr8k_maxmatch", [f"model.options.{option}", *changes(PVSE, base)])
        assert {tower.head.name for tower in made.model.resolved().towers.values()} == {"pie"}


@pytest.mark.parametrize("change", [{"split": "val"}, {"protocol": "auto"}])
def test_measured_in_another_way_the_model_stays_and_the_result_does_not(change, tmp_path):
    job, other = job_for(tmp_path), job_for(tmp_path, **change)
    assert other.folder == job.folder
    job.finish({"figures": {}})
    assert other.result() is None


def test_data_elsewhere_is_other_data_but_for_generated_scenes(tmp_path):
    recipe = load_recipe("flickr8k_maxmatch", ["data.path=a"])
    other = load_recipe("flickr8k_maxmatch", ["data.path=b"])
    assert single(tmp_path, recipe, None, "plain").folder != single(tmp_path, other, None, "plain").folder
    moved = single(tmp_path, load_recipe("scenes", ["data.path=there"]), None, "plain")
    assert moved.folder == job_for(tmp_path).folder
    assert moved.settings == job_for(tmp_path).settings


@pytest.mark.parametrize("text", ["", "{", "[]", '{"figures": {}}'])
def test_a_damaged_result_counts_as_none(text, tmp_path):
    job = job_for(tmp_path)
    job.folder.mkdir()
    (job.folder / RESULT).write_text(text)
    assert job.result() is None


def test_the_process_reads_the_job_that_was_written(tmp_path):
    job = job_for(tmp_path, "model.similarity=smooth_chamfer", "model.similarity_options.alpha=8", split="val")
    job.write()
    assert read_job(job.folder) == job
    both = ensemble(tmp_path, (job, job_for(tmp_path, "seed=1", split="val")))
    both.write()
    assert read_job(both.folder) == both
    assert both.folder != ensemble(tmp_path, (job, job_for(tmp_path, "seed=2", split="val"))).folder


def test_two_tables_that_need_the_same_model_share_it(tmp_path):
    ablation = plan_of("ablation", tmp_path)
    elements = plan_of("elements", tmp_path)
    assert {job.folder for job in elements.jobs} < {job.folder for job in ablation.jobs}
    coco = plan_of("coco", tmp_path, str(tmp_path))
    shipped = plan_of("ablation", tmp_path, str(tmp_path))
    ours = next(one.jobs[0] for one in coco.lines if one.line.recipe == "coco_region_bert" and one.jobs)
    assert shipped.lines[10].jobs[0] == ours


def test_names_say_what_is_trained(tmp_path):
    assert job_for(tmp_path).folder.name.startswith("maxmatch-k4-div-mmd-gd-isd-seed0-")
    pvse = plan_of("pvse", tmp_path).lines[1]
    assert pvse.jobs[0].folder.name.startswith("mil-pie-k2-div-mmd-seed0-")
