"""The model card: what it says of itself, and that what its maker wrote is kept."""

from tiny_models import tiny_model

from maxmatch.model.checkpoint import load, model_card, notes_of


def test_notes_are_kept_when_a_model_is_read_and_saved_again(tmp_path):
    model = tiny_model("region_bigru")
    model.notes = "## Training\n\nOn photos."
    folder = model.save_pretrained(tmp_path / "model", notes="## Licence\n\nFor research.\n")
    card = (folder / "README.md").read_text()
    assert card.endswith("<!-- notes -->\n## Training\n\nOn photos.\n\n## Licence\n\nFor research.\n")
    again = load(folder)
    assert again.notes == "## Training\n\nOn photos.\n\n## Licence\n\nFor research."
    again.save_pretrained(tmp_path / "half", dtype="float16")
    assert (tmp_path / "half" / "README.md").read_text() == card
    assert model.notes == "## Training\n\nOn photos."


def test_without_notes_a_card_says_who_should_write_some_and_keeps_what_is_written_by_hand(tmp_path):
    folder = tiny_model("region_bigru").save_pretrained(tmp_path / "model")
    card = folder / "README.md"
    assert "is for its maker to add here" in card.read_text()
    assert load(folder).notes == ""
    card.write_text(card.read_text() + "\nTrained on {my} photos.\n")
    assert "Trained on {my} photos." in load(load(folder).save_pretrained(tmp_path / "again")).notes
    card.unlink()
    assert load(folder).notes == ""
    card.write_bytes(b"\xff\xfe no card at all")
    assert load(folder).notes == ""


def test_a_card_is_the_same_with_other_notes_above_their_mark():
    model = tiny_model("region_bigru")
    above = {model_card(model, notes).partition("<!-- notes -->")[0] for notes in ("", "one", "two")}
    assert len(above) == 1
    assert notes_of("# Someone's own file") == ""
