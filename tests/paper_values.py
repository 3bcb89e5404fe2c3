"""The settings that the paper reports for its models, and how recipes differ."""

STEP = {"name": "step", "every": 20, "factor": 0.1, "times": None}
COSINE = {"name": "cosine"}

# The paper's settings by column: one value for both data sets, or (COCO, Flickr30k).
TABLE = {
    "resnet152_bigru": {
        "epochs": 120,
        "batch": 200,
        "lr": (1e-3, 2e-3),
        "set module": (0.1, 0.01),
        "CNN": 1.0,
        "schedule": STEP,
        "weight decay": 0.0,
        "frozen": 50,
        "mean negatives": 0,
        "δ1": 0.2,
        "δ2=δ3": 0.6,
        "s": 0.5,
        "λGD=λISD": 0.1,
        "λCON": 0.0,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.0,
        "heads": (4, 256),
        "pixels": (224, "crop", (0.08, 1.0)),
    },
    "region_bigru": {
        "epochs": 80,
        "batch": 200,
        "lr": 1e-3,
        "set module": 0.1,
        "schedule": COSINE,
        "weight decay": 1e-4,
        "mean negatives": 0,
        "δ1": 0.3,
        "δ2=δ3": 0.6,
        "s": 0.5,
        "λGD=λISD": (0.1, 0.05),
        "λCON": 0.001,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.2,
        "heads": (4, 512),
    },
    "region_bert": {
        "epochs": 45,
        "batch": (200, 128),
        "lr": 1e-3,
        "set module": 0.5,
        "BERT": 0.1,
        "schedule": COSINE,
        "weight decay": 5e-4,
        "mean negatives": 0,
        "δ1": 0.15,
        "δ2=δ3": 0.8,
        "s": 0.5,
        "λGD=λISD": 0.1,
        "λCON": 0.001,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.2,
        "heads": (4, 512),
    },
    "resnext101_bert": {
        "epochs": 50,
        "batch": 128,
        "lr": 1e-4,
        "set module": 1.0,
        "CNN": 0.1,
        "BERT": 1.0,
        "schedule": STEP,
        "weight decay": 0.0,
        "frozen": 1,
        "mean negatives": 1,
        "δ1": 0.1,
        "δ2=δ3": 0.6,
        "s": 0.5,
        "λGD=λISD": 0.1,
        "λCON": 0.0,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.0,
        "heads": (8, 256),
        "pixels": (512, "squash", (0.36, 1.0)),
    },
}
PER_DATA_SET = {"lr", "set module", "batch", "λGD=λISD"}

# The rows of table_abl: similarity, Div and MMD, GD, ISD.
ABLATION = [
    ("mil", True, False, False),
    ("smooth_chamfer", True, False, False),
    ("smooth_chamfer", True, True, False),
    ("smooth_chamfer", True, False, True),
    ("smooth_chamfer", False, True, True),
    ("smooth_chamfer", True, True, True),
    ("maxmatch", True, False, False),
    ("maxmatch", False, True, False),
    ("maxmatch", False, False, True),
    ("maxmatch", False, True, True),
    ("maxmatch", True, True, True),
]


def differences(one, other):
    """The dotted keys whose values are not the same in two recipes, but for name and description."""

    def flat(values, prefix=""):
        if not isinstance(values, dict) or not values:
            return {prefix: values}
        return {k: v for key, inner in values.items() for k, v in flat(inner, f"{prefix}.{key}".strip(".")).items()}

    a, b = (flat(recipe.model_dump(exclude={"name", "description"})) for recipe in (one, other))
    return {key: a.get(key) for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
