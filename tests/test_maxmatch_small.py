"""The model that ships: it is there, small, and has learned what its card says."""

from sklearn.datasets import load_sample_images

from maxmatch import SetEncoder
from maxmatch.model.names import SHIPPED, shipped_model


def test_it_takes_at_most_25_megabytes_on_the_disk():
    folder = shipped_model(SHIPPED)
    assert folder is not None
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 25_000_000


def test_it_loads_by_name_and_its_slots_pair_as_search_needs():
    model = SetEncoder.from_pretrained(SHIPPED)
    assert model.set_sizes == {"image": 4, "text": 4}
    assert model.config.pairing == [0, 1, 2, 3]
    assert model.config.pairing_stability > 0.99


def test_words_that_no_caption_had_lie_near_their_neighbours():
    model = SetEncoder.from_pretrained(SHIPPED)
    pairs = [("a photo of a penguin", "a photo of a bird"), ("a violin player", "a guitar player")]
    for unseen, seen in pairs:
        texts = model.encode_texts([unseen, seen, "a snowboarder in the air"])
        scores = model.similarity(texts[:1], texts[1:])[0]
        assert scores[0] > scores[1], (unseen, seen)


def test_it_says_which_of_some_sentences_is_about_a_photo():
    model = SetEncoder.from_pretrained(SHIPPED)
    sentences = ["a palace in China", "a pink flower", "two dogs run across a field", "a man on a bicycle"]
    photos = load_sample_images().images  # a Chinese palace and a flower, neither from its training data
    scores = model.similarity(model.encode_images(photos), model.encode_texts(sentences))
    assert scores.argmax(1).tolist() == [0, 1]
